# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which tensors a target and version give one range, and what each of them takes."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.match.shared_scales import take_shared_scales, unequal_inputs
from qdqtool.rulebook import load_rules
from qdqtool.scales import Scale
from qdqtool.trtversion import TrtVersion, parse
from tests.graphs import view_of

V8_6, V8_0 = TrtVersion(8, 6, 1), TrtVersion(8, 0, 1)


def tied(
    body: str, scales: dict[str, float], target: str = "gpu", version: TrtVersion = V8_6, more: str = ""
) -> tuple[dict[str, Scale], dict[str, str]]:
    """What `take_shared_scales` makes of a graph that reads x and gives z."""
    text = f"g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[N] z) <float[4] unused{more}> {{ {body} }}"
    table = {name: Scale.of(value, method="mse", samples=3) for name, value in scales.items()}
    return take_shared_scales(view_of(text), load_rules(target, version), table)


def values(scales: dict[str, Scale]) -> dict[str, float]:
    return {name: round(float(scale.bits), 6) for name, scale in scales.items()}


POOLS = {
    "MaxPool": "a = MaxPool<kernel_shape=[2,2]>(x) z = Exp(a)",
    "AveragePool": "a = AveragePool<kernel_shape=[2,2]>(x) z = Exp(a)",
    "GlobalAveragePool": "a = GlobalAveragePool(x) z = Exp(a)",
}


@pytest.mark.parametrize("version", ["5.1.5", "7.1.3", "8.0.1", "8.5.1", "8.6.1", "10.3.0"])
@pytest.mark.parametrize("body", POOLS.values(), ids=POOLS)
def test_pooling_is_tied_in_every_version(body: str, version: str) -> None:
    scales, taken = tied(body, {"x": 0.2, "a": 0.1, "z": 3}, version=parse(version))
    assert values(scales) == {"x": 0.2, "a": 0.2, "z": 3}
    assert taken == {"a": "x"}


def test_the_larger_one_holds_on_either_side() -> None:
    scales, taken = tied(POOLS["AveragePool"], {"x": 0.1, "a": 0.2})
    assert values(scales) == {"x": 0.2, "a": 0.2} and taken == {"x": "a"}


CONCAT = "a = Concat<axis=1>(x, y) z = Exp(a)"


@pytest.mark.parametrize(
    ("version", "is_tied"),
    [("7.1.3", True), ("8.0.0", True), ("8.0.1", True), ("8.2.1", False), ("8.5.1", False), ("10.3.0", False)],
)
def test_concat_is_tied_up_to_8_0_1(version: str, is_tied: bool) -> None:
    scales, taken = tied(CONCAT, {"x": 0.1, "y": 0.3, "a": 0.2}, version=parse(version))
    assert values(scales) == ({"x": 0.3, "y": 0.3, "a": 0.3} if is_tied else {"x": 0.1, "y": 0.3, "a": 0.2})
    assert taken == ({"x": "y", "a": "y"} if is_tied else {})


DLA_TIED = {
    "MaxPool": "z = MaxPool<kernel_shape=[2,2]>(x)",
    "AveragePool": "z = AveragePool<kernel_shape=[2,2]>(x)",
    "GlobalAveragePool": "z = GlobalAveragePool(x)",
    "GlobalMaxPool": "z = GlobalMaxPool(x)",
    "Concat": "z = Concat<axis=1>(x, y)",
}


@pytest.mark.parametrize("version", ["7.1.3", "8.5.2", "8.6.1", "10.7.0"])
@pytest.mark.parametrize("body", DLA_TIED.values(), ids=DLA_TIED)
def test_dla_ties_inputs_and_output_of_pooling_and_concat(body: str, version: str) -> None:
    scales, _ = tied(body, {"x": 0.1, "y": 0.3, "z": 0.2}, "dla", parse(version))
    inputs = {"x", "y"} if "Concat" in body else {"x"}
    want = 0.3 if "Concat" in body else 0.2
    assert values(scales) == {n: want if n in inputs | {"z"} else 0.3 for n in ("x", "y", "z")}


