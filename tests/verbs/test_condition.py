# SPDX-License-Identifier: Apache-2.0
"""The verb `condition` from the outside: files, kinds, options, messages, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import ConditionOptions, condition
from qdqtool.cli.main import main
from qdqtool.conditioning.edits import parse_steps
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import SILU, samples, spread

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


SMOOTH = ConditionOptions(("smooth",), plan=PlanOptions(float_heads="none"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(spread(SILU), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    return tmp_path


def run(folder: Path, *words: str) -> int:
    return main(["condition", str(folder / "m.onnx"), "--data", str(folder / "d.npz"), *words])


def test_writes_beside_the_model_and_says_what_it_did(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "m.onnx").read_bytes()
    assert run(folder, "--float-heads", "none") == 0
    out, err = capsys.readouterr()
    made = folder / "m.conditioned.onnx"
    onnx.checker.check_model(made, full_check=True)
    assert (folder / "m.onnx").read_bytes() == before
    assert f"{made}: " in out
    assert "smooth: 1 tensor equalized " in out and ", 1 by a Mul" in out
    assert re.search("equalize and smooth keep .*FP32", out)
    assert "each alone, simulated" in out
    assert f"next: qdqtool insert {made}" in out
    assert err == ""


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--float-heads", "none", "--steps", "smooth", "--json", "-o", str(folder / "c.onnx")) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        "schema",
        "file",
        "samples",
        "method",
        "edits",
        "left",
        "predicted",
        "kept",
        "moved",
        "notes",
    ]
    assert [edit["site"] for edit in document["edits"]] == ["m1"]
    assert document["samples"] == 6
    assert document["kept"]["y"]["relative"] < 1e-6


def test_the_kind_that_was_given_comes_back(folder: Path) -> None:
    proto = spread(SILU)
    before = proto.SerializeToString()
    result = condition(proto, str(folder / "d.npz"), SMOOTH)
    assert isinstance(result.model, onnx.ModelProto)
    assert len(result.model.graph.node) == len(proto.graph.node) + 1
    assert proto.SerializeToString() == before


def test_edited_weights_leave_the_data_file_others_stay(folder: Path) -> None:
    proto = spread(SILU)
    onnx.save(proto, folder / "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    result = condition(folder / "e.onnx", str(folder / "d.npz"), SMOOTH)
    made = onnx.load(result.model, load_external_data=False)
    kept = {tensor.name for tensor in made.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL}
    assert [edit.site for edit in result.done.edits] == ["m1"]
    assert kept == {"w1", "b1"}
    plain = condition(folder / "m.onnx", str(folder / "d.npz"), SMOOTH)
    assert onnx.load(result.model).graph.node == onnx.load(plain.model).graph.node


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--steps", "smoth"],
            "--steps smoth: no such step; choose some of relu6, equalize, smooth, shift, clip, correct, or auto",
        ),
        (["--method", "mze"], "--method mze: no such method"),
        (["--heads", "nothing"], "matches no weighted operator"),
        (["-o", "{folder}/m.onnx"], "m.onnx"),
    ],
)
def test_refusals_are_one_line(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *(word.format(folder=folder) for word in words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not (folder / "m.conditioned.onnx").exists()


def test_steps_come_in_their_order() -> None:
    assert parse_steps("correct, equalize") == ("equalize", "correct")
    assert parse_steps(None) == parse_steps("auto") == ("equalize", "smooth", "clip", "correct")
    assert parse_steps(("clip",)) == ("clip",)
    assert parse_steps("clip,relu6") == ("relu6", "clip")
    assert parse_steps("auto,relu6") == ("relu6", *parse_steps("auto"))
    with pytest.raises(QdqError, match="no such step"):
        parse_steps("")
