# SPDX-License-Identifier: Apache-2.0
"""The laws of design.md on random networks of opset 9 to 17: unnamed nodes, shared weights, no order, and all that.

QDQTOOL_EXAMPLES=1000 looks longer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qdqtool as verbs
from qdqtool.graph.io import open_model, save_model, serialize
from qdqtool.metadata import stored_table
from qdqtool.scales import ScaleTable
from tests.laws import law_checks as laws
from tests.laws.random_graphs import BLOCKS, HEADS, Style, build, class_head, depthwise, given_out, networks

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
NOWHERE = Path()
slow_start = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
many = settings(laws.examples(5), suppress_health_check=slow_start)
few = settings(many, max_examples=max(4, many.max_examples // 2))


def inserted(model: onnx.ModelProto) -> tuple[verbs.InsertResult, ScaleTable]:
    table = laws.table_for(verbs.plan(model))
    return verbs.insert(model, scales=table, options=laws.ANY), table


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_the_generator_makes_networks_that_runtimes_take_and_insert_quantizes(block: object, opset: int) -> None:
    style = Style(opset, "all", listed=False, constants=False, mixed=False, seed=opset)
    model = build(style, [(BLOCKS[0], "Relu"), (block, "Relu")], HEADS[1:2])
    assert laws.checker_complaint(model) == "" and laws.runtime_complaint(model) == ""
    assert len(verbs.plan(model).activations) >= 2


@many
@given(networks())
def test_l0_no_pass_gives_the_same_bytes(tmp_path: Path, model: onnx.ModelProto) -> None:
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString(deterministic=True))
    copy = save_model(open_model(tmp_path / "m.onnx").proto, tmp_path / "copy.onnx")
    assert copy.read_bytes() == (tmp_path / "m.onnx").read_bytes()


@many
@given(networks())
def test_l1_peel_undoes_insert(model: onnx.ModelProto) -> None:
    before = serialize(model)
    done, _ = inserted(model)
    laws.check_peel_undoes_insert(model, done, NOWHERE)
    assert serialize(model) == before, "the caller's model was changed"


@many
@given(networks())
def test_l1_holds_for_estimated_scales(model: onnx.ModelProto) -> None:
    done = verbs.insert(model, options=laws.ANY)
    assert done.estimated == len(done.plan.activations)
    if done.plan.points:
        peeled = verbs.peel(done.model, verbs.PeelOptions(laws.V8_6, allow_estimated=True))
        assert laws.same(peeled.model, laws.lifted(model))
        assert all(np.isfinite(scale.bits) and scale.bits > 0 for scale in done.inserted.scales.values())


def test_estimates_where_a_constant_stands_behind_its_reader() -> None:
    """Shape inference does not see the channels then; the statistics do."""
    style = Style(9, "none", listed=True, constants=True, mixed=True, seed=3288765765)
    model = build(style, [(depthwise, "Clip"), (given_out, "Clip")], [class_head])
    assert [node.op_type for node in model.graph.node].index("Conv") < 5
    assert verbs.insert(model, options=laws.ANY).estimated == len(verbs.plan(model).activations)


@few
@given(networks(tidy=True), st.integers(0, 99))
def test_l1_holds_for_calibrated_scales_and_their_table(tmp_path: Path, model: onnx.ModelProto, seed: int) -> None:
    pytest.importorskip("onnxruntime")
    np.save(tmp_path / "d.npy", np.random.default_rng(seed).normal(size=(2, 4, 16, 16)).astype(np.float32))
    done = verbs.insert(model, data=tmp_path / "d.npy", options=laws.ANY)
    stored = stored_table(done.model)
    assert stored is not None and set(done.inserted.scales) <= set(stored)
    if done.plan.points:
        peeled = verbs.peel(done.model, verbs.PeelOptions(laws.V8_6))
        assert laws.same(peeled.model, laws.lifted(model))


@many
@given(networks())
def test_l2_insert_twice_is_insert_once(model: onnx.ModelProto) -> None:
    done, table = inserted(model)
    laws.check_insert_is_idempotent(done, table, NOWHERE)


@many
@given(networks())
def test_l2_requantize_begins_anew(model: onnx.ModelProto) -> None:
    done, _ = inserted(model)
    other = laws.table_for(done.plan, 0.07)
    anew = verbs.insert(done.model, scales=other, options=verbs.InsertOptions(requantize=True, allow_empty=True))
    assert laws.same(anew.model, verbs.insert(laws.lifted(model), scales=other, options=laws.ANY).model)


@many
@given(networks(), st.integers(0, 99))
def test_l7_the_order_of_the_nodes_is_nothing(model: onnx.ModelProto, seed: int) -> None:
    laws.check_order_of_nodes_is_nothing(laws.lifted(model), None, (seed,))


@many
@given(networks())
def test_l7_the_names_of_the_nodes_are_nothing(model: onnx.ModelProto) -> None:
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for index, node in enumerate(renamed.graph.node):
        node.name = f"other_{len(renamed.graph.node) - index}"
    one, other = (verbs.plan(m) for m in (model, renamed))
    assert {(p.tensor, p.reads, p.shared_scale) for p in one.points} == {
        (p.tensor, p.reads, p.shared_scale) for p in other.points
    }


@many
@given(networks(tidy=True))
def test_l9_nobody_complains_of_the_output(model: onnx.ModelProto) -> None:
    pytest.importorskip("onnxruntime")
    done, _ = inserted(model)
    laws.check_nobody_complains(model, done.model)
    if done.plan.points:
        laws.check_no_new_complaint(model, verbs.peel(done.model, verbs.PeelOptions(laws.V8_6)).model)


@many
@given(networks(), st.integers(0, 99))
def test_l10_without_rounding_nothing_changes(model: onnx.ModelProto, seed: int) -> None:
    laws.check_every_point_but_rounds(model, lambda plain: inserted(plain)[0], seed)


@many
@given(networks())
def test_pairs_are_symmetric_and_outside_of_groups(model: onnx.ModelProto) -> None:
    done, _ = inserted(model)
    assert laws.wrong_pairs(done.model) == [] and laws.pairs_inside_groups(done.model) == []


@many
@given(networks())
def test_same_input_same_bytes(model: onnx.ModelProto) -> None:
    assert laws.same(inserted(model)[0].model, inserted(model)[0].model)


@many
@given(networks())
def test_insert_only_adds(model: onnx.ModelProto) -> None:
    """Nodes and names of the lifted model are all there, in their order, but for the inputs that pairs took over."""
    before, after = laws.lifted(model), inserted(model)[0].model
    kept = [node for node in after.graph.node if node.op_type not in laws.PAIR]
    assert [(n.op_type, n.name, list(n.output)) for n in kept] == [
        (n.op_type, n.name, list(n.output)) for n in before.graph.node
    ]
    assert list(after.graph.initializer)[: len(before.graph.initializer)] == list(before.graph.initializer)
    assert list(after.graph.input) == list(before.graph.input) and list(after.graph.output) == list(before.graph.output)
