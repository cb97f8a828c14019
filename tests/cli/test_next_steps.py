# SPDX-License-Identifier: Apache-2.0
"""Every next step that a verb prints runs as it is printed; what qdqtool cannot run itself is checked as text."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

from qdqtool import command_lines
from qdqtool.cli import next_steps
from qdqtool.cli.next_steps import after_finetune
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.decisions import Provenance
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure
from qdqtool.metadata import store_table
from qdqtool.scales import ScaleTable
from qdqtool.workflows.judge import Judge
from tests.cli.command import CommandOutput, run, write_net
from tests.detector_model import write_images
from tests.graphs import SMALL_NET, model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
MODEL, DATA = "a model.onnx", "digits calib.npz"
FEW = ("--data", DATA, "--limit", "2")
CACHE = "only for what reads a calibration cache, such as DeepStream: "
SHAPES = "--shapes=images:1x1x96x96"  # the model leaves its batch open


@pytest.fixture
def bench(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled detector and its data under names with blanks, in the folder where the commands run."""
    shutil.copy(models / "digits_detector.onnx", tmp_path / MODEL)
    shutil.copy(models / "digits_calib.npz", tmp_path / DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def steps_of(said: CommandOutput) -> list[list[str]]:
    """The next steps that a command printed, split as a shell splits them."""
    assert said.code == 0, said.err
    return [shlex.split(line.removeprefix("next: ")) for line in said.out.splitlines() if line.startswith("next: ")]


def step_of(said: CommandOutput) -> list[str]:
    (step,) = steps_of(said)
    return step


def cache_step_of(said: CommandOutput) -> list[str]:
    """The command for who needs a calibration cache, which stands after the next step."""
    assert said.code == 0, said.err
    (step,) = [line for line in said.out.splitlines() if line.startswith(CACHE)]
    return shlex.split(step.removeprefix(CACHE))


def follow(capsys: Capsys, step: list[str]) -> CommandOutput:
    assert step[0] == "qdqtool"
    said = run(capsys, *step[1:])
    assert said.code == 0, f"{shlex.join(step)}\n{said.err}"
    return said


@pytest.mark.slow
def test_condition_insert_peel_and_trtexec(bench: Path, capsys: Capsys) -> None:
    version = ("--trt-version", "jp4.6", "--heads", "stage4.first")
    step = step_of(run(capsys, "condition", MODEL, *FEW, *version, "--method", "max"))
    assert step[1:3] == ["insert", "a model.conditioned.onnx"]
    assert step[3:] == [*FEW, "--method", "max", *version]
    said = follow(capsys, step)
    assert step_of(said)[:2] == ["trtexec", "--onnx=a model.conditioned.qdq.onnx"]
    step = cache_step_of(said)
    assert step[1:3] == ["peel", "a model.conditioned.qdq.onnx"]
    assert step[3:] == ["--target", "gpu", "--trt-version", "jp4.6", "--source", "a model.conditioned.onnx"]
    step = step_of(follow(capsys, step))
    stem = "a model.conditioned.qdq"
    calib = [f"--calib={stem}.cache", f"--saveEngine={stem}.peeled.engine"]
    assert step == ["trtexec", f"--onnx={stem}.peeled.onnx", "--workspace=1024", SHAPES, "--int8", "--fp16", *calib]


@pytest.mark.slow
def test_the_source_of_a_conditioned_insert_is_taken(bench: Path, capsys: Capsys) -> None:
    words = ("--condition", "auto", "--trt-version", "8502", "-o", "q.onnx")
    step = cache_step_of(run(capsys, "insert", MODEL, *FEW, *words))
    assert step[-2:] == ["--source", MODEL]
    follow(capsys, step)


@pytest.mark.parametrize(
    ("version", "flags"),
    [("8.2.1", ["--workspace=1024"]), pytest.param("10.3", [], marks=pytest.mark.slow), ("jp6.1", [])],
)
def test_a_tensorrt_that_builds_q_dq_is_told_to_build_it(
    bench: Path, capsys: Capsys, version: str, flags: list[str]
) -> None:
    """A cache, which loses more, was the next step up to TensorRT 10."""
    said = run(capsys, "insert", MODEL, *FEW, "--trt-version", version, "-o", "q.onnx")
    assert step_of(said) == ["trtexec", "--onnx=q.onnx", *flags, SHAPES, "--int8", "--fp16", "--saveEngine=q.engine"]
    assert cache_step_of(said)[1] == "peel" and version in cache_step_of(said)
    assert "/usr/src/tensorrt/bin/trtexec" in said.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("--trt-version", "10.3"), ["--int8", "--fp16"]),
        pytest.param(("--trt-version", "11.4"), [], marks=pytest.mark.slow),
        ((), []),
    ],
)
def test_improve_ends_with_the_build(
    bench: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], flags: list[str]
) -> None:
    monkeypatch.setattr(Judge, "loss", lambda self, model: Figure(0.0, Interval(0.0, 0.0)))
    monkeypatch.setattr(import_module("qdqtool.workflows.improve"), "stages_of", lambda *_: ())
    assert run(capsys, "insert", MODEL, *FEW, *words, "--rest", "fp32", "-q", "-o", "q.onnx").code == 0
    said = run(capsys, "improve", "q.onnx", "--data", DATA, "--max-loss", "0.1", *words, "-o", "o.onnx")
    assert step_of(said) == ["trtexec", "--onnx=o.onnx", SHAPES, *flags, "--saveEngine=o.engine"]
    said = run(
        capsys, "improve", "q.onnx", "--data", DATA, "--max-loss", "0.1", "--trt-version", "7103", "-o", "o.onnx"
    )
    assert step_of(said) == ["qdqtool", "peel", "o.onnx", "--target", "gpu", "--trt-version", "7103"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--fold-bn",), ("--fold-constants",), ("--points-only",), ("--target", "dla")])
def test_insert_is_followed_by_the_peel_that_fits_it(bench: Path, capsys: Capsys, words: tuple[str, ...]) -> None:
    step = step_of(run(capsys, "insert", MODEL, *FEW, "--trt-version", "7103", *words))
    assert step[1] == "peel" and "7103" in step and ("--source" in step) == ("--fold-bn" not in words)
    assert step_of(follow(capsys, step))[0] == ("qdqtool" if "dla" in words else "trtexec")


@pytest.mark.slow
def test_estimated_scales_and_pairs_that_were_there(bench: Path, capsys: Capsys) -> None:
    said = run(capsys, "insert", MODEL, "--trt-version", "8502", "-o", "q.onnx")
    step = cache_step_of(said)
    assert step[-1] == "--allow-estimated"
    follow(capsys, step)
    for more in ((), ("--requantize",)):
        step = cache_step_of(run(capsys, "insert", "q.onnx", *more, "--trt-version", "8502", "-o", "r.onnx"))
        assert "--source" not in step
        follow(capsys, step)


@pytest.mark.slow
def test_a_tensorrt_without_caches_takes_the_model_itself(bench: Path, capsys: Capsys) -> None:
    for words in (("--trt-version", "11.0.0"), ()):
        said = run(capsys, "insert", MODEL, *FEW, *words, "-o", "q.onnx")
        assert step_of(said) == ["trtexec", "--onnx=q.onnx", SHAPES, "--saveEngine=q.engine"]
        assert ("add --trt-version" in said.out) == (not words)
    said = run(capsys, "insert", MODEL, *FEW, "--target", "dla", "-o", "q.onnx")
    assert "10.7.0" in step_of(said)
    follow(capsys, step_of(said))


@pytest.mark.slow
def test_calibrate_and_shards(bench: Path, capsys: Capsys) -> None:
    step = step_of(run(capsys, "calibrate", MODEL, *FEW))
    assert step == ["qdqtool", "insert", MODEL, "--scales", "a model.scales.json"]
    follow(capsys, step)
    step = step_of(run(capsys, "calibrate", MODEL, *FEW, "--shard", "1/1", "-o=-part.state"))
    assert step == ["qdqtool", "calibrate", "--merge", "./-part.state", "-o", "a model.scales.json"]
    assert steps_of(follow(capsys, step)) == []
    said = run(capsys, "calibrate", MODEL, *FEW, "--shard", "1/2", "-o", "part.state")
    assert steps_of(said) == [] and re.search("all 2 shards .*, qdqtool calibrate --merge ", said.out)


@pytest.mark.slow
def test_ptq_and_the_flags_of_old_versions(bench: Path, capsys: Capsys) -> None:
    words = ("ptq", MODEL, *FEW, "--target", "dla", "--trt-version", "7103")
    step = step_of(run(capsys, *words))
    assert step == ["qdqtool", *words, "--emit", "polygraphy-script"], "this trtexec cannot be told of the box head"
    assert step_of(follow(capsys, step))[:3] == ["polygraphy", "run", MODEL]
    no_box = onnx.load(MODEL)
    del no_box.graph.output[1]
    onnx.save(no_box, MODEL)
    said = run(capsys, *words)
    old, dla = ["--explicitBatch", "--workspace=1024"], ["--useDLACore=0", "--allowGPUFallback"]
    files = [f"--onnx={MODEL}", "--calib=a model.cache", "--saveEngine=a model.engine"]
    assert step_of(said) == ["trtexec", files[0], *old, SHAPES, "--int8", "--fp16", files[1], *dla, files[2]]


def test_a_trtexec_that_is_not_known_is_not_named(bench: Path, capsys: Capsys) -> None:
    said = run(capsys, "ptq", MODEL, *FEW, "--target", "gpu", "--trt-version", "5.1.0")
    assert steps_of(said) == [] and "wrote a model.cache" in said.out


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"labels": "l.json", "eval_names": "coco"},
            "--data TEST --labels LABELS --names coco",
        ),
        (
            {"labels": "folders", "preprocess": "imagenet"},
            "--data TEST --preprocess imagenet",
        ),
        ({"teacher": "f.onnx"}, "f.onnx t.onnx --data TEST"),
        ({"was_plain": True}, "m.onnx t.onnx --data TEST"),
        (
            {},
            "--data TEST --labels LABELS",
        ),  # two models in INT8: how far apart they lie says nothing of which is better
    ],
)
def test_finetune_of_pairs_is_followed_by_what_judges_and_builds_it(
    given: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }"), "t.onnx")
    none = dict.fromkeys(("eval_data", "teacher", "preprocess", "labels", "eval_names"))
    result = SimpleNamespace(in_float=False, model="t.onnx", was_plain="was_plain" in given)
    args = argparse.Namespace(**{**none, "model": "m.onnx", "words": [], **given})
    said, *build = after_finetune(args, result)
    begin = "compare" if {"teacher", "was_plain"} & set(given) else "evaluate t.onnx --baseline FP32.onnx"
    assert said.endswith(f": qdqtool {begin} {line}")
    if result.was_plain:
        assert build[-1] == "next: trtexec --onnx=t.onnx --saveEngine=t.engine" and "--int8 --fp16" in build[0]
    else:  # no file says whether it is for a GPU, a DLA or TensorRT for RTX
        assert len(build) == 1 and build[0].startswith("build t.onnx with the command for the model before")
    assert after_finetune(argparse.Namespace(eval_data="e", words=[]), result) == build


