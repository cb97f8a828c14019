# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Derived histograms beside observed ones, bit for bit; what must be observed, and from what nothing follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.graph.view import GraphView
from qdqtool.observers.derive import AnyHistogram, Derivation, DerivedFrom, derivation, derive_all
from tests.graphs import shuffled
from tests.ort_session import session_of

Float32 = npt.NDArray[np.float32]
HEAD = '<ir_version: 8, opset_import: ["" : {opset}, "my" : 1]>\n'


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD.format(opset=opset) + text)


def divided(proto: onnx.ModelProto, names: Sequence[str], mergeable: bool = True) -> Derivation:
    return derivation(GraphView(proto.graph), names, mergeable)


def recipes_of(text: str, names: str, mergeable: bool = True, opset: int = 17) -> dict[str, DerivedFrom]:
    """Recipes where the names (a string with blanks) are wanted; the division is held to its promises."""
    found = divided(model(text, opset), names.split(), mergeable)
    check_division(found, names.split())
    return dict(found.recipes)


def check_division(found: Derivation, names: Sequence[str]) -> None:
    """Every name once, in order, and no recipe before its sources."""
    assert list(found.names) == list(names)
    assert [name for name in names if name not in found.recipes] == list(found.observed)
    assert found.recipes.keys() <= set(names)
    known = set(found.observed)
    for name, recipe in found.recipes.items():
        assert known.issuperset(recipe.sources), f"{name} before its sources"
        known.add(name)


def same(source: str) -> DerivedFrom:
    return DerivedFrom("same", (source,))


def rectified(source: str) -> DerivedFrom:
    return DerivedFrom("rectified", (source,))


def merged(*sources: str) -> DerivedFrom:
    return DerivedFrom("merged", sources)


# ------------------------------------------------------------------ what follows from what


def test_relu_follows_from_its_input_where_that_is_wanted() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) r = Relu(a) y = Neg(r) }"
    assert recipes_of(text, "x a r y") == {"r": rectified("a")}
    assert recipes_of(text, "x r y") == {}  # to fetch a instead of r would save nothing
    assert recipes_of(text, "r") == {}


REARRANGING = {
    "Reshape": "y = Reshape(a, s)",
    "Flatten": "y = Flatten(a)",
    "Transpose": "y = Transpose(a)",
    "Squeeze": "y = Squeeze(a)",
    "Unsqueeze": "y = Unsqueeze(a, s)",
    "Identity": "y = Identity(a)",
    "Dropout": "y = Dropout(a)",
    "Dropout with a ratio": "y = Dropout(a, h)",
    "Dropout told not to train": "y = Dropout(a, h, no)",
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(a)",
    "SpaceToDepth": "y = SpaceToDepth<blocksize = 2>(a)",
    "ai.onnx": "y = ai.onnx.Identity(a)",
}


@pytest.mark.parametrize("mergeable", [True, False])
@pytest.mark.parametrize("node", REARRANGING.values(), ids=REARRANGING)
def test_what_moves_every_value_once_keeps_the_histogram(node: str, mergeable: bool) -> None:
    text = f"g (float[N] x, int64[1] s) => (float[M] y) <float h = {{0.5}}, bool no = {{0}}> {{ a = Abs(x) {node} }}"
    assert recipes_of(text, "x a y", mergeable) == {"y": same("a")}
    assert recipes_of(text, "y", mergeable) == {}


OTHERS = {
    "selects the largest": "y = MaxPool<kernel_shape = [2]>(a)",
    "repeats": "y = Resize(a, h, h)",
    "selects": "y = Slice(a, s, s)",
    "has bounds of its own": "y = Clip(a, h)",
    "repeats as often as told": "y = Expand(a, s)",
    "divides": "y, z = Split<num_outputs = 2>(a)",
    "keeps the negative": "y = LeakyRelu(a)",
    "computes": "y = Neg(a)",
    "Relu of another domain": "y = my.Relu(a)",
    "Identity of another domain": "y = my.Identity(a)",
    "Concat of another domain": "y = my.Concat(a, a)",
    "in training": "y = Dropout(a, h, yes)",
    "in training, perhaps": "y = Dropout(a, h, t)",
    "the mask": "d, y = Dropout(a)",
}


@pytest.mark.parametrize("node", OTHERS.values(), ids=OTHERS)
def test_what_else_must_be_observed(node: str) -> None:
    text = f"g (float[N] x, int64[1] s, bool t) => (float[M] y) <float h = {{0.5}}, bool yes = {{1}}> {{ a = Abs(x) {node} }}"
    assert recipes_of(text, "x a y") == {}


def test_the_mask_of_an_inert_dropout_is_no_copy() -> None:
    text = "g (float[N] x) => (float[N] d, float[N] mask) { d, mask = Dropout(x) }"
    assert recipes_of(text, "x d mask", opset=7) == {"d": same("x")}


