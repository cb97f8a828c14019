# SPDX-License-Identifier: Apache-2.0
"""What of a model a session is made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.providers import open_session
from qdqtool.runtime.session import (
    copy_without,
    run_session,
    session_options,
    start_session,
    strip_weights,
)
from qdqtool.runtime.shared_arena import ARENA
from tests.graphs import model_of


def test_stated_shapes_are_kept_of_pool_gradients_alone() -> None:
    """Their kernels in onnxruntime-training read them, and crash without; other tensors' may be wrong in a file."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("AveragePoolGrad", ["r"], ["g"], domain="com.microsoft", kernel_shape=[2, 2]),
    ]
    stated = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4, 4]) for name in ("r", "g")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])]
    model = helper.make_model(helper.make_graph(nodes, "net", inputs, [onnx.ValueInfoProto(name="g")]))
    model.graph.value_info.extend(stated)
    made, _ = strip_weights(Model(model), model.graph.node)
    assert list(made.graph.value_info) == stated[1:]


def test_a_batch_that_does_not_run_says_what_to_do() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")
    model = model_of("g (float[A,B] x, float[A,B] y) => (float[A,B] z, float[A,B] n) { z = Add(x, y)  n = Neg(x) }")
    parts = (*strip_weights(Model(model), model.graph.node), ["z", "n"])
    options = session_options(runtime, "ORT_DISABLE_ALL")
    session = start_session(runtime, parts, options, ["CPUExecutionProvider"], "m.onnx")
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    found = run_session(session, ["n", "z"], {"x": x, "y": y}, "m.onnx")
    assert [array[0, 0] for array in found] == [-1, 3], "in the order asked for"
    with pytest.raises(QdqError, match=r"m\.onnx: onnxruntime cannot run"):
        run_session(session, ["z"], {"x": x, "y": y[:, :2]}, "m.onnx")
    with pytest.raises(QdqError, match="; take fewer"):
        run_session(session, ["z"], {"x": x, "y": y[:, :2]}, "m.onnx", "take fewer")


@pytest.mark.parametrize("few_runs", [False, True])
def test_large_weights_of_sessions_for_few_samples_are_read_as_they_are(
    few_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")
    left_out: list[object] = []

    def opened(*given: Any) -> Any:
        left_out.append(given[-1])
        return open_session(*given)

    monkeypatch.setattr("qdqtool.runtime.session._LARGE_BYTES", 1024)
    monkeypatch.setattr("qdqtool.runtime.session.open_session", opened)
    model = model_of("g (float[A,64] x) => (float[A,32] z) <float[64,32] w> { z = MatMul(x, w) }")
    parts = (*strip_weights(Model(model), model.graph.node), ["z"])
    options = session_options(runtime, "ORT_ENABLE_ALL")
    session = start_session(runtime, parts, options, ["CPUExecutionProvider"], "m.onnx", few_runs=few_runs)
    assert left_out == [("NchwcTransformer",) if few_runs else ()]
    key = "session.disable_prepacking"
    if few_runs:
        assert options.get_session_config_entry(key) == "1"
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry(key)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0])
    (found,) = run_session(session, ["z"], {"x": np.ones((2, 64), np.float32)}, "m.onnx")
    np.testing.assert_allclose(found, np.ones((2, 64), np.float32) @ weight, rtol=1e-5, atol=1e-5)


def test_weights_are_read_once_for_several_sessions() -> None:
    model = model_of(
        "g (float[A,64] x) => (float[A,32] z) <float[64,32] w, float[32] b> { m = MatMul(x, w) z = Add(m, b) }"
    )
    _, lent = strip_weights(Model(model), model.graph.node)
    assert list(lent) == ["w"]  # 128 bytes stay in the model
    bare = copy_without(model, lent)
    held = {tensor.name: bool(tensor.raw_data) for tensor in bare.graph.initializer}
    assert held == {"w": False, "b": True}
    _, arrays = strip_weights(Model(bare), bare.graph.node, lent)
    assert arrays["w"] is lent["w"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_session_of_few_runs_keeps_no_freed_memory(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no arena of its own: it shares one, where this onnxruntime can."""
    runtime = load_onnxruntime()
    model = model_of("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    if not shared:
        monkeypatch.setattr(ARENA, "join", lambda *_: False)
    for few in (False, True):
        options, view = session_options(runtime, "ORT_ENABLE_BASIC"), GraphView(model.graph)
        parts = strip_weights(Model(model), [node.proto for node in view.nodes])
        start_session(runtime, (*parts, ["y"]), options, ["CPUExecutionProvider"], "m", few_runs=few)
        assert options.enable_cpu_mem_arena is (shared or not few)
