# SPDX-License-Identifier: Apache-2.0
"""Each way to break a model is named first, with its gain; the healthy model has no cause."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.conditioning.edits import changing_steps
from qdqtool.data.loader import DataOptions
from qdqtool.diagnosis.cause import Cause, LossCauses
from qdqtool.diagnosis.diagnose import DiagnosisOptions, diagnose, look
from qdqtool.diagnosis.evidence import Evidence
from qdqtool.diagnosis.one_change import with_float_operators, with_scales
from qdqtool.diagnosis.suspects import ranges
from qdqtool.errors import QdqError
from qdqtool.formats import FP8
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.scales import Scale
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.collapsing_nets import residual_net, samples
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
    assert found.headline() == f"no cause of a loss found: {found.loss:.4g} is lost at the outputs"


@pytest.mark.parametrize(("factor", "name"), [(1 / 30, "saturated tensor"), (300, "dead tensor")])
def test_range_of_one_tensor(factor: float, name: str) -> None:
    model, found = healthy()
    tensor = found.tensors["/stage8a/relu/Relu_output_0"]
    broken = with_scales(model, {tensor.name: Scale.of(tensor.best / 127 * factor)})
    cause = first(causes(broken))
    assert (cause.name, cause.where) == (name, (tensor.name,))
    assert cause.figures["amax"] == pytest.approx(factor * tensor.best, rel=1e-5)


def test_two_tensors_each_of_which_loses_all() -> None:
    model, found = healthy()
    chosen = [found.tensors[f"/{name}/relu/Relu_output_0"] for name in ("stage4", "merge")]
    broken = with_scales(model, {one.name: Scale.of(one.best / 127 / 3000) for one in chosen})
    seen = causes(broken)
    assert {one.name for one in seen.causes} == {"saturated tensor"}
    assert {one.where[0] for one in seen.causes} == {one.name for one in chosen}
    assert "the gain is of 2 faults together" in first(seen).evidence


@pytest.mark.slow
@pytest.mark.parametrize("factor", [255, 1 / 255])
def test_calibrated_on_other_values_than_the_data_have(factor: float) -> None:
    found = causes(quantized(images() * np.float32(factor)))
    cause = first(found)
    assert cause.name == "preprocessing" and cause.where == ("images",)
    assert [one.name for one in found.causes] == ["preprocessing"]
    assert "the range of the input images ends at" in cause.evidence
    assert cause.remedy.options["method"] == "auto"  # that of the model: the data change, and nothing else


def wide_channel() -> onnx.ModelProto:
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
    broken = open_model(insert(wide_channel(), data=data, options=options).model)
    cause = first(diagnose(broken, data))
    assert cause.name == "per-tensor weights" and cause.where[0] == "w1"
    assert cause.figures["largest_over_median"] > 50
    fixed = insert(wide_channel(), data=data, options=InsertOptions(keep_float=0)).model
    assert diagnose(open_model(fixed), data).causes == ()


def test_remedy_is_a_command() -> None:
    model, found = healthy()
    tensor = found.tensors["/stage8a/relu/Relu_output_0"]
    cause = first(causes(with_scales(model, {tensor.name: Scale.of(tensor.best / 3000)})))
    options = ["--data", "images/", "--method", "auto", "--keep-float", "0", "-o", "b.onnx"]
    assert cause.commands("q.onnx", "b.onnx", options[:2]) == [["insert", "q.onnx", "--requantize", *options]]
    assert cause.commands("q.onnx", "b.onnx", options[:2], "m.onnx") == [["insert", "m.onnx", *options]]


def _inner(factor: float) -> Model:
    """The detector with all ranges but that of the input so many times as wide."""
    model, found = healthy()
    scales = {name: Scale.of(one.best / 127 * factor) for name, one in found.tensors.items() if name != "images"}
    return with_scales(model, scales)


def test_ranges_that_few_large_values_set() -> None:
    cause = first(causes(_inner(40)))
    assert cause.name == "outliers" and cause.figures["wide"] > cause.figures["short"]


def test_inner_ranges_that_lose_more_than_that_of_the_input() -> None:
    _, found = healthy()
    inputs = {"images": Scale.of(found.tensors["images"].best / 127 * 2.5)}
    broken = with_scales(_inner(1 / 10), inputs)
    del broken.proto.metadata_props[:]  # so that nothing tells the method from the data
    cause = causes(broken).causes[0]
    assert cause.name == "saturated tensor" and cause.figures["short"] > cause.figures["wide"]


@pytest.mark.slow
def test_calibrated_on_unlike_images() -> None:
    cause = first(causes(_inner(1 / 10)))
    assert cause.name == "calibration data" and cause.figures["short"] > cause.figures["wide"]


@pytest.mark.slow
def test_calibrated_on_a_single_image_without_objects() -> None:
    blank = images()[:2] * np.float32(0.1) + np.float32([[[[0]]], [[[0.9]]]])  # the range of the input, and no digits
    found = causes(quantized(blank))
    cause = first(found)
    assert cause.name == "calibration data" and "scales come from 2 samples" in cause.evidence


@pytest.mark.slow
def test_one_saturated_tensor_of_a_model_calibrated_on_few_samples() -> None:
    model = open_model(quantized(images()[:8]))
    broken = with_scales(model, {"/stage8a/relu/Relu_output_0": Scale.of(1e-4)})
    assert first(causes(broken)).name == "saturated tensor"


def test_calibrated_on_another_order_of_channels(tmp_path: Path) -> None:
    folder = tmp_path / "pixels.npy"
    np.save(folder, np.random.default_rng(0).integers(0, 256, (12, 12, 12, 3), np.uint8))
    net = model_of("""net (float[N,3,12,12] x) => (float[N,4,12,12] y) <float[8,3,1,1] w1, float[4,8,1,1] w2>
    { c1 = Conv(x, w1) r1 = Relu(c1) c2 = Conv(r1, w2) y = Softmax<axis=1>(c2) }""")
    weight = np.random.default_rng(1).standard_normal((8, 3, 1, 1)).astype(np.float32) * [[[0.02]], [[0.2]], [[2]]]
    net.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight.astype(np.float32), "w1"))
    read = [DataOptions(preprocess=f"color={color},scale=1/255") for color in ("bgr", "rgb")]
    model = insert(net, data=folder, options=InsertOptions(data_options=read[0], keep_float=0)).model
    cause = diagnose(open_model(model), folder, DiagnosisOptions(data_options=read[1])).causes[0]
    assert (
        cause.name == "preprocessing"
        and "its calibration data had color=bgr, the data have color=rgb" in cause.evidence
    )


def test_other_preprocessing_that_loses_nothing_does_not_come_first(tmp_path: Path) -> None:
    folder = tmp_path / "pixels.npy"
    np.save(folder, np.random.default_rng(0).integers(0, 256, (12, 12, 12, 3), np.uint8))
    net = model_of("""net (float[N,3,12,12] x) => (float[N,4,12,12] y) <float[8,3,1,1] w1, float[4,8,1,1] w2>
    { c1 = Conv(x, w1) r1 = Relu(c1) c2 = Conv(r1, w2) y = Softmax<axis=1>(c2) }""")
    read = [DataOptions(preprocess=f"color={color},scale=1/255") for color in ("bgr", "rgb")]
    options = InsertOptions(data_options=read[0], keep_float=0, calibration=CalibrationOptions(method="percentile=60"))
    model = insert(net, data=folder, options=options).model
    first = diagnose(open_model(model), folder, DiagnosisOptions(data_options=read[1])).causes[0]
    assert first.name == "saturated tensor" and first.remedy.options["method"] == "mse"


@pytest.mark.slow
def test_zero_points_come_first() -> None:
    model = quantized()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and "images" in node.input[1]:
            node.input[1], node.input[2] = "scale_of_255", "zero_of_255"
    zero = np.array(3, np.uint8)
    for name, value in (("scale_of_255", np.float32(1 / 252)), ("zero_of_255", zero)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    cause = causes(model).causes[0]
    assert (cause.name, cause.where, cause.refused, cause.gain) == ("zero points", ("images",), True, None)
    assert "uint8 with zero point 3" in cause.evidence


def test_few_channels_set_the_range() -> None:
    data = {"x": samples(16)}
    model = insert(residual_net(3), data=data, options=InsertOptions(keep_float=0)).model
    cause = first(diagnose(open_model(model), data))
    assert cause.name == "few channels" and cause.figures["channels_without_steps"] > 0.3


def _gates() -> onnx.ModelProto:
    """A depthwise convolution between two SiLUs whose channels are alike by twos; the output is their difference."""
    model = model_of("""net (float[N,8,12,12] x) => (float[N,8,12,12] y)
    <float[8,8,1,1] w1, float[8,1,3,3] w2, float[8,8,1,1] w3>
    {
     c1 = Conv(x, w1)
     s1 = Sigmoid(c1)
     m1 = Mul(c1, s1)
     c2 = Conv<group=8, pads=[1,1,1,1]>(m1, w2)
     s2 = Sigmoid(c2)
     m2 = Mul(c2, s2)
     d = Conv(m2, w3)
     y = Sigmoid(d)
    }""")
    rng = np.random.default_rng(5)
    alike = np.repeat(np.arange(4), 2)
    held = {
        "w1": rng.standard_normal((4, 8, 1, 1))[alike],
        "w2": rng.standard_normal((4, 1, 3, 3))[alike] * np.where(np.arange(8) % 2, 1.05, 1).reshape(8, 1, 1, 1),
        "w3": np.kron(np.eye(4), [[1, -1], [1, -1]])[:, :, None, None],
    }
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(held[tensor.name].astype(np.float32), tensor.name))
    return model


def test_depthwise_convolutions_with_a_silu() -> None:
    data = {"x": samples(16)}
    model = insert(_gates(), data=data, options=InsertOptions(plan=PlanOptions(float_heads="none"), keep_float=0)).model
    cause = first(diagnose(open_model(model), data))
    assert cause.name == "SiLU or depthwise"
    assert cause.figures["depthwise"] == 1 and cause.figures["silu"] >= 1


DECODED = """net (float[N,8,12,12] x) => (float[N,5,144] y) <float[8,8,3,3] w1, float[4,8,1,1] wb, float[1,8,1,1] ws>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1)
 r1 = Relu(c1)
 b = Conv(r1, wb)
 s = Conv(r1, ws)
 p = Sigmoid(s)
 e = Exp(b)
 k = Constant<value_float = 300.0>()
 d = Mul(e, k)
 j = Concat<axis=1>(d, p)
 shape = Constant<value_ints = [0, 5, 144]>()
 y = Reshape(j, shape)
}"""


def test_pairs_behind_a_head() -> None:
    model = insert(model_of(DECODED), data={"x": samples(16)}, options=InsertOptions(keep_float=0)).model
    graph = model.graph
    place = next(index for index, node in enumerate(graph.node) if node.op_type == "Reshape")
    scale = onnx.numpy_helper.from_array(np.float32(1000).reshape(()), "wide")
    graph.initializer.extend([scale, onnx.numpy_helper.from_array(np.int8(0).reshape(()), "none")])
    graph.node[place].input[0] = "j_back"
    for op, source, made in (("DequantizeLinear", "j_codes", "j_back"), ("QuantizeLinear", "j", "j_codes")):
        graph.node.insert(place, onnx.helper.make_node(op, [source, "wide", "none"], [made], name=made))
    cause = first(diagnose(open_model(model), {"x": samples(16)}))
    assert cause.name == "head in INT8" and cause.where[-1] == "j" and cause.figures["decode_pairs"] == 1


@pytest.mark.slow
def test_attention_without_some_of_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODELS))
    drawn = importlib.import_module("shapes").draw(7, 16)[0]
    sys.modules.pop("shapes", None)
    source = onnx.load(MODELS / "shapes_vit.onnx")
    whole = insert(source, data=drawn, options=InsertOptions(plan=PlanOptions(attention="int8"))).model
    assert diagnose(open_model(whole), drawn).causes == ()
    model = open_model(whole)
    softmax = next(node for node in model.view.nodes if node.op == "Softmax")
    second = model.view.consumers(softmax.outputs[0])[0].node
    torn = with_float_operators(model, [second.key], open_model(source).view)
    cause = diagnose(torn, drawn).causes[0]
    assert (cause.name, cause.where) == ("incomplete attention", (second.name,))
    assert "has none on the output of its Softmax, its values" in cause.evidence


def test_values_beyond_fp16_in_a_file_that_has_fp16() -> None:
    half = onnx.TensorProto.FLOAT16
    text = f"""net (float[N,8,12,12] x) => (float[N,8,12,12] y) <float[8,8,1,1] w1>
    {{
     c = Conv(x, w1)
     r = Relu(c)
     h = Cast<to={half}>(r)
     k = Constant<value_float = 60000.0>()
     big = Cast<to={half}>(k)
     m = Mul(h, big)
     a = Sqrt(m)
     y = Cast<to=1>(a)
    }}"""
    data, everything = {"x": samples(16)}, InsertOptions(plan=PlanOptions(float_heads="none"), keep_float=0)
    model = insert(model_of(text), data=data, options=everything).model
    cause = diagnose(open_model(model), data).causes[0]
    assert cause.name == "FP16 overflow" and cause.gain is not None and cause.gain > 0.3


def test_values_beyond_fp16() -> None:
    text = """net (float[N,8,12,12] x) => (float[N,8,12,12] y) <float[8,8,1,1] w1>
    {
     c = Conv(x, w1)
     big = Constant<value_float = 100000.0>()
     m = Mul(c, big)
     h = Abs(m)
     small = Constant<value_float = 0.00001>()
     y = Mul(h, small)
    }"""
    data, everything = {"x": samples(16)}, InsertOptions(plan=PlanOptions(float_heads="none"), keep_float=0)
    wide = insert(model_of(text), data=data, options=everything).model
    found = diagnose(open_model(wide), data)
    assert [one.name for one in found.causes] == ["FP16 overflow"]
    assert found.causes[0].gain is None and "FP32 in the file" in found.causes[0].unmeasured


def test_plain_model_is_refused() -> None:
    with pytest.raises(QdqError, match="has no Q/DQ to diagnose"):
        diagnose(open_model(DETECTOR), {"images": images()})


def test_per_tensor_weights_that_the_file_holds_as_integers() -> None:
    data = {"x": np.random.default_rng(0).uniform(0, 1, (16, 4, 8, 8)).astype(np.float32)}
    options = InsertOptions(plan=PlanOptions(weights="per-tensor"), dq_only=True, keep_float=0)
    model = open_model(insert(wide_channel(), data=data, options=options).model)
    found = diagnose(model, data)
    assert any("stored as integers" in note for note in found.notes)
    cause = found.causes[0]
    assert (cause.name, cause.gain) == ("per-tensor weights", None) and "holds integers" in cause.unmeasured
    cause = diagnose(model, data, source=open_model(wide_channel())).causes[0]
    assert cause.name == "per-tensor weights" and cause.gain is not None and cause.gain > 0.1


def test_a_changed_float_function_is_no_reference() -> None:
    """`correct` moves FP32 results so that INT8 comes right: a loss against them would say the opposite."""
    data = {"x": np.random.default_rng(0).uniform(0, 1, (16, 4, 8, 8)).astype(np.float32)}
    plan = PlanOptions(weights="per-tensor", float_heads="none")
    made = insert(wide_channel(), data=data, options=InsertOptions(plan=plan, keep_float=0, condition="correct")).model
    assert changing_steps(made) == ["correct"]
    model = open_model(made)
    with pytest.raises(QdqError, match=r"FP32 results were changed \(correct\); give the original FP32 model"):
        diagnose(model, data)
    result = lint(made, data=data)
    assert result.causes is None and any("give the original FP32 model as --source" in note for note in result.notes)
    found = lint(made, LintOptions(source=wide_channel()), data=data)
    assert (
        found.causes is not None and found.causes.loss == diagnose(model, data, source=open_model(wide_channel())).loss
    )


def test_weights_of_four_bits_are_no_reference() -> None:
    """Without its pairs the model has the weights that were rounded, beside which nothing is lost."""
    net = "g (float[1,64] x) => (float[1,64] y) <float[64,64] w> { y = MatMul(x, w) }"
    data = {"x": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
    plan = PlanOptions(format="int4", float_heads="none")
    made = insert(model_of(net, 21), data=data, options=InsertOptions(plan=plan)).model
    with pytest.raises(QdqError, match="weights are stored in 4 bits; give the original FP32 model"):
        diagnose(open_model(made), data)
    loss = diagnose(open_model(made), data, source=open_model(model_of(net, 21))).loss
    assert loss is not None and loss > 1e-4


ATTENTION = """
net (float[1,4,64,32] q, float[1,4,32,64] k, float[1,4,64,32] v) => (float[1,4,64,32] y)
<float d = {5.6}, float[32,32] w, float[32,32] u>
{ s = MatMul(q, k) m = Div(s, d) p = Softmax(m) o = MatMul(p, v) h = MatMul(o, w) r = Relu(h) y = MatMul(r, u) }
"""


def attention_data() -> dict[str, npt.NDArray[np.float32]]:
    drawn, shapes = np.random.default_rng(0), {"q": (4, 64, 32), "k": (4, 32, 64), "v": (4, 64, 32)}
    return {name: drawn.standard_normal((8, *shape)).astype(np.float32) for name, shape in shapes.items()}


def test_weights_of_a_model_with_int8_attentions_are_grafted_with_them() -> None:
    data, model = attention_data(), model_of(ATTENTION)
    held = next(one for one in model.graph.initializer if one.name == "w")
    weight = onnx.numpy_helper.to_array(held).copy()
    data["v"][..., 0], weight[0, 0] = 0, 3000  # a large weight that nothing passes
    held.CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    asked = InsertOptions(PlanOptions(attention="int8", weights="per-tensor", float_heads="none"), keep_float=0)
    cause = diagnose(open_model(insert(model, data=data, options=asked).model), data).causes[0]
    assert cause.name == "per-tensor weights" and cause.remedy.verb == "graft"
    assert cause.remedy.options["attention"] == "int8"


@pytest.mark.parametrize("attention", ["int8", "float"])
def test_remedy_keeps_attentions_as_they_are(attention: Literal["int8", "float"]) -> None:
    data = attention_data()
    asked = InsertOptions(PlanOptions(attention=attention), CalibrationOptions(method="percentile=60"), keep_float=0)
    model = insert(model_of(ATTENTION), data=data, options=asked).model
    cause = first(diagnose(open_model(model), data))
    assert cause.name == "saturated tensor"
    assert cause.remedy.options.get("attention") == ("int8" if attention == "int8" else None)


FP8_NET = """
net (float[N,32,8,8] x) => (float[N,32,8,8] y) <float[32,32,3,3] w, float[32,32,3,3] v>
{ c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Conv<pads=[1,1,1,1]>(r, v) }
"""
FP8_DATA = {"x": np.random.default_rng(1).standard_normal((8, 32, 8, 8)).astype(np.float32)}


def in_fp8(method: str) -> Model:
    asked = InsertOptions(PlanOptions(format="fp8"), CalibrationOptions(method=method), keep_float=0)
    return open_model(insert(model_of(FP8_NET), data=FP8_DATA, options=asked).model)


@pytest.mark.parametrize(("method", "name"), [("percentile=60", "saturated tensor"), ("max", None)])
def test_ranges_of_fp8(method: str, name: str | None) -> None:
    found = diagnose(in_fp8(method), FP8_DATA)
    assert [one.name for one in found.causes] == [name] * (name is not None)
    for cause in found.causes:
        assert cause.remedy.options == {"method": "max", "format": "fp8", "keep-float": "0"}


@pytest.mark.parametrize(("factor", "name"), [(1 / 30, "saturated tensor"), (1e6, "dead tensor")])
def test_range_of_one_fp8_tensor(factor: float, name: str) -> None:
    model = in_fp8("max")
    tensor = look(model, FP8_DATA, DiagnosisOptions(), None)[0].tensors["r"]
    assert tensor.format == FP8 and tensor.drop == pytest.approx(0, abs=0.1)
    broken = with_scales(model, {"r": Scale.of(FP8.scale_of(tensor.best * factor), format=FP8)})
    cause = first(diagnose(broken, FP8_DATA))
    assert (cause.name, cause.where) == (name, ("r",))


def test_ranges_of_fp8_that_are_a_little_wide_are_suspected_of_nothing() -> None:
    """What they seem to win or lose is how values happen to fall on the grid."""
    model = in_fp8("max")
    tensors = look(model, FP8_DATA, DiagnosisOptions(), None)[0].tensors
    wide = {name: Scale.of(FP8.scale_of(one.best * 1.4), format=FP8) for name, one in tensors.items()}
    found, _ = look(with_scales(model, wide), FP8_DATA, DiagnosisOptions(), None)
    assert {one.amax > one.best for one in found.tensors.values()} == {True}
    assert list(ranges(found)) == []
