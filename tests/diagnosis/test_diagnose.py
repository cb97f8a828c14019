# SPDX-License-Identifier: Apache-2.0
"""Each way to break a model is named first, with its gain; the healthy model has no cause."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.diagnosis.cause import Cause, LossCauses
from qdqtool.diagnosis.diagnose import DiagnosisOptions, diagnose, look
from qdqtool.diagnosis.evidence import Evidence
from qdqtool.diagnosis.one_change import with_scales
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import SMALL_NET, model_of

MODELS = Path(__file__).parents[2] / "models"
DETECTOR = MODELS / "digits_detector.onnx"


@cache
def images() -> npt.NDArray[np.float32]:
    """The calibration images of the detector."""
    with np.load(MODELS / "digits_calib.npz") as held:
        taken: npt.NDArray[np.float32] = held["images"][:24]
    return taken


def quantized(data: npt.NDArray[np.float32] | None = None) -> onnx.ModelProto:
    """The detector in INT8, calibrated on its own images or on others."""
    return insert(onnx.load(DETECTOR), data={"images": images() if data is None else data}).model


@cache
def healthy() -> tuple[Model, Evidence]:
    """The detector in INT8 and what it holds."""
    model = open_model(quantized())
    return model, look(model, {"images": images()}, DiagnosisOptions(), None)[0]


def causes(model: Model | onnx.ModelProto, source: onnx.ModelProto | None = None) -> LossCauses:
    """The causes of a detector on its images."""
    opened = open_model(model) if isinstance(model, onnx.ModelProto) else model
    return diagnose(opened, {"images": images()}, source=None if source is None else open_model(source))


def first(found: LossCauses) -> Cause:
    """The likely cause, whose gain is most of the loss."""
    cause = found.causes[0]
    assert found.loss is not None and cause.gain is not None
    assert cause.gain > 0.5 * found.loss
    return cause


def test_healthy_model_has_no_cause() -> None:
    found = causes(healthy()[0])
    assert found.causes == () and found.loss is not None and found.loss < 0.01
    assert found.headline() == "no cause of a loss found"


@pytest.mark.parametrize(("factor", "name"), [(1 / 30, "saturated tensor"), (300, "dead tensor")])
def test_range_of_one_tensor(factor: float, name: str) -> None:
    model, found = healthy()
    tensor = found.tensors["/stage8a/relu/Relu_output_0"]
    broken = with_scales(model, {tensor.name: np.float32(tensor.best / 127 * factor)})
    cause = first(causes(broken))
    assert (cause.name, cause.where) == (name, (tensor.name,))
    assert cause.figures["amax"] == pytest.approx(factor * tensor.best, rel=1e-5)


@pytest.mark.parametrize("factor", [255, 1 / 255])
def test_calibrated_on_other_values_than_the_data_have(factor: float) -> None:
    found = causes(quantized(images() * np.float32(factor)))
    cause = first(found)
    assert cause.name == "preprocessing" and cause.where == ("images",)
    assert [one.name for one in found.causes] == ["preprocessing"]
    assert "the range of the input images ends at" in cause.evidence


def _wide_channel() -> onnx.ModelProto:
    """A net in which one output channel has weights a hundred times as large, and hardly ever passes its ReLU."""
    model = model_of(SMALL_NET)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    weight, bias = (onnx.numpy_helper.to_array(held[name]).copy() for name in ("w1", "b1"))
    weight[0] *= 100
    bias[0] = -1e4
    held["w1"].CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    held["b1"].CopyFrom(onnx.numpy_helper.from_array(bias, "b1"))
    return model


def test_per_tensor_weights() -> None:
    data = {"x": np.random.default_rng(0).uniform(0, 1, (16, 4, 8, 8)).astype(np.float32)}
    options = InsertOptions(plan=PlanOptions(weights="per-tensor"), keep_float=0)
    broken = open_model(insert(_wide_channel(), data=data, options=options).model)
    cause = first(diagnose(broken, data))
    assert cause.name == "per-tensor weights" and cause.where[0] == "w1"
    assert cause.figures["largest_over_median"] > 50
    fixed = insert(_wide_channel(), data=data, options=InsertOptions(keep_float=0)).model
    assert diagnose(open_model(fixed), data).causes == ()


def test_remedy_is_a_command() -> None:
    model, found = healthy()
    tensor = found.tensors["/stage8a/relu/Relu_output_0"]
    cause = first(causes(with_scales(model, {tensor.name: np.float32(tensor.best / 3000)})))
    options = ["--data", "images/", "--method", "mse", "-o", "b.onnx"]
    assert cause.remedy_words("q.onnx", "b.onnx", options[:2]) == ["insert", "q.onnx", "--requantize", *options]
    assert cause.remedy_words("q.onnx", "b.onnx", options[:2], "m.onnx") == ["insert", "m.onnx", *options]


def test_plain_model_is_refused() -> None:
    with pytest.raises(QdqError, match="has no Q/DQ to diagnose"):
        diagnose(open_model(DETECTOR), {"images": images()})
