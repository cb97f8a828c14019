# SPDX-License-Identifier: Apache-2.0
"""The files that verbs write: all of a run or none, none over what is read, and no name that ends in a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cache.text import Cache, write_cache
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.cli.command import contents, refused, run, write_net

Capsys = pytest.CaptureFixture[str]
GPU = ("--target", "gpu", "--trt-version", "8502")
LONG = "n" * 256


@pytest.fixture
def folder(tmp_path: Path, capsys: Capsys) -> Path:
    """`m.onnx`, `q.onnx` with Q/DQ, data `d.npz` and a cache `c.cache`."""
    model = write_net(tmp_path)
    scales = dict.fromkeys(("x", "r1", "r2", "g"), 0.1)
    table = tmp_path / "s.json"
    table.write_text(ScaleTable({name: Scale.of(value) for name, value in scales.items()}).to_json())
    assert run(capsys, "insert", model, "--scales", table, "-o", tmp_path / "q.onnx", "-q").code == 0
    cache = Cache.of(TrtVersion(8, 5, 2), {name: np.float32(value) for name, value in scales.items()})
    write_cache(cache, tmp_path / "c.cache")
    return tmp_path


def spread(folder: Path, name: str) -> None:
    """Put the weights of a model into `weights.bin` beside it."""
    model = onnx.load(folder / name)
    onnx.save_model(
        model,
        folder / name,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=False,
    )


# ------------------------------------------------------------------------------------------- all of a run or none

COLLISIONS = {
    "model and sidecar": (
        ["-o", "p.cache.json", "--cache", "p.cache"],
        "is the name of the model and of the cache's details",
    ),
    "model and cache": (["-o", "d/../p", "--cache", "p"], "is the name of the model and of the cache"),
    "model and script": (["-o", "p.trtexec.sh", "--cache", "p.cache", "--emit", "trtexec"], "and of --emit trtexec"),
    "a second folder that is none": (["-o", "p.onnx", "--cache", "no/p.cache"], "its folder does not exist"),
    "a second name that is too long": (["-o", "p.onnx", "--cache", LONG], "File name too long"),
    "a sidecar whose name is too long": (["-o", "p.onnx", "--cache", "n" * 252], "File name too long"),
}


@pytest.mark.parametrize("case", COLLISIONS)
def test_files_that_cannot_be_written_together(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    words, reason = COLLISIONS[case]
    (folder / "d").mkdir()
    monkeypatch.chdir(folder)
    before = contents(folder)
    refused(run(capsys, "peel", "q.onnx", *GPU, *words), reason)
    assert contents(folder) == before


def test_a_full_disk_at_the_last_file_leaves_none(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model, the cache, its sidecar, a script: the fourth does not fit."""
    words = ["peel", folder / "q.onnx", *GPU, "--emit", "trtexec"]
    before, calls, real = contents(folder), [], os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    refused(run(capsys, *words), "q.trtexec.sh: cannot be written (No space left on device)")
    assert contents(folder) == before
    monkeypatch.undo()
    assert run(capsys, *words).code == 0
    made = set(contents(folder)) - set(before)
    assert made == {"q.peeled.onnx", "q.cache", "q.cache.json", "q.trtexec.sh"}


def test_data_files_that_were_copied_go_again_with_their_model(folder: Path, capsys: Capsys) -> None:
    spread(folder, "q.onnx")
    (folder / "new").mkdir()
    before = contents(folder)
    words = ["peel", folder / "q.onnx", *GPU, "-o", folder / "new" / "p.onnx"]
    refused(run(capsys, *words, "--cache", folder / "new" / "weights.bin"), "weights.bin: ", "two outputs")
    assert contents(folder) == before
    assert run(capsys, *words, "--cache", folder / "p.cache").code == 0
    assert {"p.onnx", "weights.bin"} == {path.name for path in (folder / "new").iterdir()}


# ------------------------------------------------------------------------------------ nothing over what is read