def test_constant_that_says_whether_to_train() -> None:
    text = "g (float[N] x) => (float[N] y) <float h = {{0.5}}> {{ t = Constant<value = bool {{{0}}}>() y = Dropout(x, h, t) }}"
    assert recipes_of(text.format(0), "x y") == {"y": same("x")}
    assert recipes_of(text.format(1), "x y") == {}


def test_concat_is_the_merge_of_its_inputs_as_often_as_they_are_listed() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) b = Neg(x) y = Concat<axis = 0>(b, a, b, x) }"
    assert recipes_of(text, "x a b y") == {"y": merged("b", "a", "b", "x")}
    assert recipes_of(text, "a b y") == {}
    assert recipes_of(text, "x a b y", mergeable=False) == {}


def test_what_a_split_divides_is_the_merge_of_all_that_it_makes() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) t = Identity(a) b, c = Split<axis = 0, num_outputs = 2>(t) y = Neg(b) }"
    assert recipes_of(text, "x a t b c y", opset=18) == {"a": merged("b", "c"), "t": same("a")}
    assert recipes_of(text, "x a b y", opset=18) == {}
    assert recipes_of(text, "x a b c y", mergeable=False, opset=18) == {}
    text = "g (float[N] x) => (float[N] y) { a = Relu(x) b, c = Split<axis = 0, num_outputs = 2>(a) y = Relu(b) }"
    assert recipes_of(text, "x a b c y", opset=18) == {"a": rectified("x"), "y": rectified("b")}


def test_splits_of_splits() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) b, c = Split<num_outputs = 2>(a) d, e = Split<num_outputs = 2>(b) y = Relu(a) }"
    assert recipes_of(text, "x a b c d e y", opset=18) == {
        "b": merged("d", "e"),
        "a": merged("b", "c"),
        "y": rectified("a"),
    }


def test_a_gate_follows_from_what_it_reads_where_that_is_allowed() -> None:
    proto = model("g (float[N] x) => (float[N] y) { a = Abs(x) b = Identity(a) s = Sigmoid(b) y = Mul(b, s) }")
    view, names = GraphView(proto.graph), ["x", "a", "b", "s", "y"]
    found = derivation(view, names, True, {"s": "b"})
    check_division(found, names)
    assert found.recipes == {"s": DerivedFrom("sigmoid", ("a",)), "b": same("a")}
    assert derivation(view, names, False, {"s": "b"}).recipes == {"b": same("a")}
    assert derivation(view, ["x", "s", "y"], True, {"s": "b"}).recipes == {}


@pytest.mark.parametrize(
    "constant",
    [
        "<float[2] c = {1, 2}> {",
        "{ c = Constant<value_floats = [1.0, 2.0]>()",
        "<float[2] k = {1, 2}> { c = Identity(k)",
    ],
)
def test_concat_with_a_constant_is_observed(constant: str) -> None:
    text = (
        f"g (float[N] x) => (float[N] y) {constant} a = Abs(x) y = Concat<axis = 0>(a, c) z = Concat<axis = 0>(a, x) }}"
    )
    assert recipes_of(text, "x a y z") == {"z": merged("a", "x")}


def test_initializer_listed_as_an_input_is_no_source() -> None:
    text = "g (float[N] x, float[2] c) => (float[N] y) <float[2] c = {1, 2}> { y = Concat<axis = 0>(x, c) r = Relu(c) }"
    assert recipes_of(text, "x y r") == {}


def test_graph_input_is_a_source() -> None:
    text = "g (float[N] x) => (float[N] y) { r = Relu(x) i = Identity(x) y = Concat<axis = 0>(r, i) }"
    assert recipes_of(text, "x r i y") == {"i": same("x"), "r": rectified("x"), "y": merged("r", "x")}


def test_copies_that_are_not_wanted_are_seen_through() -> None:
    text = "g (float[N] x, int64[1] s) => (float[N] y) { a = Abs(x) b = Reshape(a, s) c = Transpose(b) r = Relu(c) f = Flatten(r) y = Concat<axis = 0>(f, c) }"
    assert recipes_of(text, "a y r") == {"r": rectified("a"), "y": merged("r", "a")}
    assert recipes_of(text, "a c f") == {"f": rectified("a"), "c": same("a")}
    assert recipes_of(text, "c b") == {"b": same("c")}  # both are a's values; a itself is not wanted
    assert recipes_of(text, "b f y") == {"f": rectified("b"), "y": merged("f", "b")}


def test_relu_that_is_not_wanted_is_not_seen_through() -> None:
    text = "g (float[N] x) => (float[N] y) { r = Relu(x) y = Concat<axis = 0>(r, x) }"
    assert recipes_of(text, "x y") == {}


