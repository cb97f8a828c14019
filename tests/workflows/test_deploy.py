# SPDX-License-Identifier: Apache-2.0
"""deploy: what comes out for each kind of target, what it is chosen by, and that its recipe gives the same bytes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import DeployOptions, deploy
from qdqtool.cli.main import main
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.deploying.choice import CandidateTrial
from qdqtool.deploying.target import dla_line
from qdqtool.errors import QdqError
from qdqtool.passes.peel import has_qdq
from qdqtool.recipe.read_recipe import read_recipe
from qdqtool.trtversion import parse
from qdqtool.verbs.forecast import BoardForecast
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import SMALL_NET, model_of
from tests.workflows.deploy_net import facts_of, made, write_net

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier and data for it."""
    return write_net(tmp_path_factory.mktemp("deploy"))


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("xavier-nx:jp4.6.1", {"dla": True}, "cache"),
    ("7.1.3", {}, "cache"),
    ("8.6.1", {}, "qdq"),
    ("11.4", {}, "qdq"),
]


@pytest.mark.parametrize(("place", "more", "form"), CASES)
def test_the_folder_has_what_the_target_reads(here: Path, place: str, more: dict[str, Any], form: str) -> None:
    result = made(here, place, **more)
    assert sorted(p.name for p in result.folder.iterdir()) == list(result.files)
    assert result.chosen.form == form
    assert ("net.int8.cache" in result.files) == (form == "cache")
    model = onnx.load(result.folder / "net.int8.onnx")
    assert has_qdq(model.graph) == (form == "qdq")
    assert {"net.int8.trtexec.sh", "recipe.toml", "deploy.json", "candidates.txt"} <= set(result.files)
    assert ("net.int8.cache.json" in result.files) == (form == "cache"), "what is known of the cache goes with it"
    assert os.access(result.next_step, os.X_OK)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "more", "form"), CASES)
def test_no_name_is_left_to_fill_in(here: Path, place: str, more: dict[str, Any], form: str) -> None:
    folder = made(here, place, **more).folder
    texts = {p.name: p.read_text("utf-8") for p in folder.iterdir() if p.suffix in (".sh", ".py", ".txt", ".pbtxt")}
    del texts["candidates.txt"]
    assert len(texts) >= 3
    for name, text in texts.items():
        assert "MODEL" not in text and "THE.cache" not in text, name
        stem = "net.fp16" if name.startswith("net.fp16.") else "net.int8"
        named = [word for word in (f"{stem}.onnx", f"{stem}.engine") if word in text]
        assert named, name


def test_a_plain_model_beside_a_cache_keeps_its_bytes(here: Path) -> None:
    folder = made(here, "xavier-nx:jp4.6.1", dla=True).folder
    assert (folder / "net.int8.onnx").read_bytes() == (here / "net.onnx").read_bytes()
    assert (folder / "net.int8.cache").read_text().startswith("TRT-8201-EntropyCalibration2\n")


