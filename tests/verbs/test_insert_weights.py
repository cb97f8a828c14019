# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""`insert --format int4`: which weights, in which file, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtool import InsertOptions, PeelOptions, insert, peel, plan
from qdqtool.errors import QdqError
from qdqtool.graph.edit import edits_of
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.match.weight_points import blocks_notes

GRAPH = """
<ir_version: 10, opset_import: ["" : 17]>
net (float[n, 8, 64] x) => (float[n, 8, 24] y)
<float[64, 128] w1 = {0}, float[96, 128] w2 = {0}, float[96] b2 = {0}, float[96, 24] w3 = {0}, float[24, 24] w4 = {0}, int64[2] flat = {-1, 128}, int64[3] deep = {-1, 8, 96}>
{
    m1 = MatMul(x, w1)
    r1 = Relu(m1)
    f1 = Reshape(r1, flat)
    g2 = Gemm<transB = 1>(f1, w2, b2)
    d2 = Reshape(g2, deep)
    r2 = Relu(d2)
    m3 = MatMul(r2, w3)
    y = MatMul(m3, w4)
}
"""


def network(text: str = GRAPH) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = (rng.standard_t(4, tuple(tensor.dims)) * 0.1).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def samples(count: int = 6, seed: int = 1) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.standard_normal(64)).astype(np.float32)
    return [{"x": (rng.standard_normal((1, 8, 64)) * spread).astype(np.float32)} for _ in range(count)]


