# SPDX-License-Identifier: Apache-2.0
"""improve: what is tried until it is enough, what is written, and who is to blame where it never is."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import ImproveOptions, InsertOptions, improve, insert
from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure
from qdqtool.graph.view import GraphView
from qdqtool.passes.peel import has_qdq
from qdqtool.verbs.target_model import TargetModel
from qdqtool.workflows.judge import Judge
from tests.graphs import SMALL_NET, model_of

MAP_NET = """net (float[N,4,8,8] x) => (float[N,4,8,8] y) <float[4,4,3,3] w1, float[4,4,3,3] w2>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1)
 r1 = Relu(c1)
 y = Conv<pads=[1,1,1,1]>(r1, w2)
}"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, its Q/DQ form with scales that clip nearly everything, and data."""
    folder = tmp_path_factory.mktemp("improve")
    onnx.save(model_of(SMALL_NET), folder / "net.onnx")
    np.save(folder / "data.npy", np.random.default_rng(0).normal(size=(48, 4, 8, 8)).astype(np.float32))
    bad = InsertOptions(calibration="percentile=20", keep_float=0)
    insert(folder / "net.onnx", data=folder / "data.npy", options=bad, output=folder / "bad.onnx")
    return folder


def losses(monkeypatch: pytest.MonkeyPatch, found: dict[str, float], wide: float = 0.0) -> list[str]:
    """Let models lose what a table says, by their names; what is not in it loses .5. The names that were judged."""
    asked: list[str] = []

    def loss(self: Judge, model: TargetModel) -> Figure:
        asked.append(model.name)
        value = found.get(model.name, 0.5)
        return Figure(value, Interval(value - wide, value + wide))

    monkeypatch.setattr(Judge, "loss", loss)
    return asked


def options(most: float = 0.1, **more: object) -> ImproveOptions:
    return ImproveOptions(max_loss=most, progress=False, **more)  # type: ignore[arg-type]


def test_a_better_method_is_found_and_written(here: Path, tmp_path: Path) -> None:
    onnx.save(model_of(MAP_NET), tmp_path / "net.onnx")
    bad = InsertOptions(calibration="percentile=20", keep_float=0)
    insert(tmp_path / "net.onnx", data=here / "data.npy", options=bad, output=tmp_path / "bad.onnx")
    result = improve(tmp_path / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options(0.01, finetune=False))
    given, best = result.trials[0], result.best
    assert given.loss is not None and best.loss is not None and best.loss.value < 0.01 < given.loss.value
    assert result.meets and result.metric.startswith("fidelity")
    assert has_qdq(GraphView(onnx.load(tmp_path / "out.onnx").graph))
    assert result.samples == {"calibrate": 24, "choose": 12, "report": 12}
    text = "\n".join(result.summary())
    assert "as given" in text and "bought" in text and f"wrote {tmp_path / 'out.onnx'}: {best.candidate.name}" in text


def test_it_stops_where_it_is_enough(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = losses(monkeypatch, {"method mse": 0.05})
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options())
    assert asked == ["as given", "method auto", "method mse", "method mse"]  # the last one is the report
    assert result.meets and not result.to_blame and result.best.candidate.name == "method mse"


def test_a_model_that_is_good_enough_stays_as_it_is(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(monkeypatch, {"as given": 0.0})
    improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options())
    assert (tmp_path / "out.onnx").read_bytes() == (here / "bad.onnx").read_bytes()


@pytest.mark.slow
def test_where_it_is_never_enough_operators_are_named(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = losses(monkeypatch, {"condition": 0.3})
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options(finetune=False))
    assert asked[:5] == ["as given", "method auto", "method mse", "method entropy", "condition"]
    assert {"condition, keep-float auto", "condition, keep-float 4"} <= set(asked)
    assert not result.meets and result.best.candidate.name == "condition" and result.to_blame
    assert "it has in INT8 these lose most" in result.summary()[-1]
    facts = result.to_json()
    assert facts["kept"] == "condition" and facts["met"] is False and facts["to_blame"] == dict(result.to_blame)