def run_again(first: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the steps of a deployment's recipe beside it; the folder of the run."""
    folder = Path(shutil.copytree(first, first.with_name(f"{first.name}_again")))
    recipe = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    monkeypatch.chdir(folder)  # paths are as seen from the recipe
    before, out = recipe["model"], Path(recipe["out"])
    out.mkdir()
    for step in recipe["step"]:
        output = out / step["output"]
        words = [word for key, value in step["options"].items() for word in (f"--{key}", str(value))]
        where = "--cache" if step["verb"] == "ptq" else "-o"
        if step["verb"] == "peel":  # its cache is named after the step's output
            words += ["--cache", str(output.with_suffix(".cache"))]
        assert main([step["verb"], str(before), *words, where, str(output), "-q"]) == 0
        before = output if output.suffix == ".onnx" else before
    return folder / out


@pytest.mark.parametrize(("place", "more", "form"), CASES)
def test_the_recipe_gives_the_same_bytes(
    here: Path, place: str, more: dict[str, Any], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(here, place, **more).folder
    again = [path for path in run_again(first, monkeypatch).iterdir() if (first / path.name).is_file()]
    assert {path.suffix for path in again} >= {".cache" if form == "cache" else ".onnx"}
    for path in again:
        assert path.read_bytes() == (first / path.name).read_bytes(), path.name


def test_the_recipe_of_a_peeled_model_gives_all_of_its_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("qdqtool.workflows.deploy")
    every = module.candidates_for
    peeled = lambda *words: [one for one in every(*words) if one.steps and one.steps[-1].verb == "peel"]  # noqa: E731
    monkeypatch.setattr(module, "candidates_for", peeled)
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", here / "peeled", options)
    assert result.chosen.name == "insert-gpu"
    again = run_again(result.folder, monkeypatch)
    assert read_recipe(result.folder / "recipe.toml").device == "none", "no times of DLAs are known"
    names = {name for name in result.files if name.startswith("net.int8.")}
    assert names <= {path.name for path in again.iterdir()} and len(names) >= 5
    for name in names:
        assert (again / name).read_bytes() == (result.folder / name).read_bytes(), name


def test_what_rests_on_a_guess_is_in_the_facts(here: Path, tmp_path: Path) -> None:
    net = "c = Conv(x, w) l = LeakyRelu(c) z = Conv(l, w)"
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w> {{ {net} }}"
    onnx.save(model_of(text, 11), tmp_path / "leaky.onnx")
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(tmp_path / "leaky.onnx", here / "data.npy", tmp_path / "out", options)
    found = lint(result.folder / "leaky.int8.onnx", LintOptions("dla", parse("jp4.6.1"), platform="xavier")).dla
    assert found is not None and dla_line(found) == result.target[3], "lint counts the nodes of the written file, too"
    assert "1 LeakyRelu (rule dla-leaky-relu-8-0) on the DLA" in facts_of(result)["dla_guesses"]
    assert facts_of(made(here, "8.6.1"))["dla_guesses"] is None


def test_a_graph_cut_into_too_many_dla_subgraphs_is_warned_of(here: Path, tmp_path: Path) -> None:
    ops = "".join(f" t{i + 1} = {'Exp' if i % 2 else 'Tanh'}(t{i})" for i in range(10))
    onnx.save(
        model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] t10) <float[4,4,1,1] w> {{ t0 = Conv(x, w){ops} }}", 11),
        tmp_path / "cut.onnx",
    )
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(tmp_path / "cut.onnx", here / "data.npy", tmp_path / "out", options)
    assert re.match("5 DLA subgraphs, .*Xavier holds 4 ", result.left.warning)
    assert "cut by Exp (" in result.left.warning
    assert result.outcome()[-1] == f"warning: {result.left.warning}" and facts_of(result)["dla_warning"]
    for build in ("int8", "fp16"):
        assert "# warning: 5 DLA subgraphs" in (result.folder / f"cut.{build}.trtexec.sh").read_text()
    assert "Warning: 5 DLA subgraphs" in (result.folder / "README.md").read_text()
    assert made(here, "xavier-nx:jp4.6.1", dla=True).left.warning == ""


def test_no_sample_is_in_two_parts(here: Path) -> None:
    result = made(here, "8.6.1")
    parts = facts_of(result)["parts"]
    inputs = inputs_of(onnx.load(here / "net.onnx").graph)
    rows = {
        name: {b["x"].tobytes() for b in open_loader(str(here / "data.npy"), inputs, DataOptions(part=part))}
        for name, part in parts.items()
    }
    assert {name: len(held) for name, held in rows.items()} == dict(result.samples)
    assert sum(map(len, rows.values())) == len(set().union(*rows.values())) == 24


def test_what_is_told_is_in_the_json_and_on_the_screen(here: Path) -> None:
    result = made(here, "8.6.1")
    facts = facts_of(result)
    assert facts["kept"] == result.chosen.name and facts["files"] == list(result.files)
    assert [one["name"] for one in facts["candidates"]] == ["insert-auto", "insert-entropy", "fp16", "as-is"]
    assert facts["metric"] == facts["chosen_by"] == "top-1 agreement with FP32"
    assert facts["loss"]["value"] == result.loss.value
    assert "change" in result.rows()[0], "the best class alone says little of few samples"
    written = (result.folder / "candidates.txt").read_text("utf-8").splitlines()
    assert written == [line.rstrip() for line in result.choice()]
    table = written[next(n for n, line in enumerate(written) if line.startswith("candidate ")) + 1 :]
    assert [line.split()[0] for line in table[:4]] == ["insert-auto", "insert-entropy", "fp16", "as-is"]
    assert written[0].startswith(f"kept {result.chosen.name}: ") and "without labels: agreement" in written[2]
    text = "\n".join(result.summary())
    assert "for any GPU: TensorRT 8.6.1" in text and f"kept {result.chosen.name}: " in text
    assert "6 samples for the report" in text
    assert repr(result).startswith("<DeployResult: ")


