# SPDX-License-Identifier: Apache-2.0
"""Stages against one session on random graphs and on what seldom passes a cut: the same values, and no refusal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.measuring.staged_model import StagedModel
from qdqtool.passes.peel import has_qdq
from qdqtool.runtime import staged_activations, stages
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.session import run_session, session_options, start_session
from qdqtool.runtime.staged_activations import StagedActivations
from tests.graphs import model_of
from tests.laws.random_graphs import networks

Values = dict[str, np.ndarray]
SHAPE = "1,16,12,12"
_LAST_BITS = 1e-5  # of the largest value: what onnxruntime computes in a convolution's layout, and after a cut not


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost nothing may be held, and each weighted operator may have a stage."""
    monkeypatch.setattr(staged_activations, "_HELD_BYTES", 0)
    monkeypatch.setattr(stages, "_BYTES", 4000)
    monkeypatch.setattr(stages, "_OPERATORS", 1)


def sample(seed: int, *shape: int) -> Values:
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def check_activations(proto: onnx.ModelProto, wanted: Sequence[str], batch: Values) -> int:
    """Hold activations by stages against those of one session; how many stages there were."""
    model = ObservableModel(Model(proto))
    staged = StagedActivations.of(model, wanted)
    if staged is None:
        return 1
    whole, parts = dict(OrtActivations.of(model, wanted).run(batch)), dict(staged.run(batch))
    assert whole.keys() == parts.keys()
    for name, want in whole.items():
        if model.optimization == "ORT_ENABLE_BASIC":
            assert parts[name].tobytes() == want.tobytes(), name
        else:
            np.testing.assert_allclose(parts[name], want, rtol=0, atol=_LAST_BITS * np.abs(want).max(), err_msg=name)
    return len(staged.lengths) - 1


def check_outputs(proto: onnx.ModelProto, batch: Values) -> int:
    """Hold the outputs by stages against those of one session, bit for bit; how many stages there were."""
    model = ObservableModel(Model(proto))
    operators = [node.key for node in model.view.nodes if node.op in ("Conv", "MatMul", "Gemm")]
    staged = StagedModel(model, model.ends, [batch], operators)
    (got,) = staged.run({})
    whole = ObservableModel(Model(proto))
    parts, options = (*whole.stripped, whole.ends), session_options(whole.runtime, "ORT_ENABLE_BASIC")
    session = start_session(whole.runtime, parts, options, whole.providers, "model")
    feed = {one.name: batch[one.name] for one in session.get_inputs()}
    want = run_session(session, whole.ends, feed, "model")
    assert [one.tobytes() for one in got] == [one.tobytes() for one in want]
    return len(staged.runs)


# ---------------------------------------------------------------------- random graphs


@given(st.booleans().flatmap(lambda entered: networks(entered=entered)), st.data())
def test_random_networks(proto: onnx.ModelProto, data: st.DataObject) -> None:
    model, batch = ObservableModel(Model(proto)), sample(len(proto.graph.node), 1, 4, 16, 16)
    known = [name for name in model.names if name not in model.untyped]
    left_out = data.draw(st.sets(st.sampled_from(known), max_size=4))
    check_activations(proto, [name for name in known if name not in left_out], batch)
    check_outputs(proto, batch)


@given(networks(entered=True))
def test_random_networks_with_pairs(proto: onnx.ModelProto) -> None:
    try:
        made = insert(proto).model
    except QdqError:
        return  # heads alone
    assert has_qdq(ObservableModel(Model(made)).view.graph)
    model, batch = ObservableModel(Model(made)), sample(len(proto.graph.node), 1, 4, 16, 16)
    check_activations(made, [name for name in model.names if name not in model.untyped], batch)


# ---------------------------------------------------------------------- what seldom passes a cut


def chain(first: str, last: str, more: str = "", opset: int = 19) -> onnx.ModelProto:
    """Six convolutions between two lines: the first reads r0, the last r5."""
    convs = [f"a{k} = Conv<pads=[1,1,1,1]>({f'r{k - 1}' if k else 'x'}, v) r{k} = Relu(a{k})" for k in range(6)]
    body = " ".join((convs[0], first, *convs[1:], last))
    return model_of(f"g (float[{SHAPE}] x) => (float[{SHAPE}] y) <float[16,16,3,3] v{more}> {{ {body} }}", opset, 9)


