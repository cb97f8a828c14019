# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""FLOAT wherever a model says FP16 or BF16, nodes as they are; which types a model names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.precision.retype import mentioned_types, retyped
from tests.precision.typed_graphs import half, typed_model

F32, F16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("g (float16[N] x) => (float[N] y) { y = Cast<to = 1>(x) }", {F16, F32}),
        ("g (float[N] x) => (float[N] y) { a = Cast<to = 16>(x) y = Cast<to = 1>(a) }", {BF16, F32}),
        ("g (float[N] x) => (float[N] y) { y = LayerNormalization<stash_type = 16>(x, x) }", {BF16, F32}),
        ("g (float[N] x) => (float[N] y) { y = Add(x, x) }", {F32}),
        ("g (float[N] x) => (float[N] y) <float16[N] a> { a = trt.P(x) y = trt.P(a) }", {F16, F32}),
        ("g (seq(bfloat16[N]) x, int64 i) => (float[N] y) { a = SequenceAt(x, i) y = Cast<to = 1>(a) }", {BF16, F32, 7}),
        ("g (float[N] x) => (map(int64, float16[N]) y) { y = trt.P(x) }", {F16, F32}),
        ("g (float[N] x, bool c) => (float[N] y) { y = If(c) <then_branch = t () => (float[N] a) { h = Cast<to = 10>(x) a = Cast<to = 1>(h) }, else_branch = e () => (float[N] b) { b = Neg(x) }> }", {F16, F32, 9}),
    ],
)  # fmt: skip
def test_types_that_a_model_names(text: str, kinds: set[int]) -> None:
    model = typed_model(text)
    assert set(mentioned_types(model)) == kinds
    made = retyped(model)
    assert set(mentioned_types(made)) == {F32 if kind in (F16, BF16) else kind for kind in kinds}
    assert [node.op_type for node in made.graph.node] == [node.op_type for node in model.graph.node]


def test_tensors_in_attributes_and_sparse_weights() -> None:
    node = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(half(1.5, -2), "v"))
    values = numpy_helper.from_array(half(3), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [2])
    made = helper.make_node("Constant", [], ["w2"], sparse_value=sparse)
    out = [helper.make_tensor_value_info("k", F16, [2])]
    graph = helper.make_graph([node, made], "g", [], out, sparse_initializer=[sparse])
    found = retyped(helper.make_model(graph, ir_version=8)).graph
    assert numpy_helper.to_array(found.node[0].attribute[0].t).tolist() == [1.5, -2]
    for one in (found.node[1].attribute[0].sparse_tensor, found.sparse_initializer[0]):
        assert (one.values.data_type, numpy_helper.to_array(one.values).tolist()) == (F32, [3])


def test_an_exact_copy_of_the_rest() -> None:
    model = typed_model("g (float[N] x) => (float[N] y) { y = Add(x, w) }", w=np.float32(1.5))
    model.doc_string, model.producer_name = "kept", "kept"
    onnx.helper.set_model_props(model, {"key": "kept"})
    assert retyped(model) == model
