# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors followed through one operator at a time, and checked by running chains of them on marked values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.channels.parts import ChannelStep, Part, PartFollower
from qdqtool.graph.channels.sizes import TensorSizes
from qdqtool.graph.view import GraphView, Use
from tests.graphs import model_of, node_of, view_of

CUTS = "int64[1] one = {1}, int64[1] three = {3}, int64[1] last = {-1}, int64[1] far = {9223372036854775807}"


def steps_of(
    body: str, key: str, part: Part, index: int = 0, more: str = "", image: str = "1,4,6,6"
) -> list[ChannelStep]:
    """Where a part of input `index` of the node that makes `key` goes."""
    weights = "float[6,4,1,1] w, float[2,4,1,1] v" + (f", {more}" if more else "")
    view = view_of(f"g (float[{image}] x, int64[1] n) => (float z) <{weights}> {{ {body} }}")
    return PartFollower(TensorSizes(view)).follow(Use(node_of(view, key), index), part)


# ---------------------------------------------------------------------- one operator


@pytest.mark.parametrize(("index", "span"), [(0, (1, 0, 6)), (1, (1, 6, 8)), (2, (1, 8, 14))])
def test_concat_counts_the_channels_before(index: int, span: tuple[int, int, int]) -> None:
    body = "a = Conv(x, w) b = Conv(x, v) z = Concat<axis=1>(a, b, a)"
    assert steps_of(body, "z", (), index) == [ChannelStep("z", (span,))]
    assert steps_of(body.replace("axis=1", "axis=-3"), "z", (), index) == [ChannelStep("z", (span,))]


def test_concat_moves_a_part_and_leaves_other_axes() -> None:
    body = "a = Conv(x, w) b = Conv(x, v) z = Concat<axis=1>(a, b)"
    assert steps_of(body, "z", ((1, 1, 2), (2, 0, 3)), 1) == [ChannelStep("z", ((1, 7, 8), (2, 0, 3)))]


def test_concat_behind_an_unknown_size_gives_the_axis_up() -> None:
    body = "a = Conv(x, w) b = trt.Strange(x) z = Concat<axis=1>(b, a)"
    assert steps_of(body, "z", ((2, 0, 3),), 1) == [ChannelStep("z", ((2, 0, 3),))]
    swapped = body.replace("(b, a)", "(a, b)")
    assert steps_of(swapped, "z", (), 0) == [ChannelStep("z", ((1, 0, 6),))], "what comes later does not matter"


def test_concat_along_an_axis_counted_from_an_unknown_end_gives_all_up() -> None:
    body = "b = trt.Strange(x) z = Concat<axis=-1>(b, b)"
    assert steps_of(body, "z", ((1, 0, 3),), 0) == [ChannelStep("z", ())]


@pytest.mark.parametrize(
    ("first", "last", "part", "found"),
    [
        ("one", "three", ((1, 0, 1),), []),
        ("one", "three", ((1, 3, 6),), []),
        ("one", "three", ((1, 1, 3),), [ChannelStep("z", ())]),
        ("one", "three", ((1, 0, 2),), [ChannelStep("z", ((1, 0, 1),), cut=True)]),
        ("one", "far", ((1, 2, 4),), [ChannelStep("z", ((1, 1, 3),))]),
        ("last", "far", ((1, 0, 5),), []),
        ("last", "far", ((1, 5, 6),), [ChannelStep("z", ())]),
        ("one", "three", (), [ChannelStep("z", (), cut=True)]),
        ("one", "n", ((1, 0, 1),), [ChannelStep("z", (), cut=True)]),
    ],
)
def test_slice_takes_what_lies_between(first: str, last: str, part: Part, found: list[ChannelStep]) -> None:
    assert steps_of(f"a = Conv(x, w) z = Slice(a, {first}, {last}, one)", "z", part, more=CUTS) == found


def test_a_slice_of_everything_cuts_nothing() -> None:
    more = CUTS + ", int64[1] zero = {0}, int64[1] six = {6}"
    for last in ("far", "six"):
        assert steps_of(f"a = Conv(x, w) z = Slice(a, zero, {last}, one)", "z", (), more=more) == [ChannelStep("z", ())]