@pytest.mark.slow
def test_the_recipe_forecasts_for_the_board_that_was_asked_for(here: Path, tmp_path: Path) -> None:
    """INT8 of a small network has more layers, which may cost more than it saves: then it is not kept."""
    result = deploy(
        here / "net.onnx", here / "data.npy", tmp_path / "out", DeployOptions("rtx4090", effort="fast", progress=False)
    )
    assert tomllib.loads((result.folder / "recipe.toml").read_text("utf-8"))["device"] == "rtx4090"
    costs = {one.candidate.name: one.cost for one in result.trials if one.cost is not None}
    assert all(one.microseconds is not None for one in costs.values())
    assert costs[result.chosen.name].microseconds <= costs["fp16"].microseconds  # type: ignore[operator]
    assert facts_of(result)["forecast_warning"] is None
    any_gpu = made(here, "8.6.1")
    assert tomllib.loads((any_gpu.folder / "recipe.toml").read_text("utf-8"))["device"] == "none"
    assert all(one.cost is None or one.cost.microseconds is None for one in any_gpu.trials) and not any_gpu.slow


@pytest.mark.slow
def test_scripts_for_a_card_name_no_jetpack(here: Path, tmp_path: Path) -> None:
    """TensorRT 11.4.1 is that of JetPack 7.2.2, too; a version alone may be for either."""
    options = DeployOptions("rtx4090:11.4.1", effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    texts = [path.read_text() for path in result.folder.iterdir() if path.suffix in (".sh", ".txt", ".pbtxt")]
    assert len(texts) > 2 and not any("JetPack" in text for text in texts)
    assert "TensorRT 11.4.1 (JetPack 7.2.2)" in (made(here, "11.4").folder / "net.int8.trtexec.sh").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["8.6.1", "7.1.3"])
def test_an_open_batch_is_built_for_as_many_as_asked_for(here: Path, tmp_path: Path, place: str) -> None:
    onnx.save(model_of(SMALL_NET, opset=11), tmp_path / "free.onnx")
    options = DeployOptions(place, effort="fast", max_batch=8, progress=False)
    folder = deploy(tmp_path / "free.onnx", here / "data.npy", tmp_path / "out", options).folder
    script = next(path for path in folder.iterdir() if path.name.endswith(".trtexec.sh")).read_text()
    for flag, size in (("--minShapes", 1), ("--optShapes", 8), ("--maxShapes", 8)):
        assert f"{flag}=x:{size}x4x8x8" in script
    if place == "8.6.1":
        other = next(path for path in folder.iterdir() if path.name.endswith(".polygraphy.sh")).read_text()
        assert "x:[1,4,8,8]" in other and other.count("x:[8,4,8,8]") == 2
        assert "max_batch_size: 8" in next(folder.glob("*.pbtxt")).read_text()


@pytest.mark.slow
def test_open_sizes_are_those_of_the_data_in_scripts_and_forecast(here: Path, tmp_path: Path) -> None:
    onnx.save(model_of(SMALL_NET.replace("N,4,8,8", "N,4,H,W"), opset=11), tmp_path / "free.onnx")
    options = DeployOptions("rtx4090:11.4.1", effort="fast", progress=False)
    result = deploy(tmp_path / "free.onnx", here / "data.npy", tmp_path / "out", options)
    scripts = [path.read_text() for path in result.folder.iterdir() if path.name.endswith(".trtexec.sh")]
    assert len(scripts) > 1 and all("--shapes=x:1x4x8x8" in text for text in scripts)
    assert "not known" not in result.verdict
    assert all(one.cost.microseconds is not None for one in result.trials if one.cost is not None)


