# SPDX-License-Identifier: Apache-2.0
"""What `insert --data` says of the loss at the outputs: always the figure; where it is large, what to try next."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from qdqtool.cli.next_steps import insert_with_more_float
from qdqtool.measuring.output_loss import LARGE_LOSS
from qdqtool.measuring.search_result import SearchResult
from tests.cli.command import CommandOutput, run, write_net
from tests.collapsing_nets import headed_net, residual_net, samples
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
MonkeyPatch = pytest.MonkeyPatch
ALL = ("--float-heads", "none", "--method", "max")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream whose channels lie far apart, all the way: nothing that `auto` may keep helps."""
    onnx.save(residual_net(6), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    return tmp_path


def insert(capsys: Capsys, folder: Path, *words: object) -> CommandOutput:
    return run(capsys, "insert", folder / "m.onnx", "--data", folder / "d.npz", *ALL, *words)


def printed_command(said: CommandOutput) -> list[str]:
    """The words of the command below `try:`, which has a line of its own."""
    lines = said.err.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.endswith("try:")]
    assert lines[place + 1].startswith("    qdqtool ")
    return shlex.split(lines[place + 1])[1:]


def warning(said: CommandOutput, mark: str) -> str:
    """The one warning with a mark: its lines, of at most 100 characters but for commands, in one."""
    lines = said.err.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("qdqtool: ")]
    ends = [*starts[1:], len(lines)]
    (own,) = [lines[a:b] for a, b in zip(starts, ends, strict=True) if mark in " ".join(map(str.strip, lines[a:b]))]
    assert len(own) > 2 and all(len(line) <= 100 or line.startswith("    qdqtool ") for line in own)
    return " ".join(map(str.strip, own))


@pytest.mark.parametrize("words", [(), ("--keep-float", "0"), ("--method", "mse", "--points-only")])
def test_the_figure_is_always_there(capsys: Capsys, tmp_path: Path, words: tuple[str, ...]) -> None:
    model = write_net(tmp_path)
    said = run(capsys, "insert", model, "--data", tmp_path / "d.npz", *words)
    (line,) = [line for line in said.out.splitlines() if line.startswith("loss at the outputs: ")]
    assert said.code == 0 and re.search(
        r" \(0: none, 1: all signal lost; 95 %: [\d.e-]+ to [\d.e-]+, 6 calibration samples\)$", line
    )
    assert 0.0 < float(line.split()[4]) < LARGE_LOSS and "may lose much" not in said.err


def test_without_data_there_is_none(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "insert", write_net(tmp_path))
    assert said.code == 0 and "loss at the outputs" not in said.out
    said = run(capsys, "insert", tmp_path / "m.onnx", "--json")
    assert "output_loss" not in json.loads(said.out)


@pytest.mark.slow
def test_a_collapse_is_said_with_what_to_try(capsys: Capsys, folder: Path) -> None:
    said = insert(capsys, folder, "--limit", "3", "-o", folder / "q.onnx")
    assert said.code == 0
    line = warning(said, "may lose much")
    assert re.search("q.onnx: may lose .*; loss at the outputs: 0.[2-9]", line)
    assert "nothing was found to keep in float" in line and "runs measured" in line
    assert line.endswith(f" or --max-output-loss {LARGE_LOSS} in its place")
    words = ["--preprocess", "--batch", "--target", "--trt-version", "--keep-float", "--max-output-loss"]
    assert not set(words) & set(printed_command(said))
    again = ["insert", folder / "m.onnx", "--data", folder / "d.npz", *ALL[:2], "--limit", 3, "--condition", "auto"]
    assert printed_command(said) == [*map(str, again), "-o", str(folder / "q.conditioned.onnx")]
    assert insert(capsys, folder, "-q", "-o", folder / "q.onnx") == CommandOutput(0, "", "")


@pytest.mark.slow
def test_each_command_that_is_printed_runs_as_printed_until_the_loss_is_small(capsys: Capsys, folder: Path) -> None:
    said = insert(capsys, folder, "--trt-version", "10.3.0", "-o", folder / "an output.onnx")
    for _ in range(3):
        if "may lose much" not in said.err:
            break
        words = printed_command(said)
        assert "10.3.0" in words or words[0] == "sensitivity"
        said = run(capsys, *words)
    assert said.code == 0 and "may lose much" not in said.err


