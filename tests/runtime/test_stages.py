# SPDX-License-Identifier: Apache-2.0
"""Where a graph is cut into stages: few tensors pass, every node runs, constants belong to whoever reads them."""

from __future__ import annotations

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.runtime.stages import CutOptions, Stage, cut_stages
from tests.graphs import model_of, view_of


def chain(convs: int) -> str:
    """Residual blocks of two convolutions: one tensor passes between them, two inside."""
    lines, weights, last = [], [], "x"
    for k in range(convs // 2):
        lines.append(f"a{k} = Conv({last}, w{k}) b{k} = Conv(a{k}, v{k}) r{k} = Add(b{k}, {last})")
        weights += [f"float[4,4,1,1] w{k}", f"float[4,4,1,1] v{k}"]
        last = f"r{k}"
    return f"g (float[N,4,6,6] x) => (float[N,4,6,6] {last}) <{', '.join(weights)}> {{ {' '.join(lines)} }}"


def cut(view: GraphView, outputs: tuple[str, ...] = ()) -> list[Stage]:
    operators = {node.key for node in view.nodes if node.op in ("Conv", "MatMul")}
    return cut_stages(view.every, view.is_constant, outputs or tuple(view.outputs), operators)


def keys(stage: Stage) -> list[str]:
    return [node.key for node in stage.nodes]


@pytest.mark.parametrize(("convs", "stages"), [(2, 1), (6, 1), (8, 2), (16, 4), (24, 6), (96, 12)])
def test_a_stage_has_at_least_four_operators_and_there_are_twelve_at_most(convs: int, stages: int) -> None:
    found = cut(view_of(chain(convs)))
    assert len(found) == stages
    assert [key for stage in found for key in keys(stage)] == [node.key for node in view_of(chain(convs)).nodes]


@pytest.mark.parametrize("convs", [8, 16, 96])
def test_cuts_lie_where_one_tensor_passes(convs: int) -> None:
    found = cut(view_of(chain(convs)))
    assert all(len(stage.gives) == 1 and stage.gives[0].startswith("r") for stage in found)


def test_a_tensor_that_is_read_much_later_is_given_once_and_passes_the_stages_between() -> None:
    text = chain(16).replace("=> (float[N,4,6,6] r7)", "=> (float[N,4,6,6] y)").replace(" }", " y = Mul(r7, r0) }")
    gives = [stage.gives for stage in cut(view_of(text))]
    assert [names for names in gives if "r0" in names] == [gives[0]]
    assert gives[-1] == ("y",)


def test_what_outputs_do_not_need_is_left_out() -> None:
    found = cut(view_of(chain(16)), ("r3",))
    assert [key for stage in found for key in keys(stage)][-1] == "r3"
    assert sum(len(stage.nodes) for stage in found) == 12


def test_each_stage_computes_the_constants_that_it_reads() -> None:
    text = chain(8).replace("r0 = Add(b0, x)", "t = Transpose(w1) r0 = Add(b0, x)")
    text = text.replace("Conv(r0, w1)", "Conv(r0, t)").replace("Conv(r2, w3)", "Conv(r2, t)")
    found = cut(view_of(text))
    assert len(found) == 2 and all(keys(stage).count("t") == 1 for stage in found)
    assert all("t" not in stage.gives for stage in found)


@pytest.mark.parametrize("first", range(4))
def test_the_pair_of_a_weight_is_not_cut(first: int) -> None:
    """A QuantizeLinear of a weight may stand anywhere in front of the operator that reads the pair."""
    pair = "q = QuantizeLinear(w3, s, z)"
    text = chain(8).replace("Conv(r2, w3)", "Conv(r2, d)").replace("a3 =", "d = DequantizeLinear(q, s, z) a3 =")
    text = text.replace(f"a{first} =", f"{pair} a{first} =").replace("> {", ", float s = {0.1}, int8 z = {0}> {")
    stages = cut(view_of(text))
    assert len(stages) > 1
    assert [[key for key in keys(stage) if key in ("q", "d")] for stage in stages] == [[], ["q", "d"]]
    assert all("q" not in stage.gives for stage in stages)


def test_the_order_of_the_file_does_not_matter_where_nodes_stand_in_a_line() -> None:
    model = model_of(chain(16))
    shuffled = model_of(chain(16))
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(reversed(model.graph.node))
    assert [keys(one) for one in cut(GraphView(shuffled.graph))] == [keys(one) for one in cut(GraphView(model.graph))]


def test_what_is_fused_with_an_operator_stays_with_it() -> None:
    lines = [
        f"a{k} = Conv({f'n{k - 1}' if k else 'x'}, w{k}) n{k} = BatchNormalization(a{k}, s, b, m, v)" for k in range(16)
    ]
    weights = ", ".join([*(f"float[4,4,1,1] w{k}" for k in range(16)), *(f"float[4] {name}" for name in "sbmv")])
    text = f"g (float[N,4,6,6] x) => (float[N,4,6,6] n15) <{weights}> {{ {' '.join(lines)} }}"
    found = cut(view_of(text))
    assert len(found) == 4 and all(stage.gives[0].startswith("n") for stage in found)


def test_outputs_that_are_read_where_they_are_made_pass_no_cut() -> None:
    view = view_of(chain(16))
    operators = {node.key for node in view.nodes if node.op == "Conv"}
    held = cut_stages(view.every, view.is_constant, sorted(operators), operators)
    free = cut_stages(view.every, view.is_constant, sorted(operators), operators, CutOptions(hold=False))
    assert [len(stage.gives) for stage in free] == [1, 1, 1, 0]
    assert {name for stage in held for name in stage.gives} >= operators


def test_only_what_may_pass_is_cut() -> None:
    view = view_of(chain(16))
    operators = {node.key for node in view.nodes if node.op == "Conv"}
    found = cut_stages(view.every, view.is_constant, view.outputs, operators, CutOptions({"r1", "r5"}))
    assert [stage.gives for stage in found] == [("r1",), ("r5",), ("r7",)]
    assert len(cut_stages(view.every, view.is_constant, view.outputs, operators, CutOptions(()))) == 1


def test_of_places_alike_that_is_cut_where_the_fewest_values_pass() -> None:
    view = view_of(chain(16))
    operators = [node.key for node in view.nodes if node.op == "Conv"]
    even = cut_stages(view.every, view.is_constant, view.outputs, operators)
    passing = [stage.gives[0] for stage in even[:-1]]
    lengths = dict.fromkeys((name for node in view.nodes for name in node.outputs), 10)
    assert passing[0] == "r1"
    found = cut_stages(view.every, view.is_constant, view.outputs, operators, CutOptions(lengths={**lengths, "r0": 9}))
    assert [stage.gives[0] for stage in found[:-1]] == ["r0", *passing[1:]]
    alike = cut_stages(view.every, view.is_constant, view.outputs, operators, CutOptions(lengths=lengths))
    assert [stage.gives for stage in alike] == [stage.gives for stage in even]