@pytest.mark.slow
def test_a_fixed_batch_is_told_where_a_larger_one_is_asked_for(here: Path, tmp_path: Path) -> None:
    onnx.save(model_of(SMALL_NET.replace("N,", "1,"), opset=11), tmp_path / "fixed.onnx")
    options = DeployOptions("8.6.1", effort="fast", max_batch=8, progress=False)
    result = deploy(tmp_path / "fixed.onnx", here / "data.npy", tmp_path / "out", options)
    assert any(note.startswith("--max-batch ") for note in result.notes)
    script = next(path for path in result.folder.iterdir() if path.name.endswith(".trtexec.sh")).read_text()
    assert "Shapes=" not in script


def test_a_candidate_that_cannot_be_made_is_told_and_left(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("qdqtool.workflows.deploy")
    right = module.carry_out

    def failing(candidate: Any, *rest: Any) -> Any:
        if candidate.name == "insert-auto":
            raise QdqError("net.onnx", "is not for this", "try another")
        return right(candidate, *rest)

    monkeypatch.setattr(module, "carry_out", failing)
    options = DeployOptions("8.6.1", effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    failed: CandidateTrial = result.trials[0]
    assert failed.failed == "net.onnx: is not for this; try another"
    assert result.chosen.name == "insert-entropy"
    assert f"failed: insert-auto: {failed.failed}" in result.choice()


def test_a_full_disk_fails_no_candidate_but_the_command(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another candidate was kept, with exit code 0, as one file of the best could not be written."""

    def full(*_: Any) -> Any:
        raise QdqError("a.onnx", "cannot be written") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(import_module("qdqtool.workflows.deploy"), "carry_out", full)
    with pytest.raises(QdqError, match="cannot be written"):
        deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", DeployOptions("8.6.1", progress=False))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_in_memory_is_deployed(here: Path, tmp_path: Path) -> None:
    options = DeployOptions("8.6.1", effort="fast", progress=False)
    data = np.load(here / "data.npy")
    result = deploy(onnx.load(here / "net.onnx"), data, tmp_path / "out", options)
    assert "model.int8.onnx" in result.files
    recipe = tomllib.loads((result.folder / "recipe.toml").read_text("utf-8"))
    assert recipe["model"] == "the model that was given in Python"
    assert recipe["step"][0]["options"]["data"] == "the data that was given in Python"


@pytest.mark.slow
def test_a_loader_script_may_print(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "loader.py"
    lines = "import numpy as np", "def load_data():", f"    for row in np.load({str(here / 'data.npy')!r}):"
    script.write_text("\n".join([*lines, "        print('{', 'a sample')", "        yield {'x': row[None]}", ""]))
    result = deploy(here / "net.onnx", script, tmp_path / "out", DeployOptions("8.6.1", effort="fast", progress=False))
    assert not any(one.failed for one in result.trials)


@pytest.mark.parametrize("place", ["8.6.1", "11.4"])
def test_fp16_and_its_script_stand_beside_a_kept_int8(here: Path, place: str) -> None:
    result = made(here, place)
    assert result.chosen.form == "qdq" and {"net.fp16.onnx", "net.fp16.trtexec.sh"} <= set(result.files)
    assert facts_of(result)["other_build"] == "net.fp16.trtexec.sh"
    assert "time_of net.int8.trtexec.sh" in (result.folder / "bench.sh").read_text()
    guide = (result.folder / "README.md").read_text()
    assert len(guide.splitlines()) <= 10 and result.verdict in guide and result.format_loss() in guide
    beside = next(line for line in guide.splitlines() if line.startswith("net.fp16.onnx (fp16) "))
    loss = rf"{result.metric} loss -?0\.\d{{4}} \(95 %: .* to .*, {result.samples['report']} samples\)\."
    assert re.search(f"on the same samples: {loss}", beside)
    assert ("FP16 is measured as FP32" in beside) is (place == "8.6.1")
    plain = onnx.load(result.folder / "net.fp16.onnx")
    assert not has_qdq(plain.graph)
    assert any(one.data_type == onnx.TensorProto.FLOAT16 for one in plain.graph.initializer) is (place == "11.4")


def test_int8_that_the_forecast_has_slower_than_fp16_is_not_kept(here: Path, tmp_path: Path) -> None:
    """In memory: its file is in the folder of work, which is there until all is written."""
    options = DeployOptions("rtx4090:8.6.1", effort="fast", progress=False)
    result = deploy(onnx.load(here / "net.onnx"), here / "data.npy", tmp_path / "out", options)
    assert result.chosen.name == "fp16" and not result.slow
    assert facts_of(result)["other_build"] == "model.int8.trtexec.sh", "INT8 to time it against"
    guide = (result.folder / "README.md").read_text()
    assert len(guide.splitlines()) <= 10 and result.format_loss() in guide
    assert re.search(rf"^model\.int8\.onnx \(insert-\w+\) .* same samples: {result.metric} loss .* \(95 %", guide, re.M)
    assert result.reason.startswith("INT8 gains no time by the forecast")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_fp16_is_tried_first_where_the_forecast_says_that_int8_does_not_pay(here: Path, tmp_path: Path) -> None:
    """A network this small is launched, not computed."""
    said, tried = list[str](), list[str]()
    options = DeployOptions("rtx4090:8.6.1", effort="fast", progress=False, say=said.append, tried=tried.append)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert said[0] == result.verdict == result.summary()[0] == facts_of(result)["verdict"]
    assert re.match(r"INT8 will not pay on rtx4090, GeForce RTX 40.*8\.6\.1 \(0\..*four times in five", said[0])
    assert tried[0].startswith("way 1 of 4: fp16: ") and tried[3].startswith("way 4 of 4: ")


@pytest.mark.parametrize(("place", "name"), [("8.6.1", "ptq-entropy"), ("xavier-nx:jp4.6.1", "insert-auto")])
def test_weights_beside_the_model_are_found_by_every_candidate(
    place: str, name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(here / "net.onnx")
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    module = import_module("qdqtool.workflows.deploy")
    every = module.candidates_for
    chosen = lambda target, _: [one for one in every(target, "default") if one.name == name]  # noqa: E731
    monkeypatch.setattr(module, "candidates_for", chosen)
    options = DeployOptions(place, progress=False)
    result = deploy(tmp_path / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert [(one.candidate.name, one.failed) for one in result.trials] == [(name, "")]
    assert any("cache peeled" in note for note in result.notes) is (name == "insert-auto")
    assert not any("was not measured" in note for note in result.notes)


@pytest.mark.slow
def test_the_recipe_has_the_batch(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's entropy depends on the first batch."""
    onnx.save(model_of(SMALL_NET, opset=11), tmp_path / "free.onnx")
    options = DeployOptions("7.1.3", effort="fast", progress=False, data_options=DataOptions(batch=4))
    result = deploy(tmp_path / "free.onnx", here / "data.npy", tmp_path / "out", options)
    steps = tomllib.loads((result.folder / "recipe.toml").read_text("utf-8"))["step"]
    assert [step["options"].get("batch") for step in steps if "data" in step["options"]] == [4]
    assert (run_again(result.folder, monkeypatch) / "free.int8.cache").read_bytes() == (
        result.folder / "free.int8.cache"
    ).read_bytes()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"place": "nowhere"}, "is neither a board nor a version that qdqtool knows"),
        ({"place": "11.4", "dla": True, "effort": "fast"}, None),
        ({"place": "8.6.1", "max_loss": 2.0}, "is not between 0 and 1"),
        ({"place": "8.6.1", "effort": "much"}, "choose fast, default or best"),
        ({"place": "8.6.1", "metric": "f1"}, "choose top1, coco, voc or miou"),
        ({"place": "8.6.1", "data_options": DataOptions(part=":8")}, "is chosen by deploy"),
        (
            {"place": "8.6.1", "data_options": DataOptions(limit=8)},
            "--limit: is not for deploy, which parts the samples",
        ),
    ],
)
def test_bad_requests_are_refused_and_nothing_is_written(
    here: Path, tmp_path: Path, more: dict[str, Any], said: str | None
) -> None:
    if said is None:
        assert DeployOptions(**more).dla
        return
    with pytest.raises(QdqError, match=said):
        deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", DeployOptions(**more))
    assert not list(tmp_path.iterdir())