@pytest.mark.slow
def test_a_command_that_is_printed_leaves_the_written_model(capsys: Capsys, folder: Path) -> None:
    """Also where no -o was given, and where it is spelt in other ways."""
    words = printed_command(insert(capsys, folder))
    assert words[-2:] == ["-o", str(folder / "m.conditioned.qdq.onnx")]
    for spelling in (["-o", "q"], ["--output", "q"], ["--output=q"]):
        args = SimpleNamespace(words=["insert", "m.onnx", *spelling, "--keep-float", "2"], weights=None)
        line = insert_with_more_float(args, 0.2, Path("q"))  # type: ignore[arg-type]
        assert line == "qdqtool insert m.onnx --max-output-loss 0.2 -o q.float"


@pytest.mark.slow
def test_a_loss_that_is_met_is_exit_0(capsys: Capsys, folder: Path) -> None:
    said = insert(capsys, folder, "--max-output-loss", "0.1", "--json", "-o", folder / "q.onnx")
    facts = json.loads(said.out)
    assert said.code == 0 and facts["output_loss"] <= 0.1
    assert (facts["max_output_loss"], facts["max_output_loss_met"], facts["output_loss_large"]) == (0.1, True, False)
    search = facts["search"]
    assert search["after"] == facts["output_loss"] and search["before"] > 0.8
    assert {node for step in search["steps"] for node in step["nodes"]} == {
        one["site"] for one in facts["refusals"] if one["rule"] == "keep-float"
    }


@pytest.mark.slow
def test_a_loss_that_is_missed_is_exit_1_and_names_what_to_try(capsys: Capsys, folder: Path) -> None:
    asked = ("--max-output-loss", "1e-09", "-o", folder / "q.onnx")
    said = insert(capsys, folder, *asked)
    assert said.code == 1 and (folder / "q.onnx").is_file()
    line = warning(said, "--max-output-loss 1e-09: ")
    assert line.startswith("qdqtool: warning: --max-output-loss 1e-09: is not met: ")
    assert "; only all operators in float would reach it" in line
    assert f"; {folder / 'q.onnx'} is written " in line and "try: qdqtool insert " in line
    again = printed_command(said)
    assert again[-4:-2] == ["--condition", "auto"] and again[again.index("--max-output-loss") + 1] == "1e-09"
    quiet = insert(capsys, folder, *asked, "-q")
    assert (quiet.code, quiet.out) == (1, "") and warning(quiet, "is not met: ").split(" try:")[0] == line.split(
        " try:"
    )[0]
    facts = json.loads(insert(capsys, folder, *asked, "--json").out)
    assert facts["max_output_loss_met"] is False and facts["search"]["after"] > 1e-9


