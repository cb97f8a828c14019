# SPDX-License-Identifier: Apache-2.0
"""Rewrites for a compiler: asked for by the rules of a target, and undone from the last to the first."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import insert
from qdqtool.calibration.engine import observe_ranges
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.rewrites import REWRITES, apply_rewrites, rewritten_ranges, undo_rewrites, without_rewrites
from qdqtool.rulebook import load_rules
from qdqtool.verbs import typed_rest
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import model_of

# The bias after a Transpose, a scale for each channel before a LayerNormalization, and samples that are joined.
NET = """net (float[1,4,12,12] x, float[1,4,6,6] f) => (float[1,12,12,6] y, float[1,5,8] z)
    <float[16,4,3,3] w, float[16] b, float[16] n, float[16] o, float[16,6] k, float[4,4,1,1] u, float[4,4,1,1] v,
     float[1,5,3,2] g, int64[3] t = {1,5,24}, float[24,8] m> {
    c = Conv<pads=[1,1,1,1]>(x, w, b) s = Transpose<perm=[0,2,3,1]>(c) l = LayerNormalization(s, n, o) y = MatMul(l, k)
    a = Conv(x, u) h = Conv(f, v) p = GridSample(a, g) q = GridSample(h, g) d = Concat<axis=3>(p, q)
    e = Transpose<perm=[0,2,1,3]>(d) r = Reshape(e, t) z = MatMul(r, m) }"""


@pytest.fixture
def paired() -> onnx.ModelProto:
    """With pairs where TensorRT for RTX wants them, and no rewrite."""
    plan = PlanOptions("rtx", heads=("^z$",), float_heads="none")
    made = insert(model_of(NET, 17), options=InsertOptions(plan=plan)).model
    undo_rewrites(Model(made))
    return made


def places(model: onnx.ModelProto) -> list[int]:
    return [len(list(rewrite.placed(GraphView(model.graph)))) for rewrite in REWRITES]


def test_each_is_applied_where_rules_ask_for_it_and_undone(paired: onnx.ModelProto) -> None:
    before = paired.graph.SerializeToString(deterministic=True)
    assert places(paired) == [0, 0, 0]
    notes = apply_rewrites(Model(paired), load_rules("rtx"), half=True)
    assert len(notes) == len(REWRITES)
    placed = places(paired)  # a bias behind factors of a common scale is found once these are undone
    assert all(placed[1:])
    bare = without_rewrites(Model(paired))
    assert places(paired) == placed, "a forecast looks at a copy"
    assert [node.op for node in bare.view.every] == [node.op_type for node in onnx.GraphProto.FromString(before).node]
    undo_rewrites(Model(paired))
    assert places(paired) == [0, 0, 0]
    assert without_rewrites(bare) is bare


def test_those_for_fp16_are_left_without_it_and_all_of_them_without_rules(paired: onnx.ModelProto) -> None:
    before = paired.graph.SerializeToString(deterministic=True)
    assert apply_rewrites(Model(paired), load_rules("gpu"), half=True) == []
    assert paired.graph.SerializeToString(deterministic=True) == before
    (note,) = apply_rewrites(Model(paired), load_rules("rtx"), half=False)
    assert "after a Transpose" in note


def test_those_that_change_pairs_are_undone_alone(paired: onnx.ModelProto) -> None:
    apply_rewrites(Model(paired), load_rules("rtx"), half=True)
    undo_rewrites(Model(paired), changing_pairs=True)
    left = [bool(count) for count in places(paired)]
    assert left == [not rewrite.changes_pairs for rewrite in REWRITES]


def test_ranges_from_before_hold_what_a_rewritten_graph_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    model = model_of(NET, 17)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = draw.normal(size=tuple(tensor.dims)) * 4
            tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float32), tensor.name))
    data = [{one.name: draw.normal(size=[s.dim_value for s in one.type.tensor_type.shape.dim]).astype(np.float32) for one in model.graph.input}]  # fmt: skip # noqa: E501
    plan = PlanOptions("rtx", heads=("^z$",), float_heads="none")
    paired = insert(model, data=data, options=InsertOptions(plan=plan, rest="fp32", keep_float=0)).model
    undo_rewrites(Model(paired))
    before = observe_ranges(Model(paired), data)
    assert len(apply_rewrites(Model(paired), load_rules("rtx"), half=True)) == len(REWRITES)
    view = Model(paired).view
    derived, seen = rewritten_ranges(view, before), observe_ranges(Model(paired), data).tensors
    assert set(seen) > set(before.tensors)
    for name, one in seen.items():
        known = derived.of(view, name)
        assert known is not None, name
        assert known.low <= one.low + 1e-4 and one.high - 1e-4 <= known.high, name
    assert any(one.certain for one in derived.tensors.values())
    monkeypatch.setattr(typed_rest, "observe_ranges", lambda *_: pytest.fail("the data are walked again"))
    typed = insert(model, data=data, options=InsertOptions(plan=plan, rest="fp16", keep_float=0))
    assert typed.rest is not None and typed.rest.choice.half
