# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A scale for every tensor of a graph: which source gives it, in which order, and what is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import float_tensors
from qdqtool.graph.view import GraphView
from qdqtool.match.full_scale_table import Complete, complete_scales
from qdqtool.match.groups import find_groups
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.rulebook import load_rules
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of, view_of

RULES = load_rules("dla", TrtVersion(8, 6, 1))
ONE_127 = np.float32(1) / np.float32(127)
W = "float[4,4,1,1] w1, float[4,4,1,1] w2, float[4] b, float[4] s, float[4] v = {1,2,3,4}, int64[1] flat = {-1}"


def graph(body: str) -> onnx.ModelProto:
    return model_of(f"g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[N] z) <{W}> {{ {body} }}")


def complete(
    body: str,
    points: dict[str, float],
    table: dict[str, float] | None = None,
    unscaled: dict[str, str] | None = None,
    *,
    groups: bool = False,
    shared_scales: bool = False,
) -> Complete:
    model = graph(body)
    view = GraphView(model.graph)
    seeds = {name: Scale.of(value, origin="qdq", method="mse") for name, value in points.items()}
    known = {name: Scale.of(value, method="max", samples=4) for name, value in (table or {}).items()}
    tensors = [name for name in float_tensors(Model(model)) if not view.is_constant(name)]
    found = find_groups(view, RULES) if groups else ()
    return complete_scales(
        view, RULES, seeds, tensors, ScaleTable(known, unscaled or {}), found, shared_scales=shared_scales
    )


def values(done: Complete) -> dict[str, float]:
    return {name: round(float(scale.bits), 5) for name, scale in done.scales.items()}


def origins(done: Complete) -> dict[str, str]:
    return {name: scale.origin for name, scale in done.scales.items()}


# ---------------------------------------------------------------------- the order of sources


def test_the_pairs_come_first_then_the_same_values_then_the_table() -> None:
    body = "a = Relu(x) f = Reshape(a, flat) e = Exp(f) z = Relu(e)"
    done = complete(body, {"a": 0.1}, dict.fromkeys(("x", "y", "a", "f", "e", "z"), 0.7))
    assert values(done) == {"x": 0.7, "y": 0.7, "a": 0.1, "f": 0.1, "e": 0.7, "z": 0.7}
    assert origins(done) == {"x": "ptq", "y": "ptq", "a": "qdq", "f": "equal", "e": "ptq", "z": "ptq"}
    assert done.left == ()


def test_the_same_values_are_found_both_ways_to_a_fix_point() -> None:
    body = "a = Transpose(x) c = Identity(a) d = MaxPool<kernel_shape=[1,1]>(c) f = Flatten(d) k = Slice(a, flat, flat) z = Concat<axis=0>(f, k)"
    done = complete(body, {"f": 0.2})
    assert values(done) == dict.fromkeys("xacdfkz", 0.2)
    assert done.left == ("y",)
    assert origins(done)["f"] == "qdq" and set(origins(done).values()) == {"qdq", "equal"}
    assert done.scales["x"].method == "same values as f"


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "HardSigmoid", "Softmax"])
def test_what_an_operator_bounds_needs_no_data(op: str) -> None:
    done = complete(f"a = {op}(x) f = Reshape(a, flat) z = Exp(f)", {}, {"a": 0.001, "f": 0.001})
    assert done.scales["a"].bits.tobytes() == ONE_127.tobytes() == done.scales["f"].bits.tobytes()
    assert (origins(done)["a"], done.scales["a"].method, done.scales["a"].rule) == ("bound", op, "probability")
    assert origins(done)["f"] == "equal"
    assert done.left == ("x", "y", "z")


@pytest.mark.parametrize("op", ["Relu", "Exp", "LeakyRelu", "Mul", "Add"])
def test_other_operators_bound_nothing(op: str) -> None:
    body = f"z = {op}(x, y)" if op in ("Mul", "Add") else f"z = {op}(x)"
    assert complete(body, {"x": 0.1, "y": 0.1}).left == ("z",)


def test_a_pair_on_a_bounded_tensor_keeps_its_scale() -> None:
    done = complete("a = Sigmoid(x) f = Reshape(a, flat) z = Exp(f)", {"a": 0.004})
    assert values(done) == {"a": 0.004, "f": 0.004} and origins(done)["a"] == "qdq"


def test_a_pair_behind_a_bounded_tensor_of_the_same_values_holds() -> None:
    done = complete("a = Sigmoid(x) f = Reshape(a, flat) z = Exp(f)", {"f": 0.004})
    assert values(done) == {"a": 0.004, "f": 0.004} and origins(done) == {"a": "equal", "f": "qdq"}


def test_every_pair_keeps_its_bits_where_values_meet() -> None:
    body = "k = Concat<axis=1>(x, y) z = Identity(k)"
    done = complete(body, {"x": 0.1, "y": 0.3})
    assert values(done) == {"x": 0.1, "y": 0.3, "k": 0.3, "z": 0.3}


def test_scales_stand_in_topological_order_and_only_for_the_tensors_asked_for() -> None:
    done = complete("c = Conv(x, w1) z = Relu(c)", {"c": 0.1}, {"z": 1, "w1": 5, "x": 2, "gone": 3, "y": 4})
    assert list(done.scales) == ["x", "y", "c", "z"]


# ---------------------------------------------------------------------- inside of groups

GROUP = "c = Conv(x, w1, b) n = BatchNormalization(c, s, s, s, v) r = Relu(n) d = Conv(r, w2) z = Relu(d)"


def test_groups_carry_a_scale_back_across_relu_alone() -> None:
    assert complete(GROUP, {"x": 0.1, "r": 0.2}).left == ("y", "c", "n", "d", "z")
    done = complete(GROUP, {"x": 0.1, "r": 0.2}, groups=True)
    assert values(done) == {"x": 0.1, "r": 0.2, "n": 0.2}
    assert (origins(done)["n"], done.scales["n"].method, done.scales["n"].rule) == ("derived", "fused before r", "conv")