def test_a_slice_with_steps_cuts_and_gives_the_axis_up() -> None:
    more = CUTS + ", int64[1] two = {2}"
    body = "a = Conv(x, w) z = Slice(a, one, far, one, two)"
    assert steps_of(body, "z", ((1, 2, 3), (2, 0, 1)), more=more) == [ChannelStep("z", ((2, 0, 1),), cut=True)]
    assert steps_of(body, "z", ((1, 0, 1),), more=more) == [], "before its start nothing is taken"


def test_the_bounds_of_a_slice_carry_no_values() -> None:
    assert steps_of("a = Conv(x, w) z = Slice(a, n, three, one)", "z", (), index=1, more=CUTS) == []


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (((1, 0, 2),), [ChannelStep("z", ())]),
        (((1, 2, 6),), [ChannelStep("y", ())]),
        (((1, 1, 4),), [ChannelStep("z", ((1, 1, 2),), cut=True), ChannelStep("y", ((1, 0, 2),), cut=True)]),
        ((), [ChannelStep("z", (), cut=True), ChannelStep("y", (), cut=True)]),
    ],
)
def test_split_hands_out_what_lies_in_each_piece(part: Part, found: list[ChannelStep]) -> None:
    body = "a = Conv(x, w) z, y = Split<axis=1>(a, p)"
    assert steps_of(body, "z", part, more="int64[2] p = {2,4}") == found


def test_split_in_equal_pieces() -> None:
    assert steps_of("a = Conv(x, w) z, y = Split<axis=1>(a)", "z", ((1, 4, 5),)) == [ChannelStep("y", ((1, 1, 2),))]


@pytest.mark.parametrize(
    ("indices", "part", "found"),
    [
        ("int64 i = {4}", ((1, 0, 4),), []),
        ("int64 i = {4}", ((1, 4, 5), (2, 0, 1)), [ChannelStep("z", ((1, 0, 1),))]),  # the axis itself is gone
        ("int64[1] i = {-1}", ((1, 5, 6), (2, 0, 1)), [ChannelStep("z", ((2, 0, 1),))]),
        ("int64[2] i = {0,1}", ((1, 0, 4),), [ChannelStep("z", (), cut=True)]),
        ("int64[2] i = {0,1}", ((1, 0, 2),), [ChannelStep("z", ())]),
        ("int64[6] i = {5,4,3,2,1,0}", (), [ChannelStep("z", ())]),
    ],
)
def test_gather_by_constant_indices_chooses_channels(indices: str, part: Part, found: list[ChannelStep]) -> None:
    assert steps_of("a = Conv(x, w) z = Gather<axis=1>(a, i)", "z", part, more=indices) == found


def test_gather_by_computed_indices_chooses_rows_and_cuts_no_channel() -> None:
    assert steps_of("a = Conv(x, w) z = Gather<axis=1>(a, n)", "z", ((1, 0, 4),)) == [ChannelStep("z", ())]
    assert steps_of("a = Conv(x, w) z = Gather<axis=1>(a, n)", "z", (), index=1) == [], "an index is no value"


def test_transpose_takes_an_axis_along() -> None:
    body = "a = Conv(x, w) z = Transpose<perm=[0,2,3,1]>(a)"
    assert steps_of(body, "z", ((1, 2, 3), (3, 0, 1))) == [ChannelStep("z", ((2, 0, 1), (3, 2, 3)))]
    assert steps_of("a = Conv(x, w) z = Transpose(a)", "z", ((1, 2, 3),)) == [ChannelStep("z", ((2, 2, 3),))]


@pytest.mark.parametrize(
    ("shape", "part", "kept"),
    [
        ("3] s = {1,6,-1}", ((1, 0, 2),), ((1, 0, 2),)),
        ("3] s = {0,0,-1}", ((1, 0, 2),), ((1, 0, 2),)),
        ("5] s = {1,3,2,6,6}", ((1, 0, 2),), ()),
        ("3] s = {1,-1,6}", ((3, 0, 2),), ((2, 0, 2),)),
        ("3] s = {1,-1,4}", ((3, 0, 2),), ()),
        ("2] s = {1,-1}", ((1, 0, 2),), ()),
    ],
)
def test_reshape_keeps_channels_where_only_the_batch_lies_before_or_nothing_behind(
    shape: str, part: Part, kept: Part
) -> None:
    found = steps_of("a = Relu(x) z = Reshape(a, s)", "z", part, more=f"int64[{shape}", image="1,6,6,6")
    assert found == [ChannelStep("z", kept)]