OVERWRITING = {
    "insert": ["insert", "{}/m.onnx", "-o", "{}/weights.bin"],
    "insert through a link": ["insert", "{}/m.onnx", "-o", "{}/link"],
    "calibrate": ["calibrate", "{}/m.onnx", "--data", "{}/d.npz", "-o", "{}/weights.bin"],
    "ptq": ["ptq", "{}/m.onnx", "--data", "{}/d.npz", *GPU, "--cache", "{}/weights.bin"],
    "simulate": ["simulate", "{}/m.onnx", "--data", "{}/d.npz", "--cache", "{}/c.cache", "-o", "{}/weights.bin"],
    "graft": ["graft", "{}/m.onnx", "--cache", "{}/c.cache", "-o", "{}/weights.bin"],
}


@pytest.mark.parametrize("verb", OVERWRITING)
def test_the_data_file_of_a_model_is_an_input(folder: Path, capsys: Capsys, verb: str) -> None:
    spread(folder, "m.onnx")
    (folder / "link").symlink_to("weights.bin")
    before = contents(folder)
    refused(run(capsys, *(word.format(folder) for word in OVERWRITING[verb])), "never overwritten")
    assert contents(folder) == before


def test_a_cache_over_the_data_file_of_the_qdq_model(folder: Path, capsys: Capsys) -> None:
    spread(folder, "q.onnx")
    before = contents(folder)
    words = ["peel", folder / "q.onnx", *GPU, "-o", folder / "p.onnx", "--cache", folder / "weights.bin"]
    refused(run(capsys, *words), "weights.bin: ", "never overwritten")
    assert contents(folder) == before


def test_a_checkpoint_is_not_the_result(folder: Path, capsys: Capsys) -> None:
    """The result would be removed with the checkpoint whose work is in it."""
    words = ["calibrate", folder / "m.onnx", "--data", folder / "d.npz"]
    before = contents(folder)
    refused(run(capsys, *words, "-o", folder / "r", "--checkpoint", folder / "r"), " --checkpoint")
    assert contents(folder) == before


# ------------------------------------------------------------------------------------------------- killed processes

