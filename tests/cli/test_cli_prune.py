# SPDX-License-Identifier: Apache-2.0
"""`qdqtool prune` as it is typed: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]


def test_prune_writes_the_model_and_says_what_went(tmp_path: Path, capsys: Capsys) -> None:
    said = run(capsys, "prune", write_net(tmp_path), "--ratio", "0.5", "-o", tmp_path / "p.onnx")
    assert said.code == 0 and said.err == ""
    assert "pruning ratio" in said.out and "8 of 11 channels " in said.out and "2 of 2 groups " in said.out
    assert ": y: y " in said.out
    end = f"to recover accuracy, fine-tune it: qdqtool finetune, with --data and --teacher {tmp_path / 'm.onnx'}"
    assert said.out.endswith(f"wrote {tmp_path / 'p.onnx'}\n{end}\n")
    onnx.checker.check_model(tmp_path / "p.onnx")


@pytest.mark.parametrize("words", [["--dry-run"], ["--explain", "c1"], ["--dry-run", "--json"]])
def test_looking_writes_nothing(words: list[str], tmp_path: Path, capsys: Capsys) -> None:
    path = write_net(tmp_path)
    before = contents(tmp_path)
    assert run(capsys, "prune", path, "--ratio", "0.5", *words).code == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "c1",
            [
                *["c1: keeps 2 of 4", "  c1: made", "  c1: along", "  c2: read"],
                *["  parameters 292 -> 110", "  multiply-adds 18432 -> 6912"],
            ],
        ),
        (
            "c2",
            [
                *["c2: keeps 2 of 4", "  c2: made", "  y: read"],
                *["  parameters 156 -> 42", "  multiply-adds 9228 -> 2310"],
            ],
        ),
        ("y", ["y: y is an output of the model"]),
    ],
)
def test_explain(name: str, lines: list[str], tmp_path: Path, capsys: Capsys) -> None:
    said = run(capsys, "prune", write_net(tmp_path), "--ratio", "0.5", "--explain", name)
    assert said.out.splitlines() == lines


def test_json(tmp_path: Path, capsys: Capsys) -> None:
    words = ("prune", write_net(tmp_path), "--ratio", "0.5", "--data", tmp_path / "d.npz", "-o", tmp_path / "p.onnx")
    found = json.loads(run(capsys, *words, "--json").out)
    assert list(found) == [
        "schema",
        "file",
        "channels",
        "prunable",
        "parameters",
        "macs",
        "difference",
        "corrected",
        "reconstructed",
        "held_out",
        "shared_out",
        "forecast",
        "groups",
        "pinned",
    ]
    assert found["difference"] <= 1e-5 and found["file"] == str(tmp_path / "p.onnx")
    assert found["groups"][0] == {
        "name": "c1",
        "kept": 2,
        "total": 4,
        "operators": ["c1: made", "c1: along", "c2: read"],
        "parameters": {"before": 292, "after": 110},
        "macs": {"before": 18432, "after": 6912},
    }
    assert found["forecast"] is None and found["held_out"][0]["output"] == "y"
    assert found["macs"]["after"] < found["macs"]["before"]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["-pth", "0.99"], [4, 4]),  # TAO's -nf 16 keeps all
        (["-pth", "1", "-pg", "1", "-nf", "1"], [1, 1]),
        (["-pth", "1", "-pg", "2", "-nf", "1"], [2, 2]),
        (["--ratio", "0.3"], [3, 3]),
        (["--ratio", "0.5", "-el", "^c1$"], [2]),
        (["--ratio", "0.5", "--exclude", "c2"], [2]),
        (["--ratio", "0.5", "-n", "L2", "-eq", "intersection"], [2, 2]),
    ],
)
def test_options_say_how_much_goes(words: list[str], kept: list[int], tmp_path: Path, capsys: Capsys) -> None:
    found = json.loads(run(capsys, "prune", write_net(tmp_path), *words, "--dry-run", "--json").out)
    assert [group["kept"] for group in found["groups"]] == kept


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--ratio", "0.5", "--macs", "0.5"], ["--ratio and --macs", "exclude each other"]),
        (["--ratio", "-1"], ["--ratio", "-1 is not a share"]),
        (["--macs", "0.001"], ["--macs", "too little"]),
        (["--exclude", "nowhere"], ["nowhere matches no operator"]),
        (["--explain", "nowhere"], ["nowhere is neither a group"]),
        (["--latency", "0.5", "--macs", "0.5"], ["--macs and --latency", "exclude each other"]),
        (["--latency", "0.5", "--for", "abacus"], ["abacus", "no such device"]),
        (["--ratio", "0.5", "--for", "orin-nx"], ["--for", "give --latency"]),
        (["--ratio", "0.5", "--trt-version", "8.6.1"], ["--trt-version", "give --latency"]),
        (["--latency", "0.5", "--trt-version", "0.1"], ["0.1"]),
        (["--ratio", "0.5", "--importance", "taylor"], ["--importance taylor", "give --data"]),
    ],
)
def test_refusals(words: list[str], parts: list[str], tmp_path: Path, capsys: Capsys) -> None:
    path = write_net(tmp_path)
    before = contents(tmp_path)
    refused(run(capsys, "prune", path, *words, "-o", tmp_path / "p.onnx"), *parts)
    assert contents(tmp_path) == before


def test_a_forecast_is_labeled_as_one(tmp_path: Path, capsys: Capsys) -> None:
    words = ("prune", write_net(tmp_path), "--latency", "1", "--for", "orin-nx", "--trt-version", "8.6.1", "--dry-run")
    assert re.search("forecast for orin-nx .*not measured", run(capsys, *words).out)
    found = json.loads(run(capsys, *words, "--json").out)["forecast"]
    assert found["before_us"] == found["after_us"] > 0 and "not measured" in found["source"]


@pytest.mark.parametrize("importance", ["taylor", "activation"])
def test_importance(importance: str, tmp_path: Path, capsys: Capsys) -> None:
    path = write_net(tmp_path)
    words = ("--importance", importance, "--data", tmp_path / "d.npz", "-o", tmp_path / "p.onnx")
    said = run(capsys, "prune", path, "--ratio", "0.5", *words)
    assert said.code == 0 and " dB to the original" in said.out and said.err == ""


@pytest.mark.parametrize("words", [["-n", "L1"], ["-eq", "sum"], ["--ratio", "half"]])
def test_words_that_no_option_takes(words: list[str], tmp_path: Path, capsys: Capsys) -> None:
    refused(run(capsys, "prune", write_net(tmp_path), *words), f"prune: argument {words[0]}")


def test_the_model_is_never_written_over(tmp_path: Path, capsys: Capsys) -> None:
    path = write_net(tmp_path)
    refused(run(capsys, "prune", path, "--ratio", "0.5", "-o", path), "m.onnx")


def test_of_many_operators_that_keep_channels_eight_are_printed(tmp_path: Path, capsys: Capsys) -> None:
    heads = "  ".join(f"y{place} = Conv(a, u{place})" for place in range(10))
    outputs = ", ".join(f"float[1,2,4,4] y{place}" for place in range(10))
    weights = ", ".join(f"float[2,8,1,1] u{place}" for place in range(10))
    text = f"g (float[1,3,4,4] x) => ({outputs}) <float[8,3,1,1] w, {weights}> {{ a = Conv(x, w)  {heads} }}"
    onnx.save(model_of(text), tmp_path / "m.onnx")
    said = run(capsys, "prune", tmp_path / "m.onnx", "--ratio", "0.5", "--dry-run").out
    assert said.count("keeps all ") == 8 and "and 2 more (--json)" in said


def test_a_model_that_falls_apart_is_told_so_before_the_next_step(tmp_path: Path, capsys: Capsys) -> None:
    words = ("--ratio", "0.99", "--data", tmp_path / "d.npz", "--no-correct", "-o", tmp_path / "p.onnx")
    lines = run(capsys, "prune", write_net(tmp_path), *words).out.splitlines()
    (place,) = (number for number, line in enumerate(lines) if "much is lost at y: its error is " in line)
    assert "finetune" in lines[place]
    assert lines[-1].startswith("next: qdqtool finetune ") and place < len(lines) - 1
