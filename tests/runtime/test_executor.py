# SPDX-License-Identifier: Apache-2.0
"""The reference executor against the reference evaluator: Q/DQ unfused, any tensor of any type, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.runtime.executor import Executor, last_in_reach
from tests.graphs import model_of

QDQ = """g (float[N, 3, 6, 6] x) => (float[N, 4, 6, 6] y, int64[4] s)
    <float s1 = {0.05}, float s2 = {0.01}, int8 z = {0}, float[4, 3, 3, 3] w, float[4] b> {
    xq = QuantizeLinear(x, s1, z)
    xd = DequantizeLinear(xq, s1, z)
    wq = QuantizeLinear(w, s2, z)
    wd = DequantizeLinear(wq, s2, z)
    c = Conv <pads = [1, 1, 1, 1]> (xd, wd, b)
    y = Relu(c)
    s = Shape(y)
}"""

SEQUENCE = """g (float[1,4] x) => (float[1,4] y) <int64 two = {2}> {
    s = SplitToSequence<axis=1>(x, two)
    y = ConcatFromSequence<axis=1>(s)
}"""
FLOATS = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)


def feed() -> dict[str, npt.NDArray[Any]]:
    return {"x": np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32)}


def test_the_outputs_of_a_qdq_model_as_the_reference_evaluator_has_them(text_model: Any) -> None:
    model = text_model(QDQ, opset=21)  # the evaluator knows no older one
    got = Executor(Model(model)).run(feed())
    want = ReferenceEvaluator(model).run(None, feed())
    assert list(got) == ["y", "s"]
    # float32 sums of 27 products in another order; a bias rounded to int32 would be off by 1e-4
    assert np.abs(got["y"] - want[0]).max() < 2e-6
    assert got["s"].tolist() == [2, 4, 6, 6]


def test_the_settings_of_the_reference(text_model: Any) -> None:
    import onnxruntime

    options = Executor(Model(text_model(QDQ)))._session.get_session_options()
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.get_session_config_entry("session.disable_quant_qdq") == "1"
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)


def test_named_tensors_in_the_order_asked_for_constants_and_inputs_too(text_model: Any) -> None:
    executor = Executor(Model(text_model(QDQ)), outputs=["xq", "b", "c", "x"])
    got = executor.run(feed())
    assert list(got) == ["xq", "b", "c", "x"] == list(executor.names)
    assert got["xq"].dtype == np.int8
    assert got["x"] is not None and got["x"].tobytes() == feed()["x"].tobytes()
    assert got["b"].shape == (4,)
    assert np.array_equal(got["xq"], np.clip(np.rint(feed()["x"] / np.float32(0.05)), -128, 127))
    assert list(Executor(Model(text_model(QDQ)), outputs=["x"]).run(feed())) == ["x"]


def test_the_model_is_not_changed_and_runs_again_to_the_same_bits(text_model: Any) -> None:
    model = text_model(QDQ)
    before = model.SerializeToString(deterministic=True)
    executor = Executor(Model(model))
    first, second = executor.run(feed()), executor.run(feed())
    assert first["y"].tobytes() == second["y"].tobytes()
    assert model.SerializeToString(deterministic=True) == before


def test_large_weights_are_lent(text_model: Any) -> None:
    model = text_model("g (float[1, 64] x) => (float[1, 64] y) <float[64, 64] w> { y = MatMul(x, w) }")
    x = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert np.allclose(Executor(Model(model)).run({"x": x})["y"], x @ w, atol=1e-5)


def test_a_large_weight_that_nothing_reads_does_no_harm(text_model: Any) -> None:
    model = text_model("g (float[2] x) => (float[2] y) <float[64, 64] w> { y = Neg(x) }")
    assert Executor(Model(model)).run({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]


def test_a_large_weight_that_only_a_body_reads(text_model: Any) -> None:
    model = text_model("""g (float[1, 64] x, bool c) => (float[1, 64] y) <float[64, 64] w> { y = If (c) <
        then_branch = t () => (float[1, 64] a) { a = MatMul(x, w) },
        else_branch = e () => (float[1, 64] b) { b = Neg(x) }
    > }""")
    x = np.ones((1, 64), np.float32)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert np.allclose(Executor(Model(model)).run({"x": x, "c": np.array(True)})["y"], x @ w, atol=1e-5)


def test_initializers_listed_as_inputs_keep_their_value_and_may_be_in_the_feed(text_model: Any) -> None:
    model = text_model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [2]))
    ones = np.ones(2, np.float32)
    assert Executor(Model(model)).run({"x": ones, "w": 7 * ones})["y"].tolist() == [1, 2]


@pytest.mark.parametrize(("name", "message"), [("nonsense", "has no tensor nonsense"), ("", "has no tensor")])
def test_what_is_not_there_is_refused(text_model: Any, name: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        Executor(Model(text_model(QDQ)), outputs=[name])


def test_what_lies_behind_an_operator_that_is_lacking(text_model: Any) -> None:
    model = text_model("g (float[2] x) => (float[2] y) { r = Relu(x)  n = trt.Plugin(r)  y = Neg(n) }")
    assert Executor(Model(model), outputs=["r"]).run({"x": np.array([-1, 1], np.float32)})["r"].tolist() == [0, 1]
    with pytest.raises(QdqError, match="y comes after trt::Plugin"):
        Executor(Model(model))


def test_shapes_that_do_not_fit_are_one_line(text_model: Any) -> None:
    with pytest.raises(QdqError, match=r"m\.onnx: onnxruntime cannot run"):
        Executor(Model(text_model(QDQ)), where="m.onnx").run({"x": np.zeros((2, 5, 6, 6), np.float32)})
    with pytest.raises(QdqError, match="has no output"):
        Executor(Model(text_model(QDQ)), outputs=[])


def test_sequences_are_given_where_they_are_asked_for_only() -> None:
    model = model_of(SEQUENCE)
    model.graph.output.append(onnx.helper.make_value_info("s", onnx.helper.make_sequence_type_proto(FLOATS)))
    feed = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    assert Executor(Model(model)).names == ("y",) and last_in_reach(Model(model)) == ("y",)
    assert [one.tolist() for one in Executor(Model(model), outputs=["s"]).run(feed)["s"]] == [[[0, 1]], [[2, 3]]]
    del model.graph.output[0]
    with pytest.raises(QdqError, match=r"no output .*tensor"):
        Executor(Model(model))