def test_reshape_to_a_shape_put_together_of_pieces() -> None:
    more = "int64[1] c = {6}, int64[1] rest = {-1}, int64[1] zero = {0}"
    body = "a = Conv(x, w) s = Shape(a) b = Gather(s, zero) t = Concat<axis=0>(b, c, rest) z = Reshape(a, t)"
    assert steps_of(body, "z", ((1, 0, 2),), more=more) == [ChannelStep("z", ((1, 0, 2),))]
    whole = "a = Conv(x, w) s = Shape(a) t = Concat<axis=0>(s, c, rest) z = Reshape(a, t)"
    assert steps_of(whole, "z", ((1, 0, 2),), more=more) == [ChannelStep("z", ())], "a piece of unknown length"


def test_an_unknown_operator_spreads_values_anywhere() -> None:
    assert steps_of("a = Conv(x, w) z = trt.Strange(a)", "z", ((1, 0, 2),)) == [ChannelStep("z", ())]
    assert steps_of("a = Conv(x, w) z = Sigmoid(a)", "z", ((1, 0, 2),)) == [ChannelStep("z", ((1, 0, 2),))]


def test_a_long_chain_of_operators_is_no_trouble() -> None:
    body = (
        "t0 = Conv(x, w) " + " ".join(f"t{i + 1} = Relu(t{i})" for i in range(3000)) + " z = Concat<axis=1>(t3000, x)"
    )
    assert steps_of(body, "z", (), index=1) in ([ChannelStep("z", ())], [ChannelStep("z", ((1, 6, 10),))])


# ---------------------------------------------------------------------- chains, run on marked values

CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, int64[1] far = {99},
    int64[2] both = {0,1}, int64[3] same = {0,0,-1}, int64[1] most = {6}, float nought = {0}"""
# None of them asks for more than one place along an axis, so that every order of them runs.
MOVES = [
    "p{o} = Mul(z{i}, nought) z{o} = Concat<axis=1>(p{o}, z{i}, p{o})",
    "z{o} = Concat<axis=-1>(z{i}, z{i})",
    "z{o} = Transpose<perm=[0,2,1]>(z{i})",
    "z{o} = Slice(z{i}, zero, most, one)",
    "p{o} = Concat<axis=1>(z{i}, z{i}) z{o} = Slice(p{o}, one, last, one)",
    "p{o} = Concat<axis=1>(z{i}, z{i}) z{o} = Slice(p{o}, zero, far, one, two)",
    "p{o} = Concat<axis=1>(z{i}, z{i}) z{o}, r{o} = Split<axis=1>(p{o})",
    "p{o} = Concat<axis=2>(z{i}, z{i}) r{o}, z{o} = Split<axis=2>(p{o})",
    "z{o} = Neg(z{i})",
    "z{o} = Gather<axis=1>(z{i}, both)",
    "z{o} = Reshape(z{i}, same)",
]


@given(st.lists(st.sampled_from(MOVES), min_size=1, max_size=6))
def test_no_value_of_a_part_is_ever_outside_of_what_was_said(moves: list[str]) -> None:
    """Marked ones among zeros: wherever a mark comes out, the part covers it."""
    body = " ".join(move.format(i=i, o=i + 1) for i, move in enumerate(moves))
    last = f"z{len(moves)}"
    model = model_of(f"g (float[1,8,8] z0) => (float[A,B,C] {last}) <{CONSTANTS}> {{ {body} }}")
    marked = np.zeros((1, 8, 8), np.float32)
    marked[:, 2:5] = 1
    (value,) = ReferenceEvaluator(model).run(None, {"z0": marked})
    covered = _covered(GraphView(model.graph), last, ((1, 2, 5),), value.shape)
    assert not (np.abs(value) * ~covered).any()


def _covered(
    view: GraphView, last: str, part: Part, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which places of the last tensor the parts of the first reach."""
    covered = np.zeros(shape, bool)
    channels, stack = PartFollower(TensorSizes(view)), [("z0", part)]
    while stack:
        name, part = stack.pop()
        if name == last:
            where = [slice(None)] * len(shape)
            for axis, lo, hi in part:
                where[axis] = slice(lo, hi)
            covered[tuple(where)] = True
        for use in view.consumers(name):
            stack.extend((step.tensor, step.part) for step in channels.follow(use, part))
    return covered
