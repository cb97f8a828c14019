# SPDX-License-Identifier: Apache-2.0
"""deploy: which candidate is kept and what is said of its loss: labels, bounds, and samples that were seen before."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool import DeployOptions, deploy
from qdqtool.cli.main import main
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import CandidateTrial, DeployCost
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval, bootstrap
from qdqtool.evaluation.metrics import Figure, ResampledFigure
from qdqtool.verbs.target_model import TargetModel
from qdqtool.workflows.deploy_result import trial_rows
from qdqtool.workflows.judge import Judge, Judgment
from tests.ort_session import session_of
from tests.workflows.deploy_net import facts_of, made, write_net


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier and data for it."""
    return write_net(tmp_path_factory.mktemp("deploy"))


@pytest.mark.slow
def test_labels_of_other_samples_are_for_the_report_alone(here: Path, tmp_path: Path) -> None:
    options = DeployOptions("8.6.1", effort="fast", eval_data=here / "other.npz", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert (result.metric, result.chosen_by) == ("top-1", "top-1 agreement with FP32")
    assert result.samples == {"calibrate": 16, "choose": 8, "report": 24}
    assert facts_of(result)["parts"]["report"] == ""


@pytest.mark.slow
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
    assert "top-1 agreement with FP32, on 8 samples" in "\n".join(result.choice())
    assert facts_of(result)["chosen_by"] == "top-1 agreement with FP32"
    said = "to choose: by top-1 agreement with FP32; --labels are those of --eval-data"
    assert [note.startswith(said) for note in result.notes].count(True) == 1


@pytest.mark.slow
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
    with pytest.raises(QdqError, match=r"--eval-labels: .*--eval-data"):
        replace(options, eval_data=None)


@pytest.mark.slow
def test_the_accuracy_to_expect_is_told_beside_fp32_s_where_there_are_labels(here: Path, tmp_path: Path) -> None:
    """A loss alone hides a wrong preprocessing, which FP32's own figure shows."""
    samples = np.load(here / "other.npz")["x"]
    session = session_of(here / "net.onnx")
    best = [int(session.run(None, {"x": one[None]})[0].argmax()) for one in samples]
    np.savez(tmp_path / "right.npz", x=samples, y=best)
    options = DeployOptions("8.6.1", effort="fast", eval_data=tmp_path / "right.npz", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.fp32 == facts_of(result)["fp32"] == 1.0 and not result.reference_warning
    (line,) = (line for line in result.choice() if " FP32 " in line and "->" in line)
    assert line.startswith(f"top-1 there: FP32 {result.fp32:.4f} -> {result.fp32 - result.loss.value:.4f}; ")
    assert "--preprocess" in line
    assert made(here, "8.6.1").fp32 is None and not any("->" in line for line in made(here, "8.6.1").choice())


def test_a_candidate_of_no_use_is_marked() -> None:
    rows = trial_rows((loses("good", 0.01), loses("bad", 0.3939), loses("kept", 0.3)), "kept")
    assert [row[-1] for row in rows[1:]] == ["", "not usable", "kept"]


def loses(name: str, loss: float) -> CandidateTrial:
    figure = Figure(loss, Interval(loss, loss))
    return CandidateTrial(DeployCandidate(name, "qdq", (), ""), figure, DeployCost(1.0, 1, ""), metric="top1")


@pytest.mark.slow
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
    with pytest.raises(QdqError, match=r"--eval-data: .*5 samples .*--data"):
        deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def losing(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let every candidate in INT8 be wrong in a share of the samples."""
    right = Judge.figure

    def figure(self: Judge, model: TargetModel) -> ResampledFigure:
        found = right(self, model)
        if model.name in ("fp16", "as-is"):
            return found
        hits = (np.arange(self.count) >= share * self.count).astype(float)
        drawn = bootstrap(lambda weights: weights @ hits / weights.sum(1), self.count)
        return replace(found, value=float(hits.mean()), drawn=drawn)

    monkeypatch.setattr(Judge, "figure", figure)

    def judgment(self: Judge, model: TargetModel) -> Judgment:
        found = self.figure(model)
        return Judgment(found, None, replace(found, metric="nearness"))

    monkeypatch.setattr(Judge, "judgment", judgment)


@pytest.mark.slow
def test_int8_that_loses_a_lot_is_kept_with_a_warning(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losing(monkeypatch, 0.2)
    words = ["deploy", str(here / "net.onnx"), "--data", str(here / "data.npy"), "--for", "7.1.3", "--effort", "fast"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    facts = json.loads((tmp_path / "out" / "deploy.json").read_text())
    assert said == [f"warning: {facts['warning']}"] and said[0] in (tmp_path / "out" / "candidates.txt").read_text()
    assert said[0].startswith(
        "warning: without labels: INT8 may lose much: top-1 agreement with FP32 loss 0.3333 (95 %: "
    )
    assert re.search("--labels .*--max-loss X ", said[0])
    assert facts["form"] == "cache" and facts["max_loss"] is None and facts["loss_word"] == "much"
    assert f"Warning: {facts['warning']}." in (tmp_path / "out" / "README.md").read_text().splitlines()


@pytest.mark.slow
def test_int8_of_no_use_is_not_kept_unasked(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, 1.0)
    options = DeployOptions("7.1.3", effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.chosen.name == "fp16" and result.warning == ""
    assert re.search("loses 1.0000, .* 0.3; --max-loss 1 ", result.reason)
    asked = replace(options, max_loss=1.0)
    assert deploy(here / "net.onnx", here / "data.npy", tmp_path / "asked", asked).chosen.form == "cache"


@pytest.mark.slow
def test_where_int8_loses_too_much_the_float_model_is_kept(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, 0.5)
    options = DeployOptions("7.1.3", effort="fast", max_loss=0.0, progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", tmp_path / "out", options)
    assert result.chosen.name == "fp16" and result.meets
    assert {"net.fp16.onnx", "net.int8.onnx", "net.int8.cache"} <= set(result.files), "INT8 to time FP16 against"
    assert main(["run", str(tmp_path / "out" / "recipe.toml"), "-q"]) == 0, "a recipe without steps runs"
    script = (tmp_path / "out" / "net.fp16.trtexec.sh").read_text()
    assert "--fp16" in script and "--int8" not in script
    assert any("FP16 is measured as FP32" in note for note in result.notes)