@pytest.mark.slow
def test_prune_is_followed_by_finetune(bench: Path, capsys: Capsys) -> None:
    said = run(capsys, "prune", MODEL, *FEW, "--ratio", "0.25")
    step = step_of(said)
    assert step == ["qdqtool", "finetune", "a model.pruned.onnx", "--teacher", MODEL, *FEW]
    tuned = follow(capsys, [*step, "--steps", "2"])
    assert "held-out loss" in tuned.out
    step = step_of(tuned)
    assert step == ["qdqtool", "insert", "a model.pruned.finetuned.onnx", *FEW]
    assert "wrote a model.pruned.finetuned.qdq.onnx" in follow(capsys, step).out
    assert steps_of(run(capsys, "prune", MODEL, *FEW, "--ratio", "0", "-o", "same.onnx")) == []


def test_lint_names_the_repair_as_it_was_asked(bench: Path, capsys: Capsys) -> None:
    words = ("--target", "dla", "--trt-version", "8502", "--ignore", "Q030")
    shutil.copy(MODEL, "-m.onnx")
    model = onnx.load(MODEL)
    model.graph.node[0].name = ""
    onnx.save(model, "n.onnx")
    said = run(capsys, "lint", "n.onnx", *words)
    (line,) = [line for line in said.out.splitlines() if "can be repaired: " in line]
    step = shlex.split(line.partition("can be repaired: ")[2])
    assert step == ["qdqtool", "lint", "n.onnx", *words, "--fix", "-o", "n.fixed.onnx"]
    assert "wrote n.fixed.onnx: 1 finding repaired" in follow(capsys, step).out


