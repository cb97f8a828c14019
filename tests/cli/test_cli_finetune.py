# SPDX-License-Identifier: Apache-2.0
"""The command finetune: what it prints, what it writes, and one line for what cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from tests.cli.command import contents, refused, run, write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

QUICK = ("--steps", 6, "--evaluate-every", 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `m.onnx`, its data `d.npz` and, with Q/DQ, `q.onnx`."""
    folder = tmp_path_factory.mktemp("made")
    qdqtool.insert(write_net(folder), data=folder / "d.npz", output=folder / "q.onnx")
    return folder


@pytest.fixture
def placed(made: Path, tmp_path: Path) -> Path:
    """`q.onnx` in a folder of the test's own, beside what it was made of."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "q.onnx"


def test_it_says_what_it_did(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(placed.parent)
    said = run(capsys, "finetune", placed, "--data", placed.parent / "d.npz", *QUICK)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("trained ")
    assert "5 samples, 1 held out" in lines[0]
    assert lines[1].startswith("6 of 6 steps, ")
    assert lines[2].startswith("held-out loss: ")
    assert any(line.startswith("  y: ") and line.endswith(" dB") for line in lines)
    assert lines[-3] == f"wrote {placed.with_name('q.finetuned.onnx')}"
    tuned = placed.with_name("q.finetuned.onnx")
    assert lines[-1].startswith(f"build {tuned} with the command for the model before training")
    assert lines[-2].endswith(f": qdqtool evaluate {tuned} --baseline FP32.onnx --data TEST --labels LABELS")
    after = contents(placed.parent)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"q.finetuned.onnx"}
    onnx.checker.check_model(onnx.load(placed.with_name("q.finetuned.onnx")))


def test_json_is_one_document(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "finetune", placed, "--data", placed.parent / "d.npz", *QUICK, "--json", "-q")
    document: dict[str, Any] = json.loads(said.out)
    assert said.err == ""
    assert document["schema"] == 1
    assert document["steps"] == document["planned"] == 6
    assert document["file"].endswith("q.finetuned.onnx")
    assert set(document["checked"]) == {"forward", "gradients"}
    assert document["outputs"][0]["output"] == "y"
    assert document["after"] <= document["before"]


def test_quiet_says_nothing(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "finetune", placed, "--data", placed.parent / "d.npz", *QUICK, "-q")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_options_reach_the_training(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of these leaves its mark in the log or the file; together they go through every group of options."""
    folder = placed.parent
    np.savez(folder / "l.npz", x=np.load(folder / "d.npz")["x"], classes=np.arange(6) % 3)
    words = [
        "--label",
        "y:ce:0.5:classes",
        "--distill-weight",
        0.5,
        "--ranges",
        "learn",
        "--bn",
        "fold",
        "--freeze",
        "^w1$",
    ]
    words += ["--grad-accum", 2, "--batch", 2, "--schedule", "soft-start", "--lr", 0.001, "--scale-lr", 0.01]
    words += [
        "--optimizer",
        "adamw,betas=0.8:0.99,epsilon=1e-6",
        "--weight-decay",
        0.01,
        "--l1",
        1e-4,
        "--l2",
        1e-4,
        "--ema-decay",
        0.5,
    ]
    words += ["--grad-clip", 0, "--seed", 3, "--patience", 0, "--log", folder / "log", "--backend", "builtin"]
    said = run(capsys, "finetune", placed, "--data", folder / "l.npz", *QUICK, *words, "-o", folder / "t.onnx")
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert len(steps) == 6
    assert any("y:ce" in name for name in steps[0]["parts"])
    assert any(name.startswith("match:") for name in steps[0]["parts"])
    assert max(line["rate"] for line in steps) == pytest.approx(0.001)
    before, after = (
        {t.name: t.SerializeToString() for t in onnx.load(path).graph.initializer}
        for path in (placed, folder / "t.onnx")
    )
    assert before["w1"] == after["w1"]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--steps", 0], "--steps: 0 is not a valid number"),
        (["--epochs", 0], "--epochs: 0 is not a valid number"),
        (["--keep", 2], "--keep: is for a folder of checkpoints, and none is named"),
        (["--loss-scale", 8], "--loss-scale: is for half precision"),
        (["--lr", 0], "--lr: 0 is not more than 0"),
        (["--l2", -1], "--l2: -1 is not 0 or more"),
        (["--schedule", "cosin"], "--schedule: 'cosin' is not one; choose one of cosine"),
        (["--schedule", "step=60:30"], "--schedule: the percents of 'step=60:30' do not rise between 0 and 100"),
        (["--optimizer", "sgd"], "--optimizer sgd: has no default learning rate"),
        (["--warmup", 2], "--warmup: 2 is not a share"),
        (["--resume"], "--resume: continues from a checkpoint"),
        (["--augment", "rotate"], "--augment: 'rotate' is not one"),
        (["--label", "y:cee"], "--label y:cee: names none of the kinds"),
        (["--label", "y:ce"], "'y_label'"),
        (["--distill", "y"], "--distill y"),
        (["--freeze", "nosuch"], "nosuch"),
        (["--eval-labels", "l.csv"], "--eval-labels: belongs to --eval-data, which is not given"),
        (["--batch", 0], "--batch: 0 is not a number of samples"),
        (["--distill-weight", 0], "the loss has no terms"),
    ],
)
def test_one_line_for_what_cannot_be(
    placed: Path, capsys: pytest.CaptureFixture[str], words: list[object], reported: str
) -> None:
    before = contents(placed.parent)
    refused(run(capsys, "finetune", placed, "--data", placed.parent / "d.npz", *words), reported)
    assert contents(placed.parent) == before


def test_a_plain_model_is_quantized_and_trained(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = placed.parent
    words = ["--data", folder / "d.npz", "--relu6", "--blocks", "--steps", 2, "-o", folder / "plain.onnx"]
    said = run(capsys, "finetune", folder / "m.onnx", *words)
    assert said.code == 0, said.err
    assert "note: there was no Q/DQ: placed on" in said.err and "wrote" in said.out


def test_a_benchmark_needs_no_data_and_writes_nothing(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(placed.parent)
    said = run(capsys, "finetune", placed, "--benchmark", 3, "--batch", 2)
    head, row = (line.split() for line in said.out.splitlines())
    assert head == ["workers", "images/s", "data", "gradient", "exchange", "update"]
    assert row[0] == "1"
    document = json.loads(run(capsys, "finetune", placed, "--benchmark", 3, "--json").out)
    (speed,) = document["rows"]
    assert sum(speed["shares"].values()) == pytest.approx(1)
    assert speed["images_per_second"] > 0
    assert contents(placed.parent) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--log", "x.jsonl"], "--log: cannot be combined with --benchmark"),
        (["-o", "x.onnx"], "--output: cannot be combined with --benchmark"),
        (["--labels", "folders"], "--labels: cannot be combined with --benchmark"),
        (["--steps", 3], "--steps: cannot be combined with --benchmark"),
        (["--data", "d.npz"], "not allowed with argument --benchmark"),
    ],
)
def test_what_a_benchmark_has_no_use_for(
    made: Path, words: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, "finetune", made / "q.onnx", "--benchmark", 3, *words)
    assert said.code == 2
    assert message in said.err


def test_missing_data(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = placed.parent
    refused(run(capsys, "finetune", placed, "--data", folder / "none.npz"), "none.npz: does not exist")


def test_betas_that_are_none(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("finetune", placed, "--data", "d.npz", "--optimizer", "adamw,betas=0.9")
    refused(run(capsys, *words), "--optimizer adamw,betas: '0.9' is not two numbers")