def test_what_lies_before_a_normalization_is_not_derived() -> None:
    assert "c" in complete(GROUP, {"r": 0.2}, groups=True).left, "another range: BatchNormalization scales"


def test_a_calibrated_scale_comes_before_one_from_the_group() -> None:
    done = complete(GROUP, {"r": 0.2}, {"n": 0.5}, groups=True)
    assert values(done) == {"r": 0.2, "n": 0.5} and origins(done)["n"] == "ptq"


def test_a_silu_hides_what_comes_before_it() -> None:
    body = "c = Conv(x, w1) g = Sigmoid(c) m = Mul(c, g) d = Conv(m, w2) z = Relu(d)"
    done = complete(body, {"x": 0.1, "m": 0.2}, groups=True)
    assert set(done.scales) == {"x", "m", "g"} and "c" in done.left


def test_a_residual_add_is_fused_before_its_relu() -> None:
    body = "c = Conv(x, w1) a = Add(c, x) r = Relu(a) z = Conv(r, w2)"
    done = complete(body, {"x": 0.1, "r": 0.2}, groups=True)
    assert values(done) == {"x": 0.1, "r": 0.2, "a": 0.2} and done.left == ("y", "c", "z")


# ---------------------------------------------------------------------- shared_scales


def test_ties_come_last_and_say_what_was_before() -> None:
    body = "a = Relu(x) c = Relu(y) d = Add(a, c) z = Relu(d)"
    table = {"x": 1, "y": 1, "d": 1, "z": 1, "c": 0.4}
    done = complete(body, {"a": 0.1}, table, shared_scales=True)
    assert values(done)["a"] == 0.4 and done.shared_scales == {"a": "c"}
    assert done.scales["a"].origin == "equal" and done.scales["a"].method.endswith(" c")
    assert done.own["a"].bits.tobytes() == np.float32(0.1).tobytes() and done.own["a"].origin == "qdq"
    loose = complete(body, {"a": 0.1}, table, shared_scales=False)
    assert values(loose)["a"] == 0.1 and loose.shared_scales == {} and loose.own == {}


def test_a_gate_is_not_tied_to_what_it_gates() -> None:
    done = complete("g = Sigmoid(x) z = Mul(x, g)", {"x": 0.9, "z": 0.8}, shared_scales=True)
    assert done.scales["g"].bits.tobytes() == ONE_127.tobytes() and done.shared_scales == {}


# ---------------------------------------------------------------------- what is left


def test_what_has_no_scale_by_nature_is_distinguished() -> None:
    done = complete("a = Sub(x, x) z = Exp(y)", {"x": 0.1}, {"y": 1}, {"a": "is all zero", "gone": "holds Inf"})
    assert done.left == ("a", "z") and done.exempt == {"a": "is all zero"}


def test_a_scale_that_is_found_exempts_nothing() -> None:
    done = complete("a = Relu(x) z = Identity(a)", {"z": 0.3}, {}, {"a": "is all zero"})
    assert values(done) == {"a": 0.3, "z": 0.3} and done.exempt == {}


def test_the_empty_graph() -> None:
    view = view_of("g (float[1] x) => (float[1] x) { }")
    done = complete_scales(view, RULES, {}, ["x"], ScaleTable())
    assert done.scales == {} and done.left == ("x",)


# ---------------------------------------------------------------------- real models


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "figure"), [("yolox_nano_coco", 238), ("fastestdet_coco", 205), ("ultraface_rfb320_simplified", 83)]
)
def test_propagation_alone_reaches_what_was_measured_before(shared: Path, name: str, figure: int) -> None:
    """With a pair at each input of a convolution and no data: the figures of an earlier study, exact sources first."""
    model = onnx.load(shared / "corpus" / "models" / f"{name}.onnx")
    normalize(Model(model))
    view = GraphView(model.graph)
    plan = make_plan(view, PlanOptions(float_heads="none"))
    points = {point.tensor: Scale.of(0.1, origin="qdq") for point in plan.activations}
    tensors = [name for name in float_tensors(Model(model)) if not view.is_constant(name)]
    exact = complete_scales(view, RULES, points, tensors, ScaleTable())
    derived = complete_scales(view, RULES, points, tensors, ScaleTable(), plan.groups)
    assert {scale.origin for scale in exact.scales.values()} <= {"qdq", "equal", "bound"}
    assert len(points) < len(exact.scales) <= len(derived.scales) < len(tensors)
    assert len(derived.scales) >= figure
    assert set(exact.scales) <= set(derived.scales) <= set(tensors)
    assert len(derived.left) == len(tensors) - len(derived.scales)


def test_what_bounds_one_input_of_a_concat_does_not_bound_the_others() -> None:
    """Boxes beside scores: theirs is the calibrated range, and the tie takes the largest, not 1 / 127."""
    body = "a = Sigmoid(x) r = Reshape(a, flat) b = LeakyRelu(y) t = Reshape(b, flat) z = Concat<axis=0>(r, t)"
    table = {"x": 0.5, "y": 0.5, "a": 0.2, "r": 0.2, "b": 0.4, "t": 0.4, "z": 0.3}
    found = values(complete(body, {}, table))
    assert found == {"x": 0.5, "y": 0.5, "a": 0.00787, "b": 0.4, "r": 0.00787, "t": 0.4, "z": 0.3}
    tied = values(complete(body, {}, table, shared_scales=True))
    assert tied == {"x": 0.5, "y": 0.5, "a": 0.4, "b": 0.4, "r": 0.4, "t": 0.4, "z": 0.4}