def test_few_samples_that_cannot_show_it_end_a_stage_and_not_the_search(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A looser bound gave a worse model: the first attempt that won nothing ended all."""
    asked = losses(monkeypatch, {"method auto": 0.08, "method mse": 0.05, "condition": 0.045}, wide=0.06)
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options(finetune=False))
    methods = ["method auto", "method mse", "method entropy"]  # mse wins something, entropy does not any more
    assert asked == ["as given", *methods, "condition", "condition, keep-float auto", "condition"]
    assert not result.meets and result.verdict().startswith("the loss is 0.0450, which --max-loss 0.1 allows, but 12 ")
    assert "up to 0.1050" in result.verdict() and "--by-value" in result.verdict()
    asked.clear()
    losses(monkeypatch, {"as given": 0.08}, wide=0.06)
    trials = improve(here / "bad.onnx", here / "data.npy", tmp_path / "o.onnx", options(finetune=False)).trials
    named = [one.candidate.name for one in trials]
    assert named == ["as given", "method auto", "condition", "method auto, keep-float auto"]


def test_without_labels_it_is_said_what_was_not_measured(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector whose agreement rose and whose mAP fell was told as a success."""
    losses(monkeypatch, {"method auto": 0.0})
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options())
    said = "top-1 agreement with FP32 is all that was measured: without --labels the task's own metric (mAP, accuracy)"
    assert result.meets and any(line.startswith(said) for line in result.summary())
    assert result.to_json()["labeled"] is False
    np.save(tmp_path / "own.npy", np.zeros(48, np.int64))
    labeled = options(labels=tmp_path / "own.npy")
    known = improve(here / "bad.onnx", here / "data.npy", tmp_path / "own.onnx", labeled)
    assert known.labeled and not any("was measured" in line for line in known.summary())


def test_the_loss_itself_is_enough_where_that_is_asked_for(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = losses(monkeypatch, {"method auto": 0.08}, wide=0.06)
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options(by_value=True))
    assert asked == ["as given", "method auto", "method auto"] and result.meets and result.verdict() == ""


