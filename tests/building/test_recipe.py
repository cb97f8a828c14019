# SPDX-License-Identifier: Apache-2.0
"""What a builder is told, by version, model and precision: a row each, and every refusal."""

from __future__ import annotations

import pytest

from qdqtool.building.recipe import BuildFacts, Precision, decide
from qdqtool.errors import QdqError
from qdqtool.trtversion import parse

PLAIN, QDQ = BuildFacts("m.onnx"), BuildFacts("m.onnx", quantized=True)
CACHED, OPEN = BuildFacts("m.onnx", cached=True), BuildFacts("m.onnx", cached=True, open_inputs=("x", "y"))


@pytest.mark.parametrize(
    ("version", "model", "precision", "flags"),
    [
        ("8.5.1", PLAIN, None, ""),
        ("8.5.1", PLAIN, "fp32", ""),
        ("8.5.1", PLAIN, "tf32", "TF32"),
        ("8.5.1", PLAIN, "fp16", "FP16"),
        ("10.3.0", PLAIN, "bf16", "BF16"),
        ("8.5.1", PLAIN, "best", "FP16 TF32"),
        ("8.5.1", QDQ, None, "FP16 INT8"),
        ("8.5.1", QDQ, "int8", "INT8"),
        ("10.13.3", QDQ, "best", "FP16 INT8 TF32"),
        ("8.6.1", CACHED, None, "FP16 INT8"),
        ("10.7.0", CACHED, "int8", "INT8"),
        ("11.4.0", PLAIN, None, ""),
        ("11.4.0", QDQ, None, ""),
        ("11.4.0", QDQ, "fp32", ""),
        ("11.4.0", QDQ, "tf32", "TF32"),
    ],
)
def test_flags(version: str, model: BuildFacts, precision: Precision | None, flags: str) -> None:
    found = decide(parse(version), model, precision)
    assert " ".join(sorted(found.flags)) == flags
    assert found.strongly_typed is version.startswith("11") and found.dla_core is None


@pytest.mark.parametrize(
    ("version", "model", "precision", "reason"),
    [
        ("11.4.0", CACHED, None, "TensorRT 11.4.0: has no calibration caches; .*qdqtool graft puts it into the model"),
        ("10.7.0", BuildFacts("m.onnx", quantized=True, cached=True), None, "has Q/DQ, beside which .* ignores a cal"),
        ("11.4.0", QDQ, "int8", "takes every type from the model, and has no flag for int8"),
        ("11.4.0", QDQ, "fp16", "no flag for fp16; leave it out; qdqtool insert writes INT8"),
        ("8.6.1", PLAIN, "bf16", "--precision bf16: TensorRT 8.6.1 has no BF16"),
        ("8.6.1", PLAIN, "int8", "m.onnx: has neither Q/DQ nor a cache"),
        ("8.6.1", QDQ, "fp16", "--precision fp16: the model has Q/DQ, and that is INT8; give --precision int8 or best"),
        ("8.6.1", CACHED, "fp32", "--precision fp32: --cache is given, and that is INT8"),
    ],
)
def test_refusals(version: str, model: BuildFacts, precision: Precision | None, reason: str) -> None:
    with pytest.raises(QdqError, match=reason) as error:
        decide(parse(version), model, precision)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("version", "model", "core", "reason"),
    [
        ("8.5.2", OPEN, 0, "has dynamic dimensions in x, y, and the DLA needs one fixed shape; give it with --shapes"),
        ("8.5.2", QDQ, 0, "the DLA of TensorRT 8.5.2 takes no Q/DQ; qdqtool peel --target dla makes a cache"),
        ("10.13.3", CACHED, 0, "TensorRT 10.13.3: supports no DLA"),
        ("8.5.2", PLAIN, 0, "the DLA computes in FP16 and INT8 alone"),
        ("8.5.2", CACHED, -1, "--dla-core -1: is not a DLA core"),
    ],
)
def test_refusals_for_the_dla(version: str, model: BuildFacts, core: int, reason: str) -> None:
    with pytest.raises(QdqError, match=reason):
        decide(parse(version), model, None, core)


@pytest.mark.parametrize(("version", "model"), [("8.5.2", CACHED), ("10.3.0", CACHED), ("11.4.1", QDQ)])
def test_what_a_dla_runs(version: str, model: BuildFacts) -> None:
    assert decide(parse(version), model, None, 1).dla_core == 1


@pytest.mark.parametrize(("version", "reported"), [("10.7.0", False), ("10.13.3", True), ("11.4.0", False)])
def test_flags_that_will_go_are_reported(version: str, reported: bool) -> None:
    notes = decide(parse(version), QDQ, None).notes
    assert len(notes) == reported and all(f"TensorRT {version} deprecates --fp16, --int8" in note for note in notes)
