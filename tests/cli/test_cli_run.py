# SPDX-License-Identifier: Apache-2.0
"""`qdqtool run` as it is typed: real steps, their table, refusals, and a process that is killed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qdqtool.cli.main import main
from tests.cli.command import contents, refused, run
from tests.recipe.recipes import RECIPE, write_recipe

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]


def products(folder: Path) -> dict[str, str]:
    """What a run made, its records and unfinished files left out."""
    return {name: one for name, one in contents(folder).items() if not name.startswith((".steps", ".qdqtool"))}


def test_steps_and_their_table(tmp_path: Path, capsys: Capsys) -> None:
    recipe = write_recipe(tmp_path)
    said = run(capsys, "run", recipe)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("3 steps, 3 of them ") and lines[0].endswith(f" {tmp_path}/r.run")
    assert lines[2].split() == ["step", "file", "bytes", "parameters", "MACs", "bytes", "moved", "latency"]
    assert lines[3].endswith(" ms forecast") and lines[4].endswith(" ms forecast")
    assert lines[5].split()[-2:] == ["-", "-"], "the file alone is not what runs beside a cache"
    assert [line.split()[:2] for line in lines[3:6]] == [["-", "m.onnx"], ["q", "q.onnx"], ["cache", "plain.onnx"]]
    assert "not measured" in lines[-3] and "forecast" in lines[-1] and "orin-nx" in lines[-1]
    assert "qdqtool: run: step 1 of 3, q: qdqtool insert" in said.err
    made = tmp_path / "r.run"
    assert (made / "plain.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes(), "peel gives the source back"
    assert json.loads((made / "check.json").read_text())["unknown"] == []
    before = products(made)
    again = run(capsys, "run", recipe, "-q")
    assert again.err == "" and re.match(f"3 steps, 0 of them .* {re.escape(str(made))}\n", again.out)
    assert products(made) == before


def test_dry_run_lists_commands_that_do_the_same(tmp_path: Path, capsys: Capsys) -> None:
    recipe = write_recipe(tmp_path)
    said = run(capsys, "run", recipe, "--dry-run", "-o", tmp_path / "typed")
    assert said.code == 0 and not (tmp_path / "typed").exists()
    (tmp_path / "typed").mkdir()
    for line in said.out.splitlines():
        program, *words = shlex.split(line)
        assert program == "qdqtool" and words[-2] == ">"
        assert main(words[:-2]) == 0
        Path(words[-1]).write_text(capsys.readouterr().out, encoding="utf-8")
    assert run(capsys, "run", recipe, "-o", tmp_path / "run").code == 0
    typed, ran = products(tmp_path / "typed"), products(tmp_path / "run")
    assert {name: one for name, one in typed.items() if not name.endswith(".json")} == {
        name: one for name, one in ran.items() if not name.endswith(".json")
    }
    assert sorted(typed) == sorted(ran)


def test_warnings_of_a_step_follow_its_name_and_try_what_a_user_would_type(
    tmp_path: Path, capsys: Capsys, models: Path
) -> None:
    data, text = f"{models}/digits8_calib.npz", RECIPE.split("[[step]]")
    made = (
        text[1].replace('"d.npz"', f'"{data}"').replace("keep-float", 'method = "percentile=60"\nlimit = 8\nkeep-float')
    )
    recipe = write_recipe(tmp_path, "[[step]]".join([f'model = "{models}/tiny_classifier.onnx"\n', made]))
    said = run(capsys, "run", recipe)
    assert said.code == 0
    lines = said.err.splitlines()
    assert lines[0].startswith("qdqtool: run: step 1 of 1, q: qdqtool insert ") and lines[0].endswith(" --json")
    tried = next(line for before, line in itertools.pairwise(lines) if before.strip() == "try:")
    assert "--json" not in tried and "--keep-float 0" in tried
    assert main([*shlex.split(tried)[1:], "-q"]) == 0, "it runs as it is printed"


OLD = RECIPE.replace("8502", "7103")


@pytest.mark.slow
def test_an_opset_that_the_parser_does_not_read_is_told_before_the_first_step(tmp_path: Path, capsys: Capsys) -> None:
    recipe = write_recipe(tmp_path, OLD)
    for more in (("--dry-run",), ()):
        said = run(capsys, "run", recipe, *more)
        (first, *_) = said.err.splitlines()
        assert said.code == 0 and re.search("step cache: .* opset 13, TensorRT 7.1.3 ", first)
    lowered = write_recipe(tmp_path, OLD.replace('trt-version = "7103"', 'trt-version = "7103"\nlower-opset = true'))
    said = run(capsys, "run", lowered, "-o", tmp_path / "lowered")
    assert said.code == 0 and "will have opset" not in said.err
    assert "will have" not in run(capsys, "run", write_recipe(tmp_path, RECIPE), "--dry-run").err


def test_a_step_that_reads_what_a_later_one_wrote_before_is_looked_through_once(tmp_path: Path, capsys: Capsys) -> None:
    """The file is there from a run before: each of two steps reads what the other one writes."""
    recipe = write_recipe(tmp_path, OLD)
    assert run(capsys, "run", recipe).code == 0
    peeled = next((tmp_path / "r.run").glob("plain*.onnx"))
    text = OLD.replace('source = "m.onnx"\n', "").replace('model = "m.onnx"', f'model = "r.run/{peeled.name}"', 1)
    again = write_recipe(tmp_path, text)
    assert re.search("its model .* opset", run(capsys, "run", again, "--dry-run").err)


@pytest.mark.parametrize("given", ['preprocess = "yolxo"', 'trt-version = "7.9.9.9.9"'])
def test_a_text_that_a_later_step_cannot_read_is_refused_before_the_first(
    tmp_path: Path, capsys: Capsys, given: str
) -> None:
    text = f'{RECIPE}\n[[step]]\nname = "late"\nverb = "insert"\nmodel = "m.onnx"\n[step.options]\n{given}\n'
    refused(run(capsys, "run", write_recipe(tmp_path, text)), "step late: ")
    assert not (tmp_path / "r.run").exists()


def test_that_no_board_is_faster_is_said_of_the_first_step_alone(tmp_path: Path, capsys: Capsys) -> None:
    step = '[[step]]\nname = "{0}"\nverb = "insert"\nmodel = "m.onnx"\n[step.options]\ndata = "d.npz"\nmethod = "{1}"\n'
    recipe = write_recipe(tmp_path, step.format("a", "mse") + step.format("b", "max"))
    told = "by forecast no board known"
    assert run(capsys, "run", recipe).err.count(told) == 1
    assert run(capsys, "run", recipe, "--again").err.count(told) == 1, "each run says it"


def test_json(tmp_path: Path, capsys: Capsys) -> None:
    recipe = write_recipe(tmp_path)
    plan = json.loads(run(capsys, "run", recipe, "--dry-run", "--json").out)
    assert [one["verb"] for one in plan["steps"]] == ["insert", "peel", "cache check"]
    found = json.loads(run(capsys, "run", recipe, "--json").out)
    assert found["model"]["parameters"] == found["steps"][0]["model"]["parameters"]
    assert found["steps"][1]["files"]["cache"] == str(tmp_path / "r.run" / "plain.cache")
    assert [one["ran"] for one in found["steps"]] == [True] * 3


def test_a_table_with_the_figures_of_a_task(tmp_path: Path, capsys: Capsys) -> None:
    text = """model = "m.onnx"
    [[step]]
    name = "q"
    verb = "insert"
    options = {data = "images.npy", keep-float = 0}
    [[step]]
    name = "top1"
    verb = "evaluate"
    options = {data = "images.npy", labels = "classes.npy", baseline = "m.onnx"}
    """
    np = pytest.importorskip("numpy")
    from tests.graphs import model_of

    recipe = write_recipe(tmp_path, text)
    net = """g (float[N, 3, 4, 4] x) => (float[N, 3, 1, 1] y) <float[3, 3, 1, 1] w>
    { c = Conv(x, w)  r = Relu(c)  y = GlobalAveragePool(r) }"""
    (tmp_path / "m.onnx").write_bytes(model_of(net, 13, ir=8).SerializeToString())
    np.save(tmp_path / "images.npy", np.random.default_rng(0).normal(size=(4, 3, 4, 4)).astype(np.float32))
    np.save(tmp_path / "classes.npy", np.arange(4) % 3)
    said = run(capsys, "run", recipe)
    assert said.code == 0, said.err
    row = next(line for line in said.out.splitlines() if line.startswith("q "))
    assert "top1: top1 " in row and "(loss " in row
    assert re.match("task metrics: .*95 %.*TensorRT$", said.out.splitlines()[-1])


@pytest.mark.parametrize(
    ("text", "parts", "code"),
    [
        (RECIPE.replace("insert", "isnert"), ["r.toml: step q: no such verb 'isnert'"], 2),
        (RECIPE.replace('"d.npz"', '"e.npz"'), ["step q: data:", "e.npz does not exist"], 2),
        ("no recipe", ["r.toml", "not TOML"], 2),
    ],
)
def test_refusals_before_anything_runs(text: str, parts: list[str], code: int, tmp_path: Path, capsys: Capsys) -> None:
    refused(run(capsys, "run", write_recipe(tmp_path, text)), *parts, code=code)
    assert not (tmp_path / "r.run").exists()


def test_a_step_that_fails_is_named(tmp_path: Path, capsys: Capsys) -> None:
    recipe = write_recipe(tmp_path)
    (tmp_path / "d.npz").write_bytes(b"no archive")
    refused(run(capsys, "run", recipe, "-q"), "step q (insert): ", "d.npz")


@pytest.mark.slow  # starts the program several times
def test_killed_at_some_moments_and_taken_up_gives_the_same_bytes(tmp_path: Path) -> None:
    """A few moments; `tests/bench/run_kills.py` takes 20."""
    recipe = write_recipe(tmp_path)
    words = [sys.executable, "-m", "qdqtool", "run", str(recipe), "-q", "-o"]
    assert main(["run", str(recipe), "-q", "-o", str(tmp_path / "run")]) == 0
    wanted = products(tmp_path / "run")
    for delay in (0.7, 1.1):
        (tmp_path / "run").rename(tmp_path / f"before{delay}")
        process = subprocess.Popen([*words, str(tmp_path / "run")], stdout=subprocess.DEVNULL)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert main(["run", str(recipe), "-q", "-o", str(tmp_path / "run")]) == 0
        assert products(tmp_path / "run") == wanted


TUNED = """
model = "m.onnx"
[[step]]
name = "q"
verb = "insert"
[step.options]
data = "d.npz"
keep-float = 0
[[step]]
name = "tuned"
verb = "finetune"
[step.options]
data = "d.npz"
steps = 400
evaluate-every = 50
checkpoint-every = 3
"""


@pytest.mark.slow  # trains twice
def test_a_training_killed_in_the_middle_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, TUNED)
    words = [sys.executable, "-m", "qdqtool", "run", str(recipe), "-q", "-o", str(tmp_path / "run")]
    assert main([*words[3:-1], str(tmp_path / "whole")]) == 0
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (kept := list(tmp_path.glob("run/.steps/tuned.*.checkpoint"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert kept and kept[0].is_file(), "it was killed while it trained"
    assert main(words[3:]) == 0
    assert not kept[0].exists()
    whole, taken_up = products(tmp_path / "whole"), products(tmp_path / "run")
    assert whole["tuned.onnx"] == taken_up["tuned.onnx"] and sorted(whole) == sorted(taken_up)


def test_a_first_step_that_fails_is_one_line(tmp_path: Path, capsys: Capsys) -> None:
    recipe = write_recipe(tmp_path)
    (tmp_path / "m.onnx").write_bytes(b"no model")
    recipe.write_text('[[step]]\nverb = "lint"\nmodel = "m.onnx"\n', "utf-8")
    refused(run(capsys, "run", recipe), "m.onnx")


def test_no_time_of_a_gpu_is_forecast_for_a_dla(tmp_path: Path, capsys: Capsys) -> None:
    text = RECIPE.replace('target = "gpu"', 'target = "dla"')
    assert text != RECIPE
    said = run(capsys, "run", write_recipe(tmp_path, text))
    assert said.code == 0 and " ms forecast" not in said.out