WANTED = ["x", *(f"{name}{k}" for k in range(6) for name in "ar")]
MORE = ", float[16,1,1] k, float zero = {0}"
KINDS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.DOUBLE)
PASSING = {
    **{f"type {kind}": (f"h = Cast<to={kind}>(r0)", "i = Cast<to=1>(h) y = Add(r5, i)", "") for kind in KINDS},
    "text": ("h = Cast<to=8>(r0)", "i = Cast<to=1>(h) y = Add(r5, i)", ""),
    "bool": ("h = Greater(r0, half)", "y = Where(h, r5, half)", ", float half = {0.5}"),
    "int8": (
        "h = QuantizeLinear(r0, s, z)",
        "i = DequantizeLinear(h, s, z) y = Add(r5, i)",
        ", float s = {0.05}, int8 z = {0}",
    ),
    "sequence": ("h = SequenceConstruct(r0, a0)", "i = SequenceAt(h, one) y = Add(r5, i)", ", int64 one = {1}"),
    "mask": ("h, m = Dropout(r0)", "y = Where(m, r5, h)", ""),
}


@pytest.mark.parametrize(("first", "last", "more"), PASSING.values(), ids=PASSING)
def test_what_passes_many_stages(first: str, last: str, more: str) -> None:
    proto, batch = chain(first, last, more), sample(3, 1, 16, 12, 12)
    assert check_activations(proto, [*WANTED, "y"], batch) > 1
    assert check_outputs(proto, batch) > 1 or "Sequence" in first


def test_a_sparse_initializer_is_read_in_a_late_stage() -> None:
    proto = chain("", "y = Add(r5, k)")
    values, places = np.array([1, 2], np.float32), np.array([3, 9], np.int64)
    stored = (onnx.numpy_helper.from_array(one, name) for one, name in ((values, "k"), (places, "places")))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(*stored, [1, 16, 12, 12]))
    assert check_activations(proto, [*WANTED, "y"], sample(4, 1, 16, 12, 12)) > 3
    assert check_outputs(proto, sample(4, 1, 16, 12, 12)) > 3


@pytest.mark.parametrize("shared", ["x", "v", "k"])
def test_an_input_and_a_constant_are_outputs_too(shared: str) -> None:
    proto = chain("", "k = Relu(v) y = Relu(r5)")
    shape = [1, 16, 12, 12] if shared == "x" else [16, 16, 3, 3]
    proto.graph.output.append(helper.make_tensor_value_info(shared, 1, shape))
    assert check_activations(proto, [*WANTED, "y"], sample(5, 1, 16, 12, 12)) > 3
    assert check_outputs(proto, sample(5, 1, 16, 12, 12)) > 3


@pytest.mark.parametrize("condition", ["Less", "Greater"])
def test_bodies_read_an_early_tensor_and_a_computed_constant(condition: str) -> None:
    """One body reads r0, which no node outside of it reads so late; the other one a constant, too."""
    proto = chain("", f"c = Relu(k) n = ReduceSum<keepdims=0>(r5) go = {condition}(n, zero)", MORE)
    value = helper.make_tensor_value_info("inside", 1, [1, 16, 12, 12])
    nodes = helper.make_node("Relu", ["r0"], ["inside"]), helper.make_node("Add", ["r0", "c"], ["inside"])
    one, other = (helper.make_graph([node], f"body{at}", [], [value]) for at, node in enumerate(nodes))
    proto.graph.node.append(helper.make_node("If", ["go"], ["y"], then_branch=one, else_branch=other))
    assert check_activations(proto, [*WANTED, "y"], sample(6, 1, 16, 12, 12)) > 3
    assert check_outputs(proto, sample(6, 1, 16, 12, 12)) > 3


def test_stages_without_a_quantize_linear_are_optimized_like_the_others() -> None:
    pair = "q = QuantizeLinear(x, s, z) h = DequantizeLinear(q, s, z)"
    proto = chain("", "y = Relu(r5)", ", float s = {0.05}, int8 z = {0}")
    first = onnx.parser.parse_graph(f"g (float x) => (float h) {{ {pair} }}").node
    proto.graph.node[0].input[0] = "h"
    nodes = [*first, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert check_activations(proto, [*WANTED, "y"], sample(7, 1, 16, 12, 12)) > 3
