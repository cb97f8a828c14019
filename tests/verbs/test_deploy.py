# SPDX-License-Identifier: Apache-2.0
"""deploy: what comes out for each kind of target, what it is chosen by, and that its recipe gives the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import DeployOptions, DeployResult, deploy
from qdqtool.cli.main import main
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import CandidateTrial, DeployCost
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval, bootstrap
from qdqtool.evaluation.metrics import Figure, ResampledFigure
from qdqtool.graph.view import GraphView
from qdqtool.passes.peel import has_qdq
from qdqtool.verbs.deploy_judge import DeployJudge, JudgedCandidate, TargetModel
from qdqtool.verbs.deploy_options import trial_rows
from tests.graphs import SMALL_NET, model_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier of fixed batch at an old opset, and data for it."""
    folder = tmp_path_factory.mktemp("deploy")
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=11), folder / "net.onnx")
    samples = np.random.default_rng(0).normal(size=(24, 4, 8, 8)).astype(np.float32)
    np.save(folder / "data.npy", samples)
    np.savez(folder / "other.npz", x=samples[::-1] * 0.9, y=np.zeros(24, np.int64))
    return folder


_MADE: dict[tuple[Path, str], DeployResult] = {}


def made(here: Path, place: str, **more: Any) -> DeployResult:
    """A fast deployment, made once for all tests of this file."""
    key = here, f"{place} {sorted(more)}"
    if key not in _MADE:
        folder = here / place.replace(":", "_")
        options = DeployOptions(place, effort="fast", progress=False, **more)
        _MADE[key] = deploy(here / "net.onnx", here / "data.npy", folder, options)
    return _MADE[key]