@pytest.mark.parametrize("op", ["Add", "Sub", "Max", "Min", "Sum"])
def test_dla_ties_the_inputs_of_an_elementwise_operator_but_not_its_output(op: str) -> None:
    scales, taken = tied(f"z = {op}(x, y)", {"x": 0.1, "y": 0.3, "z": 0.9}, "dla")
    assert values(scales) == {"x": 0.3, "y": 0.3, "z": 0.9} and taken == {"x": "y"}


@pytest.mark.parametrize("op", ["Add", "Sub", "Max", "Min", "Sum", "Mul"])
def test_the_gpu_leaves_elementwise_operators(op: str) -> None:
    assert tied(f"z = {op}(x, y)", {"x": 0.1, "y": 0.3, "z": 0.9})[1] == {}


def test_dla_leaves_the_factors_of_a_product() -> None:
    body = "s = Sigmoid(x) z = Mul(x, s)"
    assert tied(body, {"x": 0.3, "s": 1 / 127, "z": 0.2}, "dla")[1] == {}


@pytest.mark.parametrize("body", ["z = Add(x, k)", "c = Identity(k) z = Add(c, x)"])
def test_an_operand_that_is_constant_ties_nothing(body: str) -> None:
    assert tied(body, {"x": 0.1, "c": 0.7, "k": 0.5}, "dla", more=", float[4,1,1] k")[1] == {}


def test_a_constant_branch_of_a_concat_is_no_member() -> None:
    scales, taken = tied("z = Concat<axis=1>(x, k)", {"x": 0.1, "k": 0.7, "z": 0.2}, "dla", more=", float[1,4,8,8] k")
    assert values(scales) == {"x": 0.2, "k": 0.7, "z": 0.2} and taken == {"x": "z"}


def test_a_chain_of_ties_takes_the_largest_of_all() -> None:
    body = "a = MaxPool<kernel_shape=[2,2]>(x) b = MaxPool<kernel_shape=[2,2]>(y) c = Concat<axis=1>(a, b) e = Exp(c) d = Add(c, e) z = Exp(d)"
    have = {"x": 0.1, "y": 0.2, "a": 0.3, "b": 0.4, "c": 0.5, "e": 0.6, "d": 9.0, "z": 8.0}
    scales, taken = tied(body, have, "dla")
    assert values(scales) == {**dict.fromkeys("xyabce", 0.6), "d": 9.0, "z": 8.0}
    assert taken == dict.fromkeys("xyabc", "e")


def test_views_of_a_tied_tensor_go_along() -> None:
    body = "f = Reshape(x, s) g = Transpose(f) a = AveragePool<kernel_shape=[2,2]>(x) z = Exp(g)"
    more = ", int64[1] s = {-1}"
    scales, taken = tied(body, {"x": 0.1, "f": 0.1, "g": 0.1, "a": 0.4}, more=more)
    assert values(scales) == dict.fromkeys(("x", "f", "g", "a"), 0.4)
    assert taken == dict.fromkeys("xfg", "a")


def test_a_view_with_a_scale_of_its_own_stays() -> None:
    body = "f = Slice(x, s, t) a = AveragePool<kernel_shape=[2,2]>(x) z = Exp(f)"
    scales, taken = tied(body, {"x": 0.1, "f": 0.05, "a": 0.4}, more=", int64[1] s = {0}, int64[1] t = {1}")
    assert values(scales) == {"x": 0.4, "f": 0.05, "a": 0.4} and taken == {"x": "a"}


