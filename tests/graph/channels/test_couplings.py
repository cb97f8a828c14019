# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which channels each operator makes one: moves against a run on channel numbers, the others as tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.channels.atoms import NONE, PINNED, ChannelAtoms
from qdqtool.graph.channels.couplings import couple, couple_graph
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView
from tests.graphs import model_of, view_of

# ---------------------------------------------------------------------- moves, run on channel numbers

CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] far = {99}, int64[1] neg = {-1}, int64[1] least = {-9999},
int64[4] order = {3,0,2,1}, int64[5] apart = {1,2,2,4,4}, int64[4] back = {1,4,4,4}, int64[2] halves = {2,2}, int64[8] border = {0,0,1,1,0,0,1,1},
int64[8] wide = {0,1,0,0,0,1,0,0}, int64[4] once = {1,1,1,1}, int64[4] twice = {1,2,1,1}, float[4] double = {1,1,2,2}"""
MOVES = [
    "z{o} = Transpose<perm=[0,1,3,2]>(z{i})",
    "z{o} = Transpose<perm=[0,3,1,2]>(z{i})",
    "a{o} = Reshape(z{i}, apart)  b{o} = Transpose<perm=[0,2,1,3,4]>(a{o})  z{o} = Reshape(b{o}, back)",
    "z{o} = Gather<axis=1>(z{i}, order)",
    "z{o} = Slice(z{i}, neg, least, one, neg)",
    "a{o} = Slice(z{i}, one, far, one)  b{o} = Slice(z{i}, zero, one, one)  z{o} = Concat<axis=1>(a{o}, b{o})",
    "a{o}, b{o} = Split<axis=1>(z{i}, halves)  z{o} = Concat<axis=1>(b{o}, a{o})",
    "a{o}, b{o} = Split<axis=-1>(z{i}, halves)  z{o} = Concat<axis=-1>(b{o}, a{o})",
    "a{o} = SpaceToDepth<blocksize=2>(z{i})  z{o} = DepthToSpace<blocksize=2>(a{o})",
    'a{o} = SpaceToDepth<blocksize=2>(z{i})  z{o} = DepthToSpace<blocksize=2, mode="CRD">(a{o})',
    "a{o} = Tile(z{i}, twice)  z{o}, b{o} = Split<axis=1>(a{o})",
    "a{o} = Expand(z{i}, once)  z{o} = Identity(a{o})",
    "a{o} = Unsqueeze(z{i}, two)  z{o} = Squeeze(a{o}, two)",
    "a{o} = Flatten<axis=2>(z{i})  z{o} = Reshape(a{o}, back)",
    "a{o} = Pad(z{i}, wide)  z{o} = Slice(a{o}, one, neg, one)",
]


@given(st.lists(st.sampled_from(MOVES), min_size=1, max_size=5))
def test_moves_are_followed_as_a_run_on_channel_numbers_goes(moves: list[str]) -> None:
    body = " ".join(move.format(i=i, o=i + 1) for i, move in enumerate(moves))
    last = f"z{len(moves)}"
    model = model_of(f"g (float[1,4,4,4] z0) => (float[A,B,C,D] {last}) <{CONSTANTS}> {{ {body} }}")
    atoms = ChannelAtoms(view := GraphView(model.graph), shapes_of(GraphView(model.graph)))
    marked = atoms.mark("z0", 1)
    assert marked is not None
    couple(atoms, view.nodes)
    numbers = np.broadcast_to(marked.reshape(1, 4, 1, 1), (1, 4, 4, 4)).astype(np.float32)
    (whole,) = ReferenceEvaluator(model).run(None, {"z0": numbers})
    assert not atoms.pinned(marked).any()
    assert (np.broadcast_to(atoms.of(last), whole.shape) == whole).all()


@pytest.mark.parametrize(
    "move",
    [
        "z = Slice(x, n, far, one)",  # computed bounds of the axis of channels
        "z = Gather<axis=1>(x, n)",
        "z = Reshape(x, odd)",
        "z = trt.Strange(x)",
        "z = CumSum(x, two)",
        "z = ReduceMean<keepdims=0>(x, one)",
        "z = Softmax<axis=1>(x)",
    ],
)
def test_what_cannot_be_followed_pins_the_channels_that_it_reads(move: str) -> None:
    view = view_of(
        f"g (float[1,4,M,N] x, int64[1] n) => (float[A,B] z) <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] far = {{9}}, int64[2] odd = {{-1,7}}> {{ {move} }}",
        18,
    )
    atoms = ChannelAtoms(view, shapes_of(view))
    marked = atoms.mark("x", 1)
    assert marked is not None
    couple(atoms, view.nodes)
    assert atoms.pinned(marked).all()
    assert (atoms.of("z") == PINNED).all()


def test_a_computed_slice_of_another_axis_moves_no_channel() -> None:
    view = view_of(
        "g (float[1,4,6,6] x, int64[1] n) => (float[A,B,C,D] z) <int64[1] two = {2}, int64[1] far = {9}> { z = Slice(x, n, far, two) }"
    )
    atoms = ChannelAtoms(view, {"x": (1, 4, 6, 6), "z": (1, 4, 3, 6)})
    marked = atoms.mark("x", 1)
    couple(atoms, view.nodes)
    assert marked is not None and not atoms.pinned(marked).any()
    row = atoms.row("z", 1)
    assert row is not None and row.atoms.tolist() == marked.tolist()


def test_sizes_of_a_graph_are_no_values() -> None:
    view = view_of("g (float[1,4,6,6] x) => (int64[4] z) { z = Shape(x) }")
    atoms = ChannelAtoms(view, shapes_of(view))
    marked = atoms.mark("x", 1)
    couple(atoms, view.nodes)
    assert marked is not None and not atoms.pinned(marked).any()


# ---------------------------------------------------------------------- whole graphs

WEIGHTS = """float[6,4,1,1] w, float[6,4,1,1] v, float[4,6,1,1] u, float[6,1,3,3] dw, float[12,1,3,3] dw2, float[6,3,1,1] gw, float[6,2,3,3] tw,
float[6] p, float[24,5] fc, float[6,5] k, float one = {1}, float[1,6,1,1] bias, int64[1] first = {1}, int64[1] far = {9}, int64[2] spatial = {2,3}, int64[2] flat = {0,-1}, float[6,6,1,1] s, float[1,1,1,1] lone"""


def classes(body: str, tensor: str, outputs: str = "float[A,B] out", opset: int = 18) -> list[int]:
    """The channels of a tensor of four axes as small numbers: equal ones are one; -1 must stay."""
    model = model_of(f"g (float[1,4,8,8] x) => ({outputs}) <{WEIGHTS}> {{ {body} }}", opset)
    view = GraphView(model.graph)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    row = atoms.row(tensor, 1)
    assert row is not None and not row.mixed.size
    seen: dict[int, int] = {}
    return [-1 if atom == PINNED else seen.setdefault(atom, len(seen)) for atom in row.atoms.tolist()]


FREE, HELD = [0, 1, 2, 3, 4, 5], [-1] * 6


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Conv(x, w)  r = Relu(a)  out = Conv(r, u)", FREE),
        ("a = Conv(x, w)  r = Clip(a, one)  out = Conv(r, u)", FREE),
        ("a = Conv(x, w)  r = Add(a, bias)  out = Conv(r, u)", FREE),
        ("a = Conv(x, w)  r = BatchNormalization(a, p, p, p, p)  out = Conv(r, u)", FREE),
        ("a = Conv(x, w)  r = MaxPool<kernel_shape=[2,2]>(a)  out = Conv(r, u)", FREE),
        ("a = Conv(x, w)  g = GlobalAveragePool(a)  f = Reshape(g, flat)  out = MatMul(f, k)", FREE),
        ("a = Conv(x, w)  g = ReduceMean<keepdims=0>(a, spatial)  out = Gemm(g, k)", FREE),
        ("a = Conv(x, w)  s1 = Sigmoid(a)  m = Mul(a, s1)  out = Conv(m, u)", FREE),
        ("a = Conv(x, w)  d = Conv<group=6>(a, dw)  out = Conv(d, u)", FREE),
        ("a = Conv(x, w)  out = Relu(a)", HELD),  # the graph gives them out
        ("a = Conv(x, w)  b = trt.Strange(a)  out = Conv(b, u)", HELD),
        ("a = Conv(x, w)  b = Softmax<axis=1>(a)  out = Conv(b, u)", HELD),
        ("a = Conv(x, w)  b = Add(a, lone)  out = Conv(b, u)", FREE),
        ("a = Conv(x, w)  g = Conv<group=2>(a, gw)  out = Conv(g, u)", [0, 1, 2, 0, 1, 2]),  # one place of each group
        ("a = Conv(x, w)  b = ConvTranspose<group=2>(a, tw)  out = Relu(b)", [0, 1, 2, 0, 1, 2]),
    ],
)
def test_which_channels_of_a_convolution_can_go(body: str, expected: list[int]) -> None:
    outputs = "float[A,B] out" if "Gemm" in body or "MatMul" in body else "float[A,B,C,D] out"
    assert classes(body, "a", outputs) == expected


def test_operands_of_an_add_are_one_and_so_is_what_they_are_added_to_next() -> None:
    body = "a = Conv(x, w)  b = Conv(x, v)  c = Add(a, b)  d = Conv(x, w)  e = Add(c, d)  out = Conv(e, u)"
    model = model_of(f"g (float[1,4,8,8] x) => (float[A,B,C,D] out) <{WEIGHTS}> {{ {body} }}")
    view = GraphView(model.graph)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    rows = [atoms.row(name, 1) for name in "abcde"]
    assert len({tuple(row.atoms.tolist()) for row in rows if row is not None}) == 1
    assert not any(atoms.pinned(row.atoms).any() for row in rows if row is not None)


@pytest.mark.parametrize(("second", "one"), [("w", True), ("v", False)])
def test_convolutions_with_one_weight_keep_the_same_channels(second: str, one: bool) -> None:
    body = f"a = Conv(x, w)  b = Conv(x, {second})  c = Conv(a, u)  d = Conv(b, s)  out = Concat<axis=1>(c, d)"
    view = view_of(f"g (float[1,4,8,8] x) => (float[A,B,C,D] out) <{WEIGHTS}> {{ {body} }}")
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    rows = [atoms.row(name, 1) for name in "ab"]
    assert all(row is not None and not atoms.pinned(row.atoms).any() for row in rows)
    assert (len({tuple(row.atoms.tolist()) for row in rows if row is not None}) == 1) == one


def test_an_add_to_the_input_of_the_graph_pins() -> None:
    assert (
        classes("a = Conv(x, w)  b = Conv(a, u)  c = Add(b, x)  out = Conv(c, w)", "b", "float[A,B,C,D] out")
        == [-1] * 4
    )


def test_a_gate_of_one_channel_goes_with_none_of_those_that_it_multiplies() -> None:
    text = f"g (float[1,4,8,8] x) => (float[A,B,C,D] out) <{WEIGHTS}, float[1,4,1,1] one_w> {{ a = Conv(x, w)  g = Conv(x, one_w)  m = Mul(a, g)  out = Conv(m, u) }}"
    view = view_of(text)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    one, many = atoms.row("g", 1), atoms.row("a", 1)
    assert one is not None and many is not None
    assert atoms.pinned(one.atoms).all() and not atoms.pinned(many.atoms).any()


def test_a_depthwise_convolution_with_two_outputs_for_each_input() -> None:
    body = "a = Conv(x, w)  d = Conv<group=6>(a, dw2)  out = Relu(d)"
    assert classes(body, "a", "float[A,B,C,D] out") == HELD
    body = "a = Conv(x, w)  d = Conv<group=6>(a, dw2)  l, r = Split<axis=1, num_outputs=2>(d)  out = Conv(l, s)"
    assert classes(body, "d", "float[A,B,C,D] out") == [i // 2 for i in range(12)]


def test_a_channel_shuffle_couples_nothing() -> None:
    text = """g (float[1,4,8,8] x) => (float[A,B,C,D] out) <float[6,4,1,1] w, float[4,6,1,1] u, int64[5] apart = {1,2,3,8,8}, int64[4] back = {1,6,8,8}>
{ a = Conv(x, w)  r = Reshape(a, apart)  t = Transpose<perm=[0,2,1,3,4]>(r)  b = Reshape(t, back)  out = Conv(b, u) }"""
    view = view_of(text)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    before, after = atoms.row("a", 1), atoms.row("b", 1)
    assert before is not None and after is not None
    assert after.atoms.tolist() == before.atoms[[0, 3, 1, 4, 2, 5]].tolist()
    assert len(set(before.atoms.tolist())) == 6


def test_q_dq_pairs_are_seen_through() -> None:
    text = """g (float[1,4,8,8] x) => (float[A,B,C,D] out) <float[6,4,1,1] w, float[4,6,1,1] u, float s = {0.1}, int8 z = {0}>
{ a = Conv(x, w)  q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)  out = Conv(d, u) }"""
    view = view_of(text)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    row = atoms.row("a", 1)
    assert row is not None and not atoms.pinned(row.atoms).any()


def test_what_the_body_of_an_if_reads_stays() -> None:
    text = """g (float[1,4,8,8] x, bool c) => (float[A,B,C,D] out) <float[6,4,1,1] w>
{ a = Conv(x, w)  out = If (c) <then_branch = t () => (float[A,B,C,D] y) { y = Relu(a) }, else_branch = e () => (float[A,B,C,D] n) { n = Neg(a) }> }"""
    view = view_of(text)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    row = atoms.row("a", 1)
    assert row is not None and atoms.pinned(row.atoms).all()


# ---------------------------------------------------------------------- the corpus


LEAST_FREE = {
    "yolox_nano_coco": 0.9,
    "fastestdet_coco": 0.9,
    "nanodet_m_320_coco": 0.9,
    "squeezenet11_fp32": 0.7,
    "mnist8": 0.7,
}


@pytest.mark.slow  # all networks
def test_every_model_is_followed_and_most_channels_of_networks_can_be_distinguished(shared: Path) -> None:
    free: dict[str, float] = {}
    for path in sorted((shared / "corpus" / "models").glob("*.onnx")):
        view = GraphView(onnx.load(path, load_external_data=False).graph)
        atoms = ChannelAtoms(view, shapes_of(view))
        couple_graph(atoms)
        made = [row for node in view.nodes if node.op == "Conv" and (row := atoms.row(node.outputs[0], 1)) is not None]
        if made:
            free[path.stem] = float(np.concatenate([~atoms.pinned(row.atoms) for row in made]).mean())
    assert len(free) >= 25
    assert {name: free[name] for name, least in LEAST_FREE.items() if free[name] < least} == {}


@pytest.mark.parametrize(
    "move",
    [
        "Pad(b, p)",
        "Slice(b, i, i)",
        "Split<num_outputs=1>(b)",
        "Gather(b, i)",
        "Transpose(b)",
        "Concat<axis=0>(b, b)",
        "Softmax(b)",
        "Add(b, x)",
        "Flatten(b)",
        "Tile(b, p)",
    ],
)
def test_a_tensor_of_unknown_rank_is_pinned_and_goes_on(move: str) -> None:
    view = view_of(
        f"g (float[1,4,6,6] x) => (float[A] out) <int64[8] p = {{0,0,0,0,0,0,0,0}}, int64[1] i = {{1}}> {{ b = trt.Strange(x)  out = {move} }}",
        18,
    )
    atoms = ChannelAtoms(view, {"x": (1, 4, 6, 6)})
    couple_graph(atoms)
    assert (atoms.find(atoms.of("out")) == PINNED).all()


# ---------------------------------------------------------------------- for who removes channels

REMOVED = "g (float[1,4,8,8] x) => (float[A,B,C,D] out) <float[8,4,1,1] w, float[2,2,1,1] k, float[6,4,1,1] u, int64[8] p = {0,1,0,0,0,1,0,0}>"


@pytest.mark.parametrize(("removal", "own"), [(True, 4), (False, 2)])
def test_places_that_pad_fills_in_are_channels_where_channels_are_removed(removal: bool, own: int) -> None:
    view = view_of(f"{REMOVED} {{ a = Conv(x, k)  out = Pad(a, p) }}".replace("float[1,4,8,8] x", "float[1,2,8,8] x"))
    atoms = ChannelAtoms(view, {"x": (1, 2, 8, 8), "a": (1, 2, 8, 8), "out": (1, 4, 8, 8)}, removal=removal)
    couple(atoms, view.nodes)
    assert len(set(atoms.of("out").reshape(-1).tolist()) - {NONE}) == own


@pytest.mark.parametrize(("removal", "classes_left"), [(True, 2), (False, 8)])
def test_depth_to_space_joins_what_lies_side_by_side_where_channels_are_removed(
    removal: bool, classes_left: int
) -> None:
    view = view_of(f"{REMOVED} {{ a = Conv(x, w)  out = DepthToSpace<blocksize=2>(a) }}")
    shapes = {"x": (1, 4, 8, 8), "a": (1, 8, 8, 8), "out": (1, 2, 16, 16)}
    atoms = ChannelAtoms(view, shapes, removal=removal)
    couple(atoms, view.nodes)
    assert len(set(atoms.find(atoms.of("a")).reshape(-1).tolist())) == classes_left


def test_a_product_of_two_activations_keeps_heads_apart_and_joins_what_is_summed() -> None:
    text = """g (float[1,5,8] x) => (float[A,B,C] out) <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,3] wo, int64[4] heads = {1,5,2,4}, int64[3] back = {1,5,8}>
{ q0 = MatMul(x, wq)  q1 = Reshape(q0, heads)  q = Transpose<perm=[0,2,1,3]>(q1)
  k0 = MatMul(x, wk)  k1 = Reshape(k0, heads)  k = Transpose<perm=[0,2,3,1]>(k1)
  v0 = MatMul(x, wv)  v1 = Reshape(v0, heads)  v = Transpose<perm=[0,2,1,3]>(v1)
  s = MatMul(q, k)  p = Softmax<axis=-1>(s)  c = MatMul(p, v)  t = Transpose<perm=[0,2,1,3]>(c)  b = Reshape(t, back)  out = MatMul(b, wo) }"""
    view = view_of(text)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    rows = [atoms.row(name, 2) for name in ("q0", "k0", "v0", "b")]
    found = [row.atoms.tolist() for row in rows if row is not None]
    assert len(found) == 4 and all(one == found[0] for one in found)
    assert found[0][:4] == [found[0][0]] * 4 and found[0][4:] == [found[0][4]] * 4 and found[0][0] != found[0][4]
    assert PINNED not in found[0]


@pytest.mark.parametrize(
    ("softmax", "held"),
    [("Softmax<axis=-1>", False), ("Softmax<axis=3>", False), ("Softmax<axis=1>", True), ("Softmax", True)],
)
def test_a_softmax_computes_over_all_axes_from_its_own_on_as_before_opset_13(softmax: str, held: bool) -> None:
    text = f"{REMOVED} {{ a = Conv(x, w)  s = {softmax}(a)  out = Conv(s, u) }}".replace("[6,4,1,1] u", "[6,8,1,1] u")
    view = view_of(text, 12)
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    assert atoms.pinned(atoms.of("a")).all() == held


def test_a_matrix_reads_channels_that_lie_alike_at_every_position() -> None:
    """Behind a Reshape an array may be as wide as its tensor, with one channel at each place of the last axis."""
    view = view_of("""g (float[1,5,8] x) => (float[1,5,3] out) <float[8,8] w, float[8,3] u, int64[2] rows = {5,8}>
{ a = MatMul(x, w)  b = Reshape(a, rows)  out = MatMul(b, u) }""")
    atoms = ChannelAtoms(view, {"x": (1, 5, 8), "a": (1, 5, 8), "b": (5, 8), "out": (5, 3)})
    atoms.set("b", np.tile(np.arange(2, 10), (5, 1)))
    atoms.fresh(8)
    couple(atoms, view.nodes[2:])
    assert not atoms.pinned(np.arange(2, 10)).any()


def test_without_heads_all_that_a_product_sums_over_stays() -> None:
    view = view_of("""g (float[1,5,8] x) => (float[A,B,C] out) <float[8,8] wq, float[8,8] wk>
{ q = MatMul(x, wq)  k = MatMul(x, wk)  t = Transpose<perm=[0,2,1]>(k)  out = MatMul(q, t) }""")
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    row = atoms.row("q", 2)
    assert row is not None and atoms.pinned(row.atoms).all()
    assert "sums over all" in atoms.reason(int(atoms.of("q").reshape(-1)[0]))


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("out = Conv(x, w)", "out is an output of the model"),
        ("a = Conv(x, w)  out = trt.Strange(a)", "trt::Strange out needs all of them"),
    ],
)
def test_a_pinned_channel_says_why(nodes: str, reason: str) -> None:
    view = view_of(f"{REMOVED} {{ {nodes} }}")
    atoms = ChannelAtoms(view, shapes_of(view))
    couple_graph(atoms)
    made = view.nodes[0].outputs[0]
    assert {atoms.reason(atom) for atom in atoms.of(made).reshape(-1).tolist()} == {reason}