def facts_of(result: DeployResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((result.folder / "deploy.json").read_text("utf-8"))
    return found


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
    assert has_qdq(GraphView(model.graph)) == (form == "qdq")
    assert {"net.int8.trtexec.sh", "recipe.toml", "deploy.json", "candidates.txt"} <= set(result.files)
    assert ("net.int8.cache.json" in result.files) == (form == "cache"), "what is known of the cache goes with it"
    assert os.access(result.next_step, os.X_OK)


@pytest.mark.parametrize(("place", "more", "form"), CASES)
def test_no_name_is_left_to_fill_in(here: Path, place: str, more: dict[str, Any], form: str) -> None:
    folder = made(here, place, **more).folder
    texts = {p.name: p.read_text("utf-8") for p in folder.iterdir() if p.suffix in (".sh", ".py", ".txt", ".pbtxt")}
    del texts["candidates.txt"]
    assert len(texts) >= 3
    for name, text in texts.items():
        assert "MODEL" not in text and "THE.cache" not in text, name
        named = [word for word in ("net.int8.onnx", "net.int8.engine") if word in text]
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
    module = sys.modules["qdqtool.verbs.deploy"]
    every = module.candidates_for
    peeled = lambda *words: [one for one in every(*words) if one.steps and one.steps[-1].verb == "peel"]  # noqa: E731
    monkeypatch.setattr(module, "candidates_for", peeled)
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", here / "peeled", options)
    assert result.chosen.name == "insert-gpu"
    again = run_again(result.folder, monkeypatch)
    names = {name for name in result.files if name.startswith("net.int8.")}
    assert names <= {path.name for path in again.iterdir()} and len(names) >= 5
    for name in names:
        assert (again / name).read_bytes() == (result.folder / name).read_bytes(), name


def test_a_graph_cut_into_too_many_dla_subgraphs_is_warned_of(here: Path, tmp_path: Path) -> None:
    ops = "".join(f" t{i + 1} = {'Exp' if i % 2 else 'Tanh'}(t{i})" for i in range(10))
    onnx.save(
        model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] t10) <float[4,4,1,1] w> {{ t0 = Conv(x, w){ops} }}", 11),
        tmp_path / "cut.onnx",
    )
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(tmp_path / "cut.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.dla_warning.startswith("5 DLA subgraphs, and a DLA core of Xavier holds 4 of them: the build stops")
    assert "the graph is cut by Exp (" in result.dla_warning
    assert result.outcome()[-1] == f"warning: {result.dla_warning}" and facts_of(result)["dla_warning"]
    assert "# warning: 5 DLA subgraphs" in (result.folder / "cut.int8.trtexec.sh").read_text()
    assert made(here, "xavier-nx:jp4.6.1", dla=True).dla_warning == ""


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
    assert [one["name"] for one in facts["candidates"]] == ["insert-auto", "insert-entropy", "fp16"]
    assert facts["metric"] == facts["chosen_by"] == "top-1 agreement with FP32"
    assert facts["loss"]["value"] == result.loss.value
    assert "change" in result.rows()[0], "the best class alone says little of few samples"
    written = (result.folder / "candidates.txt").read_text("utf-8").splitlines()
    assert written == [line.rstrip() for line in result.choice()]
    assert [line.split()[0] for line in written[2:5]] == ["insert-auto", "insert-entropy", "fp16"]
    text = "\n".join(result.summary())
    assert "for any GPU: TensorRT 8.6.1" in text and f"kept {result.chosen.name}: the " in text
    assert "6 samples for the report are few" in text
    assert repr(result).startswith("<DeployResult: ")


def test_labels_of_other_samples_are_for_the_report_alone(here: Path, tmp_path: Path) -> None:
    options = DeployOptions("8.6.1", effort="fast", eval_data=here / "other.npz", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert (result.metric, result.chosen_by) == ("top-1", "top-1 agreement with FP32")
    assert result.samples == {"calibrate": 16, "choose": 8, "report": 24}
    assert facts_of(result)["parts"]["report"] == ""


@pytest.mark.parametrize("ending", ["npz", "npy", "txt"])
def test_labels_without_names_are_those_of_the_samples_for_the_report_and_of_no_others(
    here: Path, tmp_path: Path, ending: str
) -> None:
    """The first of them were taken for the truth of other samples, by which the choice was then made."""
    labels = tmp_path / f"labels.{ending}"
    if ending == "npz":
        np.savez(labels, y=np.zeros(24, np.int64))
    elif ending == "npy":
        np.save(labels, np.zeros(24, np.int64))
    else:
        labels.write_text("0\n" * 24)
    options = DeployOptions("8.6.1", effort="fast", eval_data=here / "other.npz", labels=labels, progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert (result.metric, result.chosen_by) == ("top-1", "top-1 agreement with FP32")
    assert result.choice()[0].startswith("losses of top-1 agreement with FP32, on 8 samples used to choose")
    assert facts_of(result)["chosen_by"] == "top-1 agreement with FP32"


def test_labels_of_both_samples_choose_and_report(here: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "classes.npy", np.zeros(24, np.int64))
    np.save(tmp_path / "other.npy", np.load(here / "other.npz")["x"])
    labels = tmp_path / "classes.npy"
    options = DeployOptions(
        "7.1.3",
        effort="fast",
        labels=labels,
        eval_data=tmp_path / "other.npy",
        eval_labels=labels,
        max_loss=1.0,
        progress=False,
    )
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert (result.metric, result.chosen_by) == ("top-1", "top-1")
    assert not any("without labels" in note for note in result.notes)
    short = replace(options, labels=tmp_path / "short.npy")
    np.save(tmp_path / "short.npy", np.zeros(3, np.int64))
    with pytest.raises(QdqError):  # they must be those of the data then
        deploy(here / "net.onnx", here / "data.npy", tmp_path / "none", short)
    with pytest.raises(QdqError, match="is the truth of --eval-data"):
        replace(options, eval_data=None)


def test_the_accuracy_to_expect_is_told_beside_fp32_s_where_there_are_labels(here: Path, tmp_path: Path) -> None:
    """A loss alone hides a wrong preprocessing, which FP32's own figure shows."""
    options = DeployOptions("8.6.1", effort="fast", eval_data=here / "other.npz", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.fp32 == facts_of(result)["fp32"]
    (line,) = (line for line in result.choice() if " FP32 " in line and "->" in line)
    assert line.startswith(f"top-1 there: FP32 {result.fp32:.4f} -> {result.fp32 - result.loss.value:.4f}; ")
    assert "--preprocess" in line
    assert made(here, "8.6.1").fp32 is None and not any("->" in line for line in made(here, "8.6.1").choice())


def test_the_recipe_forecasts_for_the_board_that_was_asked_for(here: Path, tmp_path: Path) -> None:
    """INT8 of a small network has more layers, which may cost more than it saves: that is said."""
    result = deploy(
        here / "net.onnx", here / "data.npy", tmp_path / "out", DeployOptions("rtx4090", effort="fast", progress=False)
    )
    assert tomllib.loads((result.folder / "recipe.toml").read_text("utf-8"))["device"] == "rtx4090"
    costs = {one.candidate.name: one.cost for one in result.trials if one.cost is not None}
    assert all(one.microseconds is not None for one in costs.values())
    slower = costs[result.chosen.name].microseconds >= costs["fp16"].microseconds  # type: ignore[operator]
    warned = [line for line in result.choice() if "INT8 is no faster than FP16 by the forecast for rtx4090" in line]
    assert bool(warned) is slower is (facts_of(result)["forecast_warning"] is not None)
    any_gpu = made(here, "8.6.1")
    assert tomllib.loads((any_gpu.folder / "recipe.toml").read_text("utf-8"))["device"] == "none"
    assert all(one.cost is None or one.cost.microseconds is None for one in any_gpu.trials) and not any_gpu.slow


def test_scripts_for_a_card_name_no_jetpack(here: Path, tmp_path: Path) -> None:
    """TensorRT 11.4.1 is that of JetPack 7.2.2, too; a version alone may be for either."""
    options = DeployOptions("rtx4090:11.4.1", effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    texts = [path.read_text() for path in result.folder.iterdir() if path.suffix in (".sh", ".txt", ".pbtxt")]
    assert len(texts) > 2 and not any("JetPack" in text for text in texts)
    assert "TensorRT 11.4.1 (JetPack 7.2.2)" in (made(here, "11.4").folder / "net.int8.trtexec.sh").read_text()


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


def test_a_candidate_of_no_use_is_marked() -> None:
    rows = trial_rows((loses("good", 0.01), loses("bad", 0.3939), loses("kept", 0.3)), "kept")
    assert [row[-1] for row in rows[1:]] == ["", "not usable", "kept"]


def loses(name: str, loss: float) -> CandidateTrial:
    figure = Figure(loss, Interval(loss, loss))
    return CandidateTrial(DeployCandidate(name, "qdq", (), ""), figure, DeployCost(1.0, 1, ""), metric="top1")


def test_where_labels_choose_the_change_against_fp32_is_measured_too(here: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "classes.npy", np.zeros(24, np.int64))
    options = DeployOptions("8.6.1", effort="fast", labels=tmp_path / "classes.npy", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.chosen_by == "top-1"
    assert all(one.change is not None and 0 <= one.change <= 1 for one in result.trials)
    changes = {one["name"]: one["change"] for one in facts_of(result)["candidates"]}
    assert changes["fp16"] == 0 and list(changes) == [row[0] for row in result.rows()[1:]]
    place = result.rows()[0].index("change")
    assert [row[place] for row in result.rows()[1:]] == [f"{change:.4f}" for change in changes.values()]


def test_samples_that_were_seen_before_are_no_evaluation(here: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "again.npy", np.load(here / "data.npy")[:5])
    options = DeployOptions("8.6.1", eval_data=tmp_path / "again.npy")
    with pytest.raises(QdqError, match="--eval-data: holds 5 samples that are also in --data"):
        deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def losing(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let every candidate in INT8 be wrong in a share of the samples."""
    right = DeployJudge.figure

    def figure(self: DeployJudge, model: TargetModel) -> ResampledFigure:
        found = right(self, model)
        if model.name == "fp16":
            return found
        hits = (np.arange(self.count) >= share * self.count).astype(float)
        drawn = bootstrap(lambda weights: weights @ hits / weights.sum(1), self.count)
        return replace(found, value=float(hits.mean()), drawn=drawn)

    monkeypatch.setattr(DeployJudge, "figure", figure)
    monkeypatch.setattr(DeployJudge, "judged", lambda self, model: JudgedCandidate(self.figure(model)))


def test_int8_that_loses_a_lot_is_kept_with_a_warning(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losing(monkeypatch, 0.2)
    words = ["deploy", str(here / "net.onnx"), "--data", str(here / "data.npy"), "--for", "7.1.3", "--effort", "fast"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    facts = json.loads((tmp_path / "out" / "deploy.json").read_text())
    assert said == [f"warning: {facts['warning']}"] and said[0] in (tmp_path / "out" / "candidates.txt").read_text()
    assert said[0].startswith("warning: INT8 loses a lot: top-1 agreement with FP32 loss 0.3333 (95 %: ")
    assert said[0].endswith(
        "--labels tells what the task loses of it; --max-loss 0.05 keeps INT8 only where it loses no more"
    )
    assert facts["form"] == "cache" and facts["max_loss"] is None


def test_int8_of_no_use_is_not_kept_unasked(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, 1.0)
    options = DeployOptions("7.1.3", effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.chosen.name == "fp16" and result.warning == ""
    assert result.reason.endswith("loses 1.0000, surely more than 0.3; --max-loss 1 keeps it all the same")
    asked = replace(options, max_loss=1.0)
    assert deploy(here / "net.onnx", here / "data.npy", tmp_path / "asked", asked).chosen.form == "cache"


def test_where_int8_loses_too_much_the_float_model_is_kept(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, 0.5)
    options = DeployOptions("7.1.3", effort="fast", max_loss=0.0, progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.chosen.name == "fp16" and result.meets
    assert "net.fp16.onnx" in result.files and not any(name.endswith(".cache") for name in result.files)
    script = (tmp_path / "out" / "net.fp16.trtexec.sh").read_text()
    assert "--fp16" in script and "--int8" not in script
    assert any("FP16 is measured as FP32" in note for note in result.notes)


def test_a_candidate_that_cannot_be_made_is_told_and_left(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["qdqtool.verbs.deploy"]
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
    assert result.chosen.name == "insert-entropy" and "failed" in "\n".join(result.summary())


def test_a_model_in_memory_is_deployed(here: Path, tmp_path: Path) -> None:
    options = DeployOptions("8.6.1", effort="fast", progress=False)
    data = np.load(here / "data.npy")
    result = deploy(onnx.load(here / "net.onnx"), data, tmp_path / "out", options)
    assert "model.int8.onnx" in result.files


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"place": "nowhere"}, "is neither a board nor a version that qdqtool knows"),
        ({"place": "11.4", "dla": True, "effort": "fast"}, None),
        ({"place": "8.6.1", "max_loss": 2.0}, "is not between 0 and 1"),
        ({"place": "8.6.1", "effort": "much"}, "choose fast, default, best"),
        ({"place": "8.6.1", "metric": "f1"}, "choose top1, coco, voc"),
        ({"place": "8.6.1", "data_options": DataOptions(part=":8")}, "is chosen by deploy"),
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
