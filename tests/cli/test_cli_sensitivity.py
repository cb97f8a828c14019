# SPDX-License-Identifier: Apache-2.0
"""`qdqtool sensitivity` and `insert --keep-float`: what they print, their JSON, what they refuse."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.main import main, parser_of
from qdqtool.cli.next_steps import after_sensitivity
from qdqtool.measuring.policies import SensitivityRanking
from qdqtool.measuring.sensitivity_runner import OperatorLoss, OperatorWork
from qdqtool.scales import ScaleTable
from qdqtool.verbs.sensitivity import SensitivityResult
from tests.collapsing_nets import residual_net, samples


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    shutil.copy(models / "digits_detector.onnx", tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", images=np.load(models / "digits_calib.npz")["images"][:2])
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_table(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = run(capsys, "sensitivity", folder / "m.onnx", "--data", folder / "d.npz", "--local", "--top", 2)
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["operator", "own", "loss", "in", "float", "only", "INT8", "MACs"]
    assert len(lines) == 6 and lines[3] == "and 11 more"
    assert all(line.split()[-3:-1] == ["-", "-"] and line.endswith("%") for line in lines[1:3])
    assert re.match("loss .* 13 operators ", lines[4])
    assert lines[5].startswith("nothing to keep")
    assert lines[4].endswith("; method auto, calibration images)")
    assert sorted(path.name for path in folder.iterdir()) == ["d.npz", "m.onnx"]


@pytest.mark.slow
def test_a_log_has_a_line_for_each_operator_that_is_run(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    words = ("sensitivity", folder / "m.onnx", "--data", folder / "d.npz", "--method", "mse")
    _, out, err = run(capsys, *words)
    scales, alone, *ends = (line.removeprefix("qdqtool: measured: ") for line in err.splitlines())
    assert re.fullmatch(r"scales: \d+ tensors, method mse, 2 samples", scales)
    rows = [line.split() for line in out.splitlines() if line.endswith("%")]
    assert alone == f"13 operators, each alone: {rows[0][0]} loses most, {rows[0][2]}"
    ranked = [f"{row[0]}: own loss {row[2]}, in float {row[3]}, only INT8 {row[4]}" for row in rows[:8]]
    assert ends == [f"{line}, operator {number} of 8" for number, line in enumerate(ranked, 1)]
    assert run(capsys, *words)[2] == err, "the same input gives the same log"
    assert run(capsys, *words, "--local")[2].splitlines() == err.splitlines()[:2]
    assert run(capsys, *words, "--local", "-q")[2] == ""


def test_a_terminal_has_no_line_for_each_operator(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    words = ("sensitivity", folder / "m.onnx", "--data", folder / "d.npz", "--method", "mse", "--local")
    assert "measured: " not in run(capsys, *words)[2]


@pytest.mark.slow
def test_json_and_candidates(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    words = [
        "sensitivity",
        folder / "m.onnx",
        "--data",
        folder / "d.npz",
        "--local",
        "--method",
        "auto",
        "--candidates",
    ]
    code, out, _ = run(capsys, *words, "--json", "--top", 3)
    facts = json.loads(out)
    assert code == 0 and facts["schema"] == 1 and facts["method"] == "auto" and facts["samples"] == 2
    assert len(facts["operators"]) == 3
    assert set(facts["operators"][0]) == {"node", "op", "local", "without", "only", "macs", "share"}
    assert all(len(pair) == 2 for pair in facts["candidates"]["images"].values())
    code, out, _ = run(capsys, *words, "--json", "--top=-1")
    assert code == 0 and json.loads(out)["operators"] == []
    code, out, _ = run(capsys, *words, "--top", 1)
    assert any(line.startswith("images: auto:") for line in out.splitlines())
    assert any(line.startswith("  mse ") and " amax " in line and " loss " in line for line in out.splitlines())


@pytest.mark.slow
def test_runs_end_to_end_fill_the_columns(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = run(capsys, "sensitivity", folder / "m.onnx", "--data", folder / "d.npz", "--json")
    facts = json.loads(out)
    assert code == 0 and all(0.0 <= one["without"] <= 1.0 for one in facts["operators"][:8])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--candidates", "--method", "mse"], "--candidates: there are none with --method mse; add --method auto"),
        (["--method", "atuo"], "--method atuo: no such method; did you mean auto?"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], folder: Path, words: list[str], message: str) -> None:
    code, out, err = run(capsys, "sensitivity", folder / "m.onnx", "--data", folder / "d.npz", *words)
    assert code == 2 and out == "" and err == f"qdqtool: error: {message}\n"


@pytest.mark.slow
def test_insert_names_what_it_keeps_and_why(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    words = ["insert", folder / "m.onnx", "--data", folder / "d.npz", "--method", "auto", "--float-heads", "none"]
    code, out, err = run(capsys, *words, "--keep-float", 1, "-o", folder / "q.onnx")
    assert code == 0 and "left in float: 1 operator " in out
    assert "stays in float: " in err and "lowers the loss" in err
    name = err.split("note: ")[1].split(" stays")[0]
    code, out, _ = run(capsys, "insert", folder / "q.onnx", "--explain", name)
    assert code == 0 and re.search(f"{re.escape(name)}: .*float .*rule keep-float: ", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep-float", "few"], "--keep-float few: is not an operator of the model"),
        (["--keep-float", "1,2"], "argument --keep-float: '1,2' is neither auto, nor a number, nor names"),
        (["--keep-float", "auto"], "--keep-float: needs data for a measurement, and no data is given; give --data"),
        (
            ["--max-output-loss", "0.1"],
            "--max-output-loss: needs data for a measurement, and no data is given; give --data",
        ),
    ],
)
def test_insert_refuses(capsys: pytest.CaptureFixture[str], folder: Path, words: list[str], message: str) -> None:
    code, _, err = run(capsys, "insert", folder / "m.onnx", *words)
    assert code == 2 and message in err
    assert not (folder / "m.qdq.onnx").exists()


@pytest.mark.slow
def test_a_budget_that_is_met_keeps_nothing(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    words = ["insert", folder / "m.onnx", "--data", folder / "d.npz", "--max-output-loss", "0.9", "--json"]
    code, out, _ = run(capsys, *words, "-o", folder / "q.onnx")
    assert code == 0 and not [one for one in json.loads(out)["refusals"] if one["rule"] == "keep-float"]


@pytest.mark.slow
def test_groups_are_told_where_the_loss_is_large(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx.save(residual_net(8, 6), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=samples())
    words = ["sensitivity", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "--method", "max"]
    code, out, err = run(capsys, *words, "--top", "3")
    lines = out.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("loss with all of these in float")]
    rows = lines[head + 1 : -2]
    assert code == 0 and len(rows) == 3 and any(row.startswith("the last 2 of 8 residual blocks") for row in rows)
    assert [float(row.split()[-2]) for row in rows] == sorted(float(row.split()[-2]) for row in rows)
    told = re.findall(r"measured: (.+): loss with all of these in float (\S+), group (\d+) of (\d+)\n", err)
    assert {(row[:60].rstrip(), row.split()[-2]) for row in rows} <= {one[:2] for one in told}
    assert [(one[2], one[3]) for one in told] == [(str(n + 1), str(len(told))) for n in range(len(told))]
    code, out, _ = run(capsys, *words, "--json")
    groups = json.loads(out)["groups"]
    assert code == 0 and {"group", "nodes", "without", "share"} == groups[0].keys() and groups[0]["without"] < 0.1
    code, out, _ = run(capsys, *words, "--local")
    assert code == 0 and "all in float" not in out


@pytest.mark.parametrize(
    ("loss", "without", "share", "keep", "ending"),
    [
        (0.75, 0.34, 0.003, "", " --condition auto -o m.better.qdq.onnx"),  # insert keeps it anyway, and loses much
        (0.75, 0.74, 0.003, "", " --condition auto -o m.better.qdq.onnx"),
        (0.75, 0.34, 0.2, "", " --keep-float a -o m.better.qdq.onnx"),  # more than insert keeps by itself
        (0.05, 0.01, 0.003, "x", " --keep-float x,a -o m.better.qdq.onnx"),
        (0.05, 0.01, 0.003, "", ""),
        (0.004, 0.001, 0.2, "", ""),
    ],
)
def test_only_an_insert_that_differs_from_a_plain_one_is_proposed(
    loss: float, without: float, share: float, keep: str, ending: str
) -> None:
    """It proposed what plain insert had made already, as X.better."""
    found = (OperatorLoss("a", "a", "Conv", 0.1, OperatorWork(1, 1), share, without),)
    words = ["sensitivity", "m.onnx", "--data", "d.npz", *(["--keep-float", keep] if keep else [])]
    args = parser_of("sensitivity")[0].parse_args(words[1:])
    lines = after_sensitivity(args, SensitivityResult(SensitivityRanking(found, loss), ScaleTable()))
    assert ["next: qdqtool insert m.onnx --data d.npz" + ending] * bool(ending) == [
        one for one in lines if "next" in one
    ]
    assert (re.search("keeps a .*by itself", lines[0]) is not None) == (
        without < 0.8 * loss and share < 0.03 and not keep
    )