def stored(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    codes = {one.name for one in model.graph.initializer if one.data_type == onnx.TensorProto.INT4}
    return {node.input[0]: node for node in model.graph.node if node.input and node.input[0] in codes}


def run(model: onnx.ModelProto, feed: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feed)[0]


INT4 = InsertOptions(PlanOptions(format="int4"))


def test_weights_alone_are_stored_in_blocks_along_the_axis_that_is_summed_over() -> None:
    made = insert(network(), options=INT4).model
    onnx.checker.check_model(made, full_check=True)
    found = {name: {one.name: one.i for one in node.attribute} for name, node in stored(made).items()}
    assert found == {
        "w1_Q": {"axis": 0, "block_size": 32},
        "w2_Q": {"axis": 1, "block_size": 64},
        "w3_Q": {"axis": 0, "block_size": 32},
    }
    kept = {one.name: tuple(one.dims) for one in made.graph.initializer}
    assert "w1" not in kept and kept["w1_scale"] == (2, 128) and kept["w2_scale"] == (96, 2)
    assert "w4" in kept
    assert not any(node.op_type == "QuantizeLinear" for node in made.graph.node)
    assert made.opset_import[0].version == 21


def test_codes_in_the_file_are_those_of_the_formula() -> None:
    model = network()
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    made = {one.name: onnx.numpy_helper.to_array(one) for one in insert(model, options=INT4).model.graph.initializer}
    for name, axis, block in (("w1", 0, 32), ("w2", 1, 64), ("w3", 0, 32)):
        scale = made[f"{name}_scale"]
        amax = np.abs(np.stack(np.split(weights[name], scale.shape[axis], axis))).max(axis=1 + axis)
        expected = (amax / np.float32(7)).astype(np.float16).astype(np.float32)
        assert (expected if axis == 0 else expected.T).tobytes() == scale.tobytes()
        codes = np.clip(np.rint(weights[name] / np.repeat(scale, block, axis)), -8, 7)
        assert codes.astype(ml_dtypes.int4).tobytes() == made[f"{name}_Q"].astype(ml_dtypes.int4).tobytes()


def test_weights_that_no_block_divides_are_counted_with_the_reason() -> None:
    (sizes, left) = blocks_notes(plan(network(), PlanOptions(format="int4", float_heads="none")))
    assert "weights in blocks of 32" in sizes and left.startswith("1 weight stays in float (1: the 24 values")


def test_the_search_loses_less_than_rounding_on_other_data() -> None:
    model, fresh = network(), samples(20, seed=1)[6:]
    plain = insert(model, options=INT4).model
    found = insert(model, data=samples(), options=INT4)
    assert any("scale per block" in note for note in found.notes)
    assert "weights in INT4" in found.plan.counts()[0]
    assert found.output_loss is not None and found.output_loss.value is not None
    errors = [
        sum(float(np.square(run(one, feed) - run(model, feed)).sum()) for feed in fresh) for one in (plain, found.model)
    ]
    assert errors[1] < 0.8 * errors[0]


def test_scales_have_the_type_of_the_product_and_no_cast_stands_between() -> None:
    found = insert(network(), data=samples(), options=InsertOptions(PlanOptions(format="int4"), rest="fp16"))
    made = found.model
    assert any("3 of them with weights in INT4" in line for line in found.summary())
    onnx.checker.check_model(made, full_check=True)
    kinds = {one.name: one.data_type for one in made.graph.initializer}
    nodes = stored(made)
    assert len(nodes) == 3
    for node in nodes.values():
        assert kinds[node.input[1]] == onnx.TensorProto.FLOAT16
        readers = [one.op_type for one in made.graph.node if node.output[0] in one.input]
        assert readers in (["MatMul"], ["Gemm"])
    feed = samples(1)[0]
    np.testing.assert_allclose(
        run(made, feed), run(insert(network(), data=samples(), options=INT4).model, feed), rtol=0.05, atol=0.1
    )


def test_peel_gives_the_source_back_to_the_byte_and_says_what_it_gives_without(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(network(), source)
    for rest in ("fp32", "fp16"):
        options = InsertOptions(PlanOptions(format="int4"), rest=rest)
        made = insert(source, data=samples(), options=options, output=tmp_path / f"{rest}.onnx").model
        back = peel(made, PeelOptions(trt_version="8.6.1", source=source), output=tmp_path / "back.onnx")
        assert (tmp_path / "back.onnx").read_bytes() == source.read_bytes()
        assert any("no cache is written" in note for note in back.notes)
        alone = peel(made, PeelOptions(trt_version="8.6.1"), output=tmp_path / f"{rest}.alone.onnx")
        assert any("INT4 codes" in note and "--source" in note for note in alone.notes)
        feed = samples(1)[0]
        close = 0.0 if rest == "fp32" else 0.1
        np.testing.assert_allclose(
            run(onnx.load(str(alone.model)), feed),
            run(onnx.load(str(made)), feed),
            rtol=close or 1e-5,
            atol=close or 1e-5,
        )
        with pytest.raises(QdqError, match="INT4"):
            peel(made, PeelOptions(trt_version="8.6.1"), output=tmp_path / "no.onnx", cache=tmp_path / "no.cache")
        assert not (tmp_path / "no.onnx").exists()


def test_a_weight_that_is_read_elsewhere_stays_and_a_constant_node_goes() -> None:
    model = network()
    model.graph.node.append(onnx.helper.make_node("Identity", ["w1"], ["copy"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("copy", onnx.TensorProto.FLOAT, [64, 128]))
    w3 = next(one for one in model.graph.initializer if one.name == "w3")
    constant = onnx.helper.make_node("Constant", [], ["w3"], value=w3)
    model.graph.node.insert(0, constant)
    model.graph.initializer.remove(w3)
    made = insert(model, options=INT4).model
    onnx.checker.check_model(made, full_check=True)
    assert "w1" in {one.name for one in made.graph.initializer}
    assert set(stored(made)) == {"w1_Q", "w2_Q", "w3_Q"}
    assert not any(node.op_type == "Constant" for node in made.graph.node)


def test_what_keeps_its_weight_is_said_with_the_reason() -> None:
    found = plan(network(), PlanOptions(format="int4"))
    assert [(point.tensor, point.block) for point in found.points] == [("w1", 32), ("w2", 64), ("w3", 32)]
    assert not found.activations
    assert [(one.site, one.rule) for one in found.refusals] == [("y", "float-head")]
    assert "no bounds" in found.refusals[0].reason
    only = plan(network(), PlanOptions(format="int4", block=64))
    assert [point.tensor for point in only.points] == ["w2"]
    assert {one.site for one in only.refusals if "not two or more blocks of 64" in one.reason} == {"m1", "m3"}
    kept = plan(network(), PlanOptions(format="int4", keep_float=("g2",)))
    assert [point.tensor for point in kept.points] == ["w1", "w3"]


def test_a_weight_has_two_axes_and_is_the_second_input() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[2, 64, 64] x) => (float[2, 64, 64] y)
        <float[64, 64] left = {0}, float[2, 64, 64] deep = {0}> { a = MatMul(left, x) y = MatMul(a, deep) }"""
    found = plan(network(text), PlanOptions(format="int4", float_heads="none"))
    assert [one.reason for one in found.refusals] == [
        "its weight is its first input: INT4 takes two axes, as second input",
        "its weight has 3 axes: INT4 takes two axes, as second input",
    ]


def test_an_old_version_another_length_and_a_search_for_layers_are_refused() -> None:
    with pytest.raises(QdqError, match=r"8\.6.*INT4"):
        insert(network(), options=InsertOptions(PlanOptions(format="int4", trt_version="8.6.1")))
    with pytest.raises(QdqError, match=r"--block 48"):
        PlanOptions(format="int4", block=48)
    with pytest.raises(QdqError, match="one per block"):
        insert(network(), data=samples(), options=InsertOptions(PlanOptions(format="int4"), keep_float=1))


@pytest.mark.parametrize("name", ["int4", "nvfp4"])
def test_a_model_with_halves_is_refused(name: str) -> None:
    half = network()
    for tensor in half.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    with pytest.raises(QdqError, match=f"FP16 or BF16 tensors, and --format {name} stores"):
        insert(half, options=InsertOptions(PlanOptions(format=name)))


def test_pairs_that_are_there_stay() -> None:
    made = insert(network(), options=INT4).model
    again = insert(made, options=INT4).model
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    assert len(Model(again).view.pairs) == 3


NORMED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 6, 64] x) => (float[n, 6, 64] y)
<float[64] g = {0}, float[64] b = {0}, float[64, 128] w1 = {0}, float[128, 64] w2 = {0}>
{
    h = LayerNormalization<axis = -1>(x, g, b)
    m1 = MatMul(h, w1)
    r1 = Relu(m1)
    m2 = MatMul(r1, w2)
    y = Softmax<axis = -1>(m2)
}
"""


def normed() -> onnx.ModelProto:
    """A norm whose channels differ in size by a factor of 100, as outlier channels of transformers do."""
    model, rng = onnx.parser.parse_model(NORMED), np.random.default_rng(3)
    for tensor in model.graph.initializer:
        value = (rng.standard_normal(tuple(tensor.dims)) * 0.1).astype(np.float32)
        if tensor.name == "g":
            value = np.where(np.arange(64) % 16 == 5, 20, 0.2).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def test_smoothing_goes_into_the_norm_before_and_gives_large_channels_finer_codes(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    data = [{"x": rng.standard_normal((1, 6, 64)).astype(np.float32)} for _ in range(24)]
    source = tmp_path / "m.onnx"
    onnx.save(normed(), source)
    made = {
        condition: insert(
            source,
            data=data[:12],
            options=InsertOptions(PlanOptions(format="int4", block=16), condition=condition),
            output=tmp_path / f"q{condition}.onnx",
        ).model
        for condition in ("", "smooth")
    }
    plain, smooth = (onnx.load(str(path)) for path in made.values())
    assert [node.op_type for node in plain.graph.node] == [node.op_type for node in smooth.graph.node]
    assert {edit["site"] for edit in edits_of(smooth)} >= {"h"}
    exact = [run(normed(), feed) for feed in data[12:]]
    errors = [
        sum(float(np.square(run(model, feed) - at).sum()) for feed, at in zip(data[12:], exact, strict=True))
        for model in (plain, smooth)
    ]
    assert errors[1] < 0.9 * errors[0]
    options = PeelOptions(trt_version="8.6.1", source=source)
    notes = peel(made["smooth"], options, output=tmp_path / "back.onnx").notes
    assert (tmp_path / "back.onnx").read_bytes() == source.read_bytes()
    assert any("edits of condition" in note for note in notes)