KILLED = """
import os, signal, sys
from pathlib import Path
from qdqtool.cli.main import main
owner, name, left = (os if sys.argv[1] == "os" else Path), sys.argv[2], [int(sys.argv[3])]
real = getattr(owner, name)
def step(*words, **more):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*words, **more)
setattr(owner, name, step)
main(sys.argv[4:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("Path mkdir", 1),
        ("Path replace", 3),
        *(pytest.param(step, 2, marks=pytest.mark.slow) for step in ("os fsync", "Path replace")),
    ],
)
def test_after_a_kill_the_next_run_leaves_nothing_behind(folder: Path, capsys: Capsys, step: str, nth: int) -> None:
    """Killed before a temporary folder is made, in it, and between two renames."""
    before = contents(folder)
    words = ["peel", str(folder / "q.onnx"), *GPU, "-q"]
    done = subprocess.run([sys.executable, "-c", KILLED, *step.split(), str(nth), *words], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {name: contents(folder)[name] for name in before} == before
    assert run(capsys, *words).code == 0
    assert set(contents(folder)) - set(before) == {"q.peeled.onnx", "q.cache", "q.cache.json"}


# ----------------------------------------------------------------------------------------------------- long names

TOO_LONG = [
    "insert {long}",
    "insert {}/m.onnx -o {long}",
    "insert {}/m.onnx --scales {long}",
    "insert {}/m.onnx --rules {long}",
    "insert {}/m.onnx --data {long}",
    "insert {}/m.onnx --data {long}.npz",
    "insert {}/m.onnx --data {long}.py",
    "insert {}/m.onnx --load-inputs {long}",
    "insert {}/m.onnx --data-loader-script {long}",
    "calibrate {}/m.onnx --data {}/d.npz -o {long}",
    "calibrate {}/m.onnx --data {}/d.npz --checkpoint {long}",
    "calibrate --merge {long} -o {}/x",
    "peel {}/q.onnx --target gpu --trt-version 8502 -o {long}",
    "peel {}/q.onnx --target gpu --trt-version 8502 --cache {long}",
    "peel {}/q.onnx --target gpu --trt-version 8502 --source {long}",
    "peel {}/q.onnx --target gpu --trt-version 8502 --emit trtexec --emit-dir {long}",
    "ptq {}/m.onnx --data {}/d.npz --target gpu --trt-version 8502 --cache {long}",
    "graft {}/m.onnx --cache {long}",
    "graft {}/m.onnx --cache {}/c.cache -o {long}",
    "condition {}/m.onnx --data {}/d.npz -o {long}",
    "lint {}/m.onnx --fix -o {long}",
    "engine show {long} --model {}/m.onnx",
    "evaluate {}/m.onnx --data {}/d.npz --labels {long}",
    "evaluate {}/m.onnx --data {}/d.npz --baseline {long}",
    "evaluate {}/m.onnx --data {}/d.npz --names {long}",
    "infer {}/m.onnx --data {}/d.npz -o {}/x --postprocess {long}.py",
    "compare {}/m.onnx {}/q.onnx --data {}/d.npz --draw {long}",
    "infer {}/m.onnx --data {}/d.npz -o {long}",
    "finetune {}/q.onnx --data {}/d.npz -o {long}",
    "finetune {}/q.onnx --data {}/d.npz --checkpoint {long}",
    "finetune {}/q.onnx --data {}/d.npz --log {long}",
    "finetune {}/q.onnx --data {}/d.npz --teacher {long}",
    "finetune {}/q.onnx --data {}/d.npz --loss {long}.py",
    "simulate {}/q.onnx --data {}/d.npz -o {long}",
    "simulate {}/m.onnx --data {}/d.npz --cache {long}",
    "cache show {long}",
    "cache check {}/c.cache {long}",
    "cache retarget {}/c.cache --trt-version 8601 -o {long}",
    "cache diff {}/c.cache {long}",
    "cache merge {}/c.cache {}/c.cache -o {long}",
    "cache convert {}/c.cache --to trt -o {long}",
    "cache convert {}/c.cache --to trt -o {}/x --sanitize-names --model {}/m.onnx --model-output {long}",
]


@pytest.mark.parametrize("line", TOO_LONG)
def test_a_name_that_no_file_can_have(folder: Path, capsys: Capsys, line: str) -> None:
    before = contents(folder)
    refused(run(capsys, *line.replace("{long}", LONG).format(*[folder] * 4).split()), LONG[:20])
    assert contents(folder) == before


# -------------------------------------------------------------------------------------------- metadata of other hands


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ir_version", "9" * 60),
        ("ir_version", "9" * 5000),
        ("ir_version", "²"),
        ("conditioned", "[" * 100_000),
        ("conditioned", '{"edits": [{"step": ["a"], "site": {}}, 3, null]}'),
        ("finetuned", '{"equalized": 3}'),
    ],
)
def test_metadata_that_another_hand_wrote(folder: Path, capsys: Capsys, key: str, text: str) -> None:
    model = onnx.load(folder / "q.onnx")
    model.metadata_props.add(key=f"qdqtool.{key}", value=text)
    onnx.save(model, folder / "q.onnx")
    assert run(capsys, "lint", folder / "q.onnx").code in (0, 1)
    said = run(capsys, "peel", folder / "q.onnx", *GPU)
    assert said.code == 0, said.err
    assert onnx.load(folder / "q.peeled.onnx").ir_version == model.ir_version


@pytest.mark.parametrize("facts", ['{"kept": 3, "cuts": [["a"], {}]}', '{"kept": {"a": 1}}', '{"data": 3}'])
def test_facts_of_a_table_that_another_hand_wrote(folder: Path, capsys: Capsys, facts: str) -> None:
    model = onnx.load(folder / "q.onnx")
    model.metadata_props.add(key="qdqtool.scales", value=f'{{"schema": 1, "tensors": {{}}, "facts": {facts}}}')
    onnx.save(model, folder / "q.onnx")
    assert run(capsys, "lint", folder / "q.onnx").code in (0, 1)
    before = contents(folder)
    refused(run(capsys, "peel", folder / "q.onnx", *GPU, "--emit", "deepstream"), "metadata qdqtool.scales: fact ")
    assert contents(folder) == before