def test_a_tie_keeps_bits_and_order_and_says_where_from() -> None:
    scales, _ = tied(POOLS["MaxPool"], {"z": 3, "a": 0.1, "x": 0.2})
    assert list(scales) == ["z", "a", "x"]
    assert scales["a"].bits.tobytes() == np.float32(0.2).tobytes() == scales["x"].bits.tobytes()
    assert scales["a"].origin == "equal" and scales["a"].method.endswith(" x")
    assert (scales["x"].origin, scales["x"].method) == ("ptq", "mse")


def test_tensors_without_a_scale_take_no_part() -> None:
    scales, taken = tied(POOLS["MaxPool"], {"x": 0.2, "z": 1})
    assert set(scales) == {"x", "z"} and taken == {}
    assert tied(CONCAT, {"y": 0.3, "a": 0.2}, "dla")[1] == {"a": "y"}


def test_equal_scales_of_a_class_are_not_called_tied() -> None:
    scales, taken = tied(CONCAT, {"x": 0.3, "y": 0.3, "a": 0.2}, "dla")
    assert set(taken) == {"a"} and scales["x"].origin == scales["y"].origin == "ptq"


def test_only_the_values_of_a_pooling_are_tied_not_its_places() -> None:
    body = "a, i = MaxPool<kernel_shape=[2,2]>(x) j = Cast<to=1>(i) z = Exp(j)"
    assert tied(body, {"x": 0.1, "a": 0.2, "i": 5, "j": 7}, "dla")[1] == {"x": "a"}


def test_a_product_is_left_alone_on_the_dla() -> None:
    """Tying a gate to what it gates would cost the gate its levels; the rule says so and ties nothing."""
    view = view_of("g (float[1,4] x) => (float[1,4] y) { s = Sigmoid(x) y = Mul(x, s) }")
    rules = load_rules("dla", TrtVersion(8, 5, 2))
    assert rules.rule("dla-product").status == "documented"
    scales = {"x": Scale.of(0.5), "s": Scale.of(0.01), "y": Scale.of(0.25)}
    tied, taken = take_shared_scales(view, rules, scales)
    assert not taken and all(tied[name].same_bits(scale) for name, scale in scales.items())


@pytest.mark.parametrize(
    ("op", "version", "tied"),
    [
        ("Greater", TrtVersion(8, 5, 2), True),
        ("Greater", TrtVersion(8, 5, 1), False),
        ("Div", TrtVersion(10, 3, 0), False),
    ],
)
def test_the_rule_of_elementwise_layers_holds_for_comparisons(op: str, version: TrtVersion, *, tied: bool) -> None:
    """NvInfer.h, IElementWiseLayer: one range for both inputs. A quotient is left alone as a product is."""
    out = "bool" if op == "Greater" else "float"
    view = view_of(f"g (float[1,4] x, float[1,4] y) => ({out}[1,4] z) {{ z = {op}(x, y) }}")
    rules = load_rules("dla", version)
    _, taken = take_shared_scales(view, rules, {"x": Scale.of(0.5), "y": Scale.of(0.25)})
    assert taken == ({"y": "x"} if tied else {})
    apart = {"x": np.float32(0.5), "y": np.float32(0.25)}
    assert unequal_inputs(view, rules, apart) == (["z"] if op == "Div" else [])


def test_a_product_of_two_ranges_is_named_and_one_of_equal_ranges_is_not() -> None:
    view = view_of("g (float[1,4] x) => (float[1,4] y) { s = Sigmoid(x) y = Mul(x, s) }")
    dla, gpu = (load_rules(target, TrtVersion(8, 5, 2)) for target in ("dla", "gpu"))
    apart = {"x": np.float32(0.5), "s": np.float32(0.01)}
    assert unequal_inputs(view, dla, apart) == ["y"]
    assert unequal_inputs(view, dla, dict.fromkeys("xs", np.float32(0.5))) == []
    assert unequal_inputs(view, dla, {"x": np.float32(0.5)}) == [], "one range is nothing to differ from"
    assert unequal_inputs(view, gpu, apart) == [], "the GPU has no such rule"