@pytest.mark.slow
def test_a_group_is_one_note_and_the_same_bytes_each_time(capsys: Capsys, tmp_path: Path) -> None:
    onnx.save(headed_net(6), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    said = insert(capsys, tmp_path, "-o", tmp_path / "one.onnx")
    (note,) = [line for line in said.err.splitlines() if "in float: " in line]
    assert note.startswith("qdqtool: note: y0, y1, y2, y3, y4, y5 stay in float: the 6 operators")
    assert "may lose" not in said.err and "left in float: 6 operators" in said.out
    assert insert(capsys, tmp_path, "-q", "-o", tmp_path / "two.onnx").code == 0
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_pairs_that_stood_there_are_measured_too(capsys: Capsys, folder: Path) -> None:
    assert insert(capsys, folder, "--keep-float", "0", "-q", "-o", folder / "q.onnx").code == 0
    words = ["insert", folder / "q.onnx", "--data", folder / "d.npz", *ALL, "-o", folder / "again.onnx"]
    said = run(capsys, *words)
    assert said.code == 0 and re.search("loss at the outputs: 0.[89]", said.out)
    assert "qdqtool peel " in warning(said, "may lose much")


def test_data_that_can_be_walked_once_tell_no_loss(folder: Path) -> None:
    from qdqtool import InsertOptions, insert
    from qdqtool.errors import QdqError
    from qdqtool.match.plan import PlanOptions

    options = InsertOptions(plan=PlanOptions(float_heads="none"))
    model = onnx.load(folder / "m.onnx")
    done = insert(model, data=iter([{"x": samples()}]), options=options)
    assert done.output_loss is not None and done.output_loss.value is None
    assert re.search("not measured, .*only once", done.output_loss.summary())
    for asked, option in ((InsertOptions(keep_float=1), "keep-float"), (InsertOptions(max_output_loss=0.1), "max-out")):
        with pytest.raises(QdqError, match=f"--{option}.*only once"):
            insert(model, data=iter([{"x": samples()}]), options=asked)


def test_an_output_that_is_no_float_tells_no_loss(tmp_path: Path, capsys: Capsys) -> None:
    model = onnx.load(write_net(tmp_path))
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["y"], ["top"], axis=1))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("top", onnx.TensorProto.INT64, None))
    onnx.save(model, tmp_path / "m.onnx")
    said = run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz")
    assert said.code == 0
    assert re.search("not measured, .*float32.*onnxruntime", said.out)


@pytest.mark.parametrize("words", [("--keep-float", "1"), ("--condition", "auto"), ("--max-output-loss", "0.1")])
def test_nothing_in_int8_is_nothing_to_search(capsys: Capsys, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Before: `has no float32 activation that can be observed`, exit 2."""
    model = model_of("g (float[N,3] x) => (float[N,4] y) <float[3,4] w> { y = MatMul(x, w) }")
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    said = run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "--allow-empty", *words)
    assert said.code == 0 and "loss at the outputs: 0 (0: none" in said.out


# The pooled skip of a block: its pair stands before the pool while the other branch runs in INT8, else after it.
POOLED = """g (float[N,8,12,12] x) => (float[N,8,6,6] y)
  <float[8,8,3,3] w0, float[8,1,3,3] w1, float[8,8,1,1] w2, float[8,8,1,1] w3> {
  a = Conv<pads=[1,1,1,1]>(x, w0) r = Relu(a) p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r)
  b = Conv<pads=[1,1,1,1],strides=[2,2],group=8>(r, w1) c = Conv(b, w2) d = Add(c, p) e = Relu(d) y = Conv(e, w3) }"""


@pytest.mark.parametrize("words", [("--points-only", "--keep-float", "4"), ("--condition", "correct")])
def test_a_point_that_moves_to_a_tensor_without_a_scale_is_no_error(
    capsys: Capsys, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: `p: no scale for this point; calibrate it, or give a table that has it`, exit 2."""
    from qdqtool.measuring import policies

    monkeypatch.setattr(policies, "AUTO_FLOOR", 0.0)
    monkeypatch.setattr(policies, "AUTO_MACS", 1.0)
    monkeypatch.setattr(policies, "AUTO_GAIN", 0.0)
    onnx.save(model_of(POOLED), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    said = insert(capsys, tmp_path, *words, "-o", tmp_path / "q.onnx")
    assert said.code == 0 and "left in float: " in said.out
    again = run(capsys, "insert", tmp_path / "q.onnx", "-o", tmp_path / "again.onnx")
    assert again.code == 0


def test_where_no_operator_in_float_helps_training_is_left(
    capsys: Capsys, folder: Path, monkeypatch: MonkeyPatch
) -> None:
    """With edited weights and a limit of the user's own: `sensitivity` would find nothing either."""
    found = SearchResult(steps=(), before=0.4, operators=15)
    monkeypatch.setattr("qdqtool.conditioning.before_insert.choose_kept", lambda *_: found)
    said = insert(capsys, folder, "--condition", "auto", "--max-output-loss", "1e-09", "-o", folder / "q.onnx")
    line = warning(said, "is not met: ")
    assert said.code == 1 and "nothing was found to keep in float" in line
    assert "then: qdqtool finetune " in line and "try:" not in line, line.split("try:")
