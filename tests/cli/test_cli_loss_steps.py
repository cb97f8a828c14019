# SPDX-License-Identifier: Apache-2.0
"""The commands that `insert` prints where a model may lose much: each runs as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.evaluation import loss_scale
from tests.cli.command import run, write_net
from tests.collapsing_nets import residual_net
from tests.collapsing_nets import samples as collapsing_samples
from tests.conditioning.nets import SILU, samples, spread

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
Capsys = pytest.CaptureFixture[str]
NONE = ("--float-heads", "none", "--keep-float", "0", "--method", "max")


def commands(text: str, *marks: str) -> list[list[str]]:
    """The words of the commands after the marks, each of which is on one line."""
    lines = [line for mark in marks for line in text.splitlines() if re.match(f"{mark}[^:]*: qdqtool ", line)]
    return [shlex.split(line.split(": qdqtool ", 1)[1]) for line in lines]


@pytest.mark.slow
def test_what_loses_less_is_two_commands_with_the_users_own_options(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss_scale.WITHOUT_LABELS, "nearness", loss_scale.LossScale(0.0, 1.0))
    model, data = write_net(tmp_path), tmp_path / "d.npz"
    said = run(capsys, "insert", model, "--data", data, "--limit", 2, *NONE, "-o", tmp_path / "a q.onnx")
    assert loss_scale.WORDS["some"] in said.out
    (measure,) = commands(said.out, "to measure it")
    assert measure[:3] == ["evaluate", str(tmp_path / "a q.onnx"), "--baseline"] and "--limit" not in measure
    assert run(capsys, *[data if word == "TEST" else word for word in measure]).code == 0
    first, second = commands(said.out, "to lose less", "then")
    same = [str(word) for word in ("insert", model, "--data", data, "--limit", 2, *NONE[:-2])]  # auto by tensor
    out = str(tmp_path / "a q.conditioned.onnx")
    assert first == [*same, "--condition", "equalize,smooth", "-o", out]
    assert second == ["finetune", out, "--data", str(data), "--limit", "2", "--blocks", "--ranges", "learn"]
    assert run(capsys, *first, "-q").code == 0
    assert run(capsys, *second, "--steps", "1", "-q").code == 0
    conditioned = run(capsys, *first)
    assert commands(conditioned.out, "then") == []
    if "to lose less" in conditioned.out:
        assert commands(conditioned.out, "to lose less")[0][:2] == ["finetune", out]


def test_the_cause_is_looked_for_by_the_rules_of_the_dla(capsys: Capsys, tmp_path: Path) -> None:
    onnx.save(residual_net(4), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=collapsing_samples())
    dla = ("--target", "dla", "--trt-version", "8502")
    said = run(
        capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *NONE, *dla, "-o", tmp_path / "q.onnx"
    )
    (cause,) = [shlex.split(line)[1:] for line in said.err.splitlines() if line.startswith("    qdqtool lint ")]
    assert cause == ["lint", f"{tmp_path}/q.onnx", *dla, "--data", f"{tmp_path}/d.npz"]


def test_a_large_loss_is_measured_by_the_task_first(capsys: Capsys, tmp_path: Path) -> None:
    """A model whose outputs lose 0.22 may lose 1 % of its mAP: by that alone operators went to float for nothing.

    Nothing reads the outputs of this one, so that `evaluate` would refuse it.
    """
    onnx.save(residual_net(4), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=collapsing_samples())
    said = run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *NONE, "-o", tmp_path / "q.onnx")
    lines = said.err.splitlines()
    assert "may lose much in INT8" in " ".join(map(str.strip, lines))
    (place,) = [number for number, line in enumerate(lines) if line.endswith("for TEST:")]
    words = shlex.split(lines[place + 1].removeprefix("    qdqtool "))
    assert [lines[place + 2], lines[place + 4]] == ["  for its likely cause:", "  try:"]
    cause = shlex.split(lines[place + 3].removeprefix("    qdqtool "))
    assert cause == ["lint", f"{tmp_path}/q.onnx", "--data", f"{tmp_path}/d.npz"]
    assert words == ["compare", f"{tmp_path}/m.onnx", f"{tmp_path}/q.onnx", "--data", "TEST"]
    assert run(capsys, *words[:-1], tmp_path / "d.npz", "-q").code == 0
    again = ("insert", tmp_path / "q.onnx", "--data", tmp_path / "d.npz", *NONE, "--requantize")
    said = run(capsys, *again, "--method", "percentile=20", "-o", tmp_path / "r.onnx")
    assert (
        "with your float model for FP32.onnx, samples that did not calibrate it for TEST: qdqtool compare "
        in " ".join(said.err.split())
    ), "no file is called so"
    said = run(capsys, *again[:-1], "-o", tmp_path / "kept.onnx")
    assert "qdqtool compare FP32.onnx " in " ".join(said.err.split()), "the pairs that are kept lose, too"


def test_one_method_for_all_ranges_is_not_tried_again(capsys: Capsys, tmp_path: Path) -> None:
    """Resnet20 by percentile=95 lost .59, and .67 by the command that was to lose less."""
    onnx.save(residual_net(4), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=collapsing_samples())
    said = run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *NONE, "-o", tmp_path / "q.onnx")
    lines = said.err.splitlines()
    tried = shlex.split(lines[lines.index("  try:") + 1])
    assert "--condition" in tried and "--method" not in tried and "--keep-float" in tried
    assert run(capsys, *tried[1:], "-q").code == 0


def test_a_model_with_pairs_is_peeled_before_its_weights_are_edited(capsys: Capsys, tmp_path: Path) -> None:
    """`--condition auto` beside --requantize is refused, and it was what the note said."""
    onnx.save(spread(SILU), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    data = ("--data", tmp_path / "d.npz", "--float-heads", "none", "--keep-float", "0")
    assert run(capsys, "insert", tmp_path / "m.onnx", *data, "-q", "-o", tmp_path / "theirs.qdq.onnx").code == 0
    again = ("insert", tmp_path / "theirs.qdq.onnx", *data, "--requantize", "-o", tmp_path / "ours.onnx")
    said = run(capsys, *again, "--trt-version", "11.4")
    (note,) = [line for line in said.err.splitlines() if "conditioning is predicted" in line]
    assert "peel the model" in note and "--condition" in note
    assert "add --condition auto" not in said.err
    peel, insert = commands(said.out, "to edit its weights, take its Q/DQ out", "then")
    assert peel[0] == "peel" and insert[:2] == ["insert", str(tmp_path / "theirs.plain.onnx")]
    assert "--requantize" not in insert and insert[-2:] == ["-o", str(tmp_path / "ours.conditioned.onnx")]
    assert run(capsys, *peel, "-q").code == 0
    assert run(capsys, *insert, "-q").code == 0 and (tmp_path / "ours.conditioned.onnx").is_file()


@pytest.mark.parametrize("edits", [(), ("--condition", "correct")], ids=["as it is", "conditioned"])
def test_for_a_dla_deploy_tries_every_way(capsys: Capsys, tmp_path: Path, edits: tuple[str, ...]) -> None:
    """Operators in float were advised for a trtexec that takes no names of layers, and edits that lost more."""
    onnx.save(residual_net(4), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=collapsing_samples())
    words = ("insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *NONE, "--target", "dla")
    words += ("--trt-version", "jp4.6.1", *edits, "-o", tmp_path / "q.onnx")
    lines = run(capsys, *words).err.splitlines()
    (place,) = [number for number, line in enumerate(lines) if "try every way to this DLA" in line]
    step = shlex.split(lines[-1])
    assert step[:2] == ["qdqtool", "deploy"] and place < len(lines) - 1
    assert step[2:] == [
        *(f"{tmp_path}/m.onnx", "--data", f"{tmp_path}/d.npz"),
        *("--for", "jp4.6.1", "--dla", "-o", f"{tmp_path}/m.deployed"),
    ]