def test_the_written_models_own_operators_are_told(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves in float is named, and is not among those that lose most."""
    kept = InsertOptions(calibration="mse", keep_float=1)
    insert(here / "net.onnx", data=here / "data.npy", options=kept, output=tmp_path / "kept.onnx")
    losses(monkeypatch, {"as given": 0.3})
    result = improve(tmp_path / "kept.onnx", here / "data.npy", tmp_path / "out.onnx", options(finetune=False))
    assert len(result.in_float) == 1 and result.to_blame and not set(result.in_float) & set(result.to_blame)
    assert any("leaves 1 operator" in line and line.endswith(f": {result.in_float[0]}") for line in result.summary())
    assert result.to_json()["in_float"] == list(result.in_float) and "is not met" in result.verdict()


@pytest.fixture(scope="module")
def foreign(here: Path) -> Path:
    """The model as another tool may write it: with zero points, which TensorRT refuses."""
    model = onnx.load(here / "bad.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT8 and not tensor.dims:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.int8(3), tensor.name))
    del model.metadata_props[:]
    onnx.save(model, here / "foreign.onnx")
    return here / "foreign.onnx"


def test_what_tensorrt_refuses_is_measured_and_not_kept(
    foreign: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = losses(monkeypatch, {"as given": 0.0, "method auto": 0.05})
    result = improve(foreign, here / "data.npy", tmp_path / "out.onnx", options(trt_version="8.6.1"))
    assert asked == ["as given", "method auto", "method auto"] and result.meets
    given = result.trials[0]
    assert given.loss is not None and given.refused.startswith("lint finds ") and "refused" in given.to_json()
    assert [row[-1] for row in result.rows()[1:]] == ["refused", "kept"] and "refused" not in result.best.to_json()
    assert any(line.startswith(f"as given: {given.refused}; ") for line in result.summary())


def test_what_tensorrt_refuses_is_kept_where_nothing_else_can_be_made(
    foreign: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise QdqError("net.onnx", "is not for this", "try another")

    losses(monkeypatch, {"as given": 0.0})
    monkeypatch.setattr(import_module("qdqtool.workflows.improve"), "carry_out", failing)
    result = improve(foreign, here / "data.npy", tmp_path / "out.onnx", options())
    assert result.best.candidate.name == "as given" and not result.meets
    assert "finetune" not in {one.candidate.name for one in result.trials}, "training leaves pairs where they are"
    assert "nothing else" in result.verdict() and result.verdict().endswith(f": {result.best.refused}")


def test_for_a_board_that_reads_caches_pairs_are_no_matter(
    foreign: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(monkeypatch, {"as given": 0.0})
    asked = options(target="dla", trt_version="8.5.2")
    assert improve(foreign, here / "data.npy", tmp_path / "out.onnx", asked).best.refused == ""


@pytest.mark.slow
def test_training_begins_at_the_best_file(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("qdqtool.deploying.improvements")
    monkeypatch.setattr(module, "FINETUNE_STEPS", 2)
    losses(monkeypatch, {"method auto": 0.3, "method auto, finetune": 0.01})
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", options())
    assert result.best.candidate.name == "method auto, finetune" and result.meets


def test_the_fp32_model_may_be_given(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses(monkeypatch, {"method auto": 0.0})
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "o.onnx", options(source=here / "net.onnx"))
    assert result.meets


def test_a_typed_model_stays_typed(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = InsertOptions(calibration="mse", keep_float=0, rest="fp16")
    insert(here / "net.onnx", data=here / "data.npy", options=typed, output=tmp_path / "typed.onnx")
    losses(monkeypatch, {"method auto": 0.0})
    improve(tmp_path / "typed.onnx", here / "data.npy", tmp_path / "o.onnx", options())
    assert "Cast" in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}


def test_bad_requests_are_refused_and_nothing_is_written(here: Path, tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="has no Q/DQ to improve"):
        improve(here / "net.onnx", here / "data.npy", tmp_path / "o.onnx", options())
    with pytest.raises(QdqError, match=r"--source .*bad\.onnx: has Q/DQ"):
        improve(here / "bad.onnx", here / "data.npy", tmp_path / "o.onnx", options(source=here / "bad.onnx"))
    with pytest.raises(QdqError, match="is the input"):
        improve(here / "bad.onnx", here / "data.npy", here / "bad.onnx", options())
    for wrong, said in (
        ({"max_loss": None}, "--max-loss: says when it is enough"),
        ({"max_loss": 3.0}, "is not between 0 and 1"),
        ({"max_loss": 0.1, "metric": "f1"}, "choose top1, coco, voc"),
        ({"max_loss": 0.1, "data_options": DataOptions(part=":8")}, "is chosen by improve"),
        ({"max_loss": 0.1, "data_options": DataOptions(limit=8)}, "--limit: is not for improve"),
        ({"max_loss": 0.1, "target": "tpu"}, "choose gpu or rtx or dla"),
    ):
        with pytest.raises(QdqError, match=said):
            ImproveOptions(**wrong)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_labels_of_other_samples_report_alone_and_that_is_said(here: Path, tmp_path: Path) -> None:
    """The table was headed by the metric of the report, though attempts were held against agreement."""
    np.save(tmp_path / "other.npy", np.random.default_rng(1).normal(size=(24, 4, 8, 8)).astype(np.float32))
    np.save(tmp_path / "classes.npy", np.zeros(24, np.int64))
    asked = options(0.5, finetune=False, labels=tmp_path / "classes.npy", eval_data=tmp_path / "other.npy")
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", asked)
    assert (result.metric, result.chosen_by) == ("top-1", "top-1 agreement with FP32")
    assert result.to_json()["chosen_by"] == "top-1 agreement with FP32"
    lines = result.summary()
    assert any(line.startswith("losses of top-1 agreement with FP32, on ") for line in lines)
    assert any(line.startswith("losses of top-1 agreement with FP32") for line in lines)
    assert any(re.search("--max-loss by top-1 agreement with FP32, .* by top-1$", line) for line in lines)
    assert any("nothing is chosen" in line for line in lines)
    own = options(0.5, finetune=False, labels=tmp_path / "own.npy")
    np.save(tmp_path / "own.npy", np.zeros(48, np.int64))
    whole = improve(here / "bad.onnx", here / "data.npy", tmp_path / "own.onnx", own)
    assert whole.metric == whole.chosen_by == "top-1" and not any("held against" in note for note in whole.notes)


@pytest.mark.parametrize("version", [None, "8.5.2"])
def test_for_a_dla_no_version_is_needed(here: Path, tmp_path: Path, version: str | None) -> None:
    asked = options(1.0, finetune=False, target="dla", trt_version=version)
    result = improve(here / "bad.onnx", here / "data.npy", tmp_path / "out.onnx", asked)
    assert result.meets and result.best.cost is not None
    assert (result.best.cost.on_gpu > 0) == (version is not None), "what falls back is known of a version alone"