def test_a_model_with_pairs_is_refused(here: Path, tmp_path: Path) -> None:
    quantized = made(here, "8.6.1").folder / "net.int8.onnx"
    with pytest.raises(QdqError, match="has Q/DQ already"):
        deploy(quantized, here / "data.npy", tmp_path / "out", DeployOptions("8.6.1"))


def test_a_folder_with_files_is_kept(here: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(QdqError, match="is not empty"):
        deploy(here / "net.onnx", here / "data.npy", tmp_path, DeployOptions("8.6.1"))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_one_sample_to_choose_by_and_one_to_report_give_no_interval(here: Path, tmp_path: Path) -> None:
    options = DeployOptions("8.6.1", effort="fast", progress=False)
    result = deploy(here / "net.onnx", np.load(here / "data.npy")[:3], tmp_path / "out", options)
    assert dict(result.samples) == {"calibrate": 1, "choose": 1, "report": 1}
    assert any(note.startswith("1 sample for the report") for note in result.notes)
    assert result.format_loss() == f"{result.metric} loss {result.loss.value:.4f} (1 sample)"
    assert {row[3] for row in result.rows()[1:]} == {"-"} and facts_of(result)["loss"]["low"] is None


@pytest.mark.parametrize(("operator", "said"), [("Sqrt", "NaN"), ("Exp", "infinity")])
def test_a_model_that_gives_what_is_not_finite_in_fp32_is_refused(
    operator: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"g (float[N,4] x) => (float[N,3] y) <float[4,3] w> {{ a = MatMul(x, w) y = {operator}(a) }}"
    onnx.save(model_of(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=1e4 * np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32))
    words = ["deploy", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "--for", "orin-nx", "-o", tmp_path / "out"]
    assert main([*map(str, words), "-q"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"m.onnx: the FP32 model gives {said} at the output y (batch from sample 0 on)" in line
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.npz", "m.onnx"]


@pytest.mark.slow
def test_fp8_that_surely_does_not_pay_is_not_tried(here: Path, tmp_path: Path) -> None:
    options = DeployOptions("rtx4090:11.4.1", effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert "fp8" not in {one.candidate.format for one in result.trials}
    assert any(note.startswith("insert-fp8 was not tried") for note in result.notes)


@pytest.mark.slow
def test_fp8_is_kept_under_its_own_name(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of which nothing but FP8 is tried, for a version that builds FP8 from a typed file alone."""
    module = import_module("qdqtool.workflows.deploy")
    every = module.candidates_for
    chosen = lambda *words: [one for one in every(*words) if one.format == "fp8"]  # noqa: E731
    monkeypatch.setattr(module, "candidates_for", chosen)
    forecast = module.forecast_board

    def unsure(*words: Any) -> BoardForecast:
        board = forecast(*words)
        return replace(board, rows=tuple(replace(one, verdict=one.verdict and "equal") for one in board.rows))

    monkeypatch.setattr(module, "forecast_board", unsure)
    text = """net (float[1,32,8,8] x) => (float[1,32,1,1] y) <float[32,32,3,3] w, float[32,32,1,1] v>
{ c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) p = GlobalAveragePool(r) y = Conv(p, v) }"""
    onnx.save(model_of(text, opset=13), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(16, 32, 8, 8)).astype(np.float32))
    options = DeployOptions("rtx4090:10.13.3", effort="fast", progress=False)
    result = deploy(tmp_path / "net.onnx", tmp_path / "data.npy", tmp_path / "out", options)
    facts = facts_of(result)
    assert (facts["kept"], facts["format"], facts["candidates"][0]["format"]) == ("insert-fp8", "fp8", "fp8")
    assert re.search(r"^insert-fp8 +fp8 qdq ", (result.folder / "candidates.txt").read_text(), re.M)
    script = (result.folder / "net.fp8.trtexec.sh").read_text()
    assert "--onnx=net.fp8.onnx" in script and "--stronglyTyped" in script and "--int8" not in script
    model = onnx.load(result.folder / "net.fp8.onnx")
    assert any(one.data_type == onnx.TensorProto.FLOAT8E4M3FN for one in model.graph.initializer)
    assert re.match(r"(INT8|FP8) .*\(.*; (INT8|FP8) \d\.\d\dx, ", result.verdict), "both in the first line"
    again = run_again(result.folder, monkeypatch)
    assert (again / "net.fp8.onnx").read_bytes() == (result.folder / "net.fp8.onnx").read_bytes()