@pytest.mark.slow
def test_the_same_command_again_with_more(bench: Path, capsys: Capsys) -> None:
    args = argparse.Namespace(words=("insert", MODEL, "--data", DATA, "--limit", "8"))
    line = command_lines.again(args, "--keep-float", "0", "-o", "r.onnx")
    assert line == "qdqtool insert 'a model.onnx' --data 'digits calib.npz' --limit 8 --keep-float 0 -o r.onnx"
    follow(capsys, shlex.split(line))


def test_names_that_a_shell_or_a_terminal_would_act_on() -> None:
    assert command_lines.shell_line("peel", command_lines.file_word("-x y;z")) == "peel './-x y;z'"
    assert command_lines.shell_line("a\nb\x1b'c\\") == "$'a\\x0ab\\x1b\\x27c\\x5c'"
    assert command_lines.shell_line("\udcff.onnx") == "$'\\xff.onnx'"
    assert command_lines.option("--heads", "-a") == ["--heads=-a"]


def test_a_peeled_file_is_calibrated_with_what_the_pairs_were(tmp_path: Path) -> None:
    """Peel takes the table out, and with it the preprocessing that nobody had to name for the Q/DQ model."""
    model = model_of(SMALL_NET)
    store_table(model, ScaleTable(provenance=Provenance(data={"preprocess": "keras"})))
    onnx.save(model, tmp_path / "q.onnx")
    images = write_images(tmp_path / "images", 9)
    given = argparse.Namespace(model=tmp_path / "q.onnx", data=str(images), preprocess=None)
    flag, spec = next_steps.known_preprocess_words(given)
    assert flag == "--preprocess" and parse_preprocess(spec) == parse_preprocess("keras")
    for other in ({"preprocess": "yolox"}, {"data": None}, {"data": str(tmp_path / "d.npz")}):
        assert next_steps.known_preprocess_words(argparse.Namespace(**{**vars(given), **other})) == []


def test_data_of_polygraphy_and_what_is_not_the_default(tmp_path: Path) -> None:
    from qdqtool.cli.data import add_data_arguments

    parser = argparse.ArgumentParser()
    add_data_arguments(parser)
    given = ["--load-inputs", "a.json", "b.json", "--batch", "2", "--provider", "cuda", "--workers", "3"]
    assert next_steps.data_words(parser.parse_args(given)) == given
    assert next_steps.data_words(parser.parse_args(given), calibrates=False) == given[:-2]
    assert next_steps.data_words(parser.parse_args([])) == []


def test_forecast_of_a_plain_model_for_one_board_is_followed_by_deploy(tmp_path: Path, capsys: Capsys) -> None:
    model = write_net(tmp_path)
    said = run(capsys, "forecast", model, "--for", "rtx4090", "--formats", "int8")
    assert said.out.splitlines()[-1].endswith(f": qdqtool deploy {model} --data DATA --for rtx4090")
    two = run(capsys, "forecast", model, "--for", "rtx4090", "--for", "l4", "--formats", "int8")
    assert two.code == 0 and "qdqtool deploy" not in two.out