def test_a_name_given_twice_counts_once() -> None:
    found = divided(model("g (float[N] x) => (float[N] y) { y = Relu(x) }"), ["x", "y", "x"])
    assert (found.names, found.observed) == (("x", "y"), ("x",))


def test_bodies_of_control_flow_are_not_looked_at() -> None:
    text = """g (float[N] x, bool b) => (float[N] y) {
        y = If (b) <then_branch = t () => (float[N] p) { p = Relu(x) }, else_branch = e () => (float[N] q) { q = Identity(x) }>
        r = Relu(y)
    }"""
    assert recipes_of(text, "x y r") == {"r": rectified("y")}
    assert recipes_of(text, "x y p q r") == {"r": rectified("y")}


def test_q_and_dq_are_operators_like_any_other() -> None:
    text = "g (float[N] x) => (float[N] y) <float s = {0.5}, int8 z = {0}> { a = Abs(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) r = Relu(d) y = Relu(a) }"
    assert recipes_of(text, "x a r y") == {"y": rectified("a")}  # r's source is rounded: not a
    assert recipes_of(text, "x a d r y") == {"r": rectified("d"), "y": rectified("a")}


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_any_order(seed: int) -> None:
    text = "g (float[N] x) => (float[N] y) { a = Relu(x) b = Identity(a) c = Concat<axis = 0>(b, x) d = Flatten(c) y = Relu(d) }"
    proto = shuffled(model(text), seed)
    names = ["x", *(name for node in proto.graph.node for name in node.output)]
    found = divided(proto, names)
    check_division(found, names)
    assert found.observed == ("x",)


# ------------------------------------------------------------------ beside observation

ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 2.0**-149, -(2.0**-149), 3.4e38, -3.4e38], np.float32)
NETWORK = """g (float[N, 4, 2, 2] x, float[N, 4, 2, 2] below) => (float[N, M] y)
<int64[2] flat = {0, -1}, int64[1] last = {4}, float half = {0.5}> {
    c = Neg(x)
    r = Relu(c)
    rr = Relu(r)
    none = Relu(below)
    up = DepthToSpace<blocksize = 2>(r)
    down = SpaceToDepth<blocksize = 2>(up)
    t = Transpose<perm = [0, 2, 3, 1]>(x)
    u = Unsqueeze(t, last)
    s = Squeeze(u, last)
    flat_r = Reshape(rr, flat)
    flat_t = Flatten(s)
    flat_n = Flatten(none)
    d = Dropout(flat_t, half)
    k = Concat<axis = 1>(flat_r, d, flat_n, flat_r)
    i = Identity(k)
    y = Relu(i)
}"""


def pieces(seed: int, odd: bool) -> list[dict[str, Float32]]:
    """Three batches of different sizes; the second input has no positive value."""
    r = np.random.default_rng(seed)
    made = []
    for count, scale in ((1, 0.1), (7, 5.0), (2, 300.0)):
        x = (r.standard_normal((count, 4, 2, 2)) * scale).astype(np.float32)
        below = -np.abs(x[::-1]) - np.float32(0.01)
        if odd:
            x.reshape(-1)[: ODD.size] = ODD
            below.reshape(-1)[:3] = (-np.inf, -0.0, 0.0)
        made.append({"x": x, "below": below})
    return made


def run_all(proto: onnx.ModelProto, batches: Iterable[dict[str, Any]]) -> tuple[list[str], list[dict[str, Float32]]]:
    """Every float32 activation in graph order, and its values in each batch."""
    view = GraphView(proto.graph)
    names = [name for node in view.every for name in node.outputs if name and not view.is_constant(name)]
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = session_of(whole)
    floats = [output.name for output in session.get_outputs() if output.type == "tensor(float)"]
    given = [i.name for i in session.get_inputs() if i.name in view.inputs and i.type == "tensor(float)"]
    runs = [{**feed, **dict(zip(floats, session.run(floats, feed), strict=True))} for feed in batches]
    return [*given, *floats], runs


def observe(
    names: Iterable[str], runs: list[dict[str, Float32]], kind: type[AnyHistogram] = Histogram
) -> dict[str, AnyHistogram]:
    histograms = {name: kind() for name in names}
    for run in runs:
        for name, histogram in histograms.items():
            histogram.add(run[name])
    return histograms


def check_derived(found: Derivation, every: dict[str, AnyHistogram]) -> None:
    """What is derived from the observed ones equals what was observed; the sources stay as they were."""
    observed = {name: every[name] for name in found.observed}
    before = {name: one.state() for name, one in every.items()}
    derived = derive_all(found, observed)
    assert list(derived) == list(found.names)
    assert [name for name in derived if derived[name].state() != before[name]] == []
    assert len({id(one) for one in derived.values()}) == len(derived)
    for name in found.recipes:
        derived[name].add(np.full(3, 1e9, np.float32))
    assert [name for name in found.observed if observed[name].state() != before[name]] == []


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
def test_derived_equals_observed(odd: bool) -> None:
    proto = model(NETWORK)
    names, runs = run_all(proto, pieces(5, odd))
    found = divided(proto, names)
    check_division(found, names)
    assert found.observed == ("x", "below", "c")
    check_derived(found, observe(names, runs))
    every = observe(names, runs)
    assert every["none"].all_zero
    assert (every["c"].nans > 0) == (every["y"].nans > 0) == every["c"].has_inf == odd


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
def test_tensorrt_entropy_derives_the_same_values_only(odd: bool) -> None:
    proto = model(NETWORK)
    names, runs = run_all(proto, pieces(6, odd))
    found = divided(proto, names, mergeable=False)
    check_division(found, names)
    assert found.observed == ("x", "below", "c", "r", "rr", "none", "k", "y")
    check_derived(found, observe(names, runs, EntropyHistogram))


def test_infinities_of_the_lost_sign_are_zeros() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    for values in ([-np.inf], [np.inf], [-np.inf, np.inf, -np.inf], [-np.inf, 2.0], [np.inf, -2.0], [np.nan, -np.inf]):
        names, runs = run_all(proto, [{"x": np.array(values, np.float32)}])
        check_derived(divided(proto, names), observe(names, runs))


def test_sources_with_nothing_in_them() -> None:
    proto = model(
        "g (float[N] x, float[M] z) => (float[N] y) { y = Relu(x) i = Identity(z) k = Concat<axis = 0>(y, i) }"
    )
    names, runs = run_all(proto, [{"x": np.ones(2, np.float32), "z": np.empty(0, np.float32)}])
    check_derived(divided(proto, names), observe(names, runs))
    names, runs = run_all(proto, [{"x": np.empty(0, np.float32), "z": np.empty(0, np.float32)}])
    check_derived(divided(proto, names), observe(names, runs))


ATTRIBUTES = {"Concat": "<axis = 0>", "Split": "<axis = 0, num_outputs = 2>"}


def random_network(r: np.random.Generator) -> onnx.ModelProto:
    """Twelve nodes over vectors, each reading any that are there."""
    made, lines = ["x"], []
    for index in range(12):
        op = str(r.choice(["Relu", "Identity", "Neg", "Transpose", "Concat", "Concat", "Abs", "Split"]))
        sources = r.choice(made, 2 if op == "Concat" else 1)
        outputs = [f"t{index}", f"h{index}"] if op == "Split" else [f"t{index}"]
        lines.append(f"{', '.join(outputs)} = {op}{ATTRIBUTES.get(op, '')}({', '.join(sources)})")
        made += outputs
    return model(f"g (float[N] x) => (float[M] t11) {{ {' '.join(lines)} }}", 18)


@pytest.mark.parametrize("seed", range(25))
def test_any_wanted_part_of_any_network(seed: int) -> None:
    r = np.random.default_rng(seed)
    proto = random_network(r)
    feeds = [{"x": np.concatenate([ODD, r.standard_normal(n).astype(np.float32)])} for n in (3, 20)]
    names, runs = run_all(proto, feeds)
    wanted = [name for name in names if r.random() < 0.7] or names
    for mergeable, kind in ((True, Histogram), (False, EntropyHistogram)):
        found = divided(proto, wanted, mergeable)
        check_division(found, wanted)
        check_derived(found, observe(wanted, runs, kind))


def test_what_does_not_merge_is_refused() -> None:
    found = divided(model("g (float[N] x) => (float[N] y) { y = Relu(x) }"), ["x", "y"])
    with pytest.raises(TypeError, match="mergeable=False"):
        derive_all(found, {"x": EntropyHistogram()})


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "most"), [("cifar_resnet20", 0.75), ("ultraface_rfb320_raw", 0.75), ("nanodet_m_320_coco", 0.75)]
)
def test_real_models(shared: Path, name: str, most: float) -> None:
    proto = onnx.load(shared / "corpus" / "models" / f"{name}.onnx")
    view = GraphView(proto.graph)
    r = np.random.default_rng(1)
    inputs = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.input if value.name in view.inputs}
    shapes = {key: [dim.dim_value or 1 for dim in dims] for key, dims in inputs.items()}
    feeds = [{key: r.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()} for _ in range(2)]
    names, runs = run_all(proto, feeds)
    for mergeable, kind in ((True, Histogram), (False, EntropyHistogram)):
        found = derivation(view, names, mergeable)
        check_division(found, names)
        check_derived(found, observe(names, runs, kind))
        assert len(found.observed) < (most if mergeable else 1.0) * len(names)
