# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Sizes and indices that operators name, for the channels that stay: each by hand, and the model computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.pruning.check import INSIDE, TOLERANCE
from qdqtool.pruning.run import Pruned
from tests.graphs import model_of
from tests.pruning.nets import halved, shapes, value, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

ONES = "int64[1] one = {1}, int64[1] zero = {0}"


def pruned(text: str, *small: int, opset: int = 17) -> Pruned:
    """Without the channels `small` of the eight that w makes (half of each group goes): the filters that are least."""
    model = model_of(text, opset=opset)
    weight = np.random.default_rng(7).normal(size=(8, 4, 1, 1))
    weight /= np.sqrt(np.square(weight).sum(axis=1, keepdims=True))
    weight[list(small)] *= 0.1
    done = halved(with_values(model, w=weight))
    assert done.difference is not None
    assert done.difference.outputs <= TOLERANCE and done.difference.inside <= INSIDE
    onnx.checker.check_model(done.model, full_check=True)
    return done


def numbers(done: Pruned, op: str, index: int) -> list[int]:
    """What the only operator of a kind reads as one of its inputs."""
    (node,) = (node for node in done.model.graph.node if node.op_type == op)
    return [int(one) for one in value(done.model, node.input[index]).reshape(-1)]


def attribute(done: Pruned, op: str, name: str) -> list[int]:
    (node,) = (node for node in done.model.graph.node if node.op_type == op)
    return next(list(item.ints) for item in node.attribute if item.name == name)


@pytest.mark.parametrize(
    ("start", "end", "small", "expected"),
    [
        (2, 8, (0, 3, 4, 5), (1, 4)),  # of 2 to 7 go half: 3, 4, 5; of 0 and 1 the first
        (-6, 8, (0, 3, 4, 5), (1, 4)),
        (2, -1, (0, 2, 3, 7), (1, 4)),  # of 2 to 6 go two, of the others one
        (0, 1 << 40, (0, 1, 2, 3), (0, 1 << 40)),  # an end beyond all stays
    ],
)
def test_slice(start: int, end: int, small: tuple[int, ...], expected: tuple[int, int]) -> None:
    size = len(range(8)[slice(start, end)])
    text = f"g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[5,{size},1,1] k, int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, {ONES}> {{ a = Conv(x, w)  b = Slice(a, s, e, one)  y = Conv(b, k) }}"
    done = pruned(text, *small)
    start_left = numbers(done, "Slice", 1)[0]
    end_left = numbers(done, "Slice", 2)[0]
    made = shapes(done.model)["w"][0]
    assert (start_left, min(end_left, made)) == (expected[0], min(expected[1], made))
    assert shapes(done.model)["k"][1] == min(expected[1], made) - expected[0]


def test_slice_of_opset_9_has_attributes() -> None:
    done = pruned(
        "g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[5,6,1,1] k> { a = Conv(x, w)  b = Slice<axes=[1], starts=[2], ends=[8]>(a)  y = Conv(b, k) }",
        0, 3, 4, 5, opset=9,
    )  # fmt: skip
    assert (attribute(done, "Slice", "starts"), attribute(done, "Slice", "ends")) == ([1], [4])


def test_a_slice_along_another_axis_stays() -> None:
    text = f"g (float[1,4,4,4] x) => (float[1,5,2,4] y) <float[8,4,1,1] w, float[5,8,1,1] k, int64[1] e = {{3}}, int64[1] two = {{2}}, {ONES}> {{ a = Conv(x, w)  b = Slice(a, one, e, two)  y = Conv(b, k) }}"
    done = pruned(text, 0, 1, 2, 3)
    assert (numbers(done, "Slice", 1), numbers(done, "Slice", 2)) == ([1], [3]) and shapes(done.model)["k"] == (
        5,
        4,
        1,
        1,
    )


def test_split_by_a_number_of_outputs_gets_sizes_where_they_differ() -> None:
    """Of three of three, three and two one each: 2, 2 and 1 stay."""
    text = "g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[5,3,1,1] k, float[5,3,1,1] l, float[5,2,1,1] m> { a = Conv(x, w)  b, c, d = Split<axis=1, num_outputs=3>(a)  e = Conv(b, k)  f = Conv(c, l)  h = Conv(d, m)  i = Add(e, f)  y = Add(h, i) }"
    done = pruned(text, 0, 3, 6, opset=18)
    assert numbers(done, "Split", 1) == [2, 2, 1]
    (split,) = (node for node in done.model.graph.node if node.op_type == "Split")
    assert [item.name for item in split.attribute] == ["axis"]


def test_a_split_whose_parts_stay_equal_stays_as_it_is() -> None:
    text = "g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[5,4,1,1] k, float[5,4,1,1] l> { a = Conv(x, w)  b, c = Split<axis=1>(a)  d = Conv(b, k)  e = Conv(c, l)  y = Add(d, e) }"
    done = pruned(text, 0, 1, 4, 5, opset=13)
    assert [len(node.input) for node in done.model.graph.node if node.op_type == "Split"] == [1]


def test_gather_names_what_is_left_by_its_new_place() -> None:
    text = "g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[5,8,1,1] k, int64[8] i = {6,7,4,5,-6,-5,0,1}> { a = Conv(x, w)  b = Gather<axis=1>(a, i)  y = Conv(b, k) }"
    done = pruned(text, 0, 2, 4, 6)
    assert numbers(done, "Gather", 1) == [3, 2, 1, 0], "7, 5, 3 and 1 are 3, 2, 1 and 0 now"
    assert shapes(done.model)["k"] == (5, 4, 1, 1)


def test_pad_keeps_the_places_around_what_stays() -> None:
    """Eight channels and two zeros on each side, read with eight of another layer and four more: the zeros' own can go."""
    text = f"g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[5,12,1,1] k, int64[4] pads = {{2,0,2,0}}, float v = {{0}}, int64[2] axes = {{1,2}}, {ONES}> {{ a = Conv(x, w)  p = Pad(a, pads, v, axes)  y = Conv(p, k) }}"
    done = pruned(text, 0, 1, 2, 3, opset=18)
    first, _, last, _ = numbers(done, "Pad", 1)
    assert shapes(done.model)["k"][1] == first + shapes(done.model)["w"][0] + last
    assert shapes(done.model)["w"][0] == 4


@pytest.mark.parametrize(
    ("target", "left"),
    [("1,8,16", [1, 4, 16]), ("0,8,-1", [0, 4, -1]), ("0,0,16", [0, 0, 16]), ("1,-1,16", [1, -1, 16])],
)
def test_reshape_names_what_stays_unless_it_copies_or_works_it_out(target: str, left: list[int]) -> None:
    text = f"g (float[1,4,4,4] x) => (float[1,16,3] y) <float[8,4,1,1] w, int64[3] to = {{{target}}}, float[8,3] k> {{ a = Conv(x, w)  b = Reshape(a, to)  t = Transpose<perm=[0,2,1]>(b)  y = MatMul(t, k) }}"
    done = pruned(text, 0, 1, 2, 3)
    assert numbers(done, "Reshape", 1) == left and shapes(done.model)["k"] == (4, 3)


def test_expand_counts_its_axes_from_the_end() -> None:
    text = "g (float[1,4,4,4] x) => (float[2,5,4,4] y) <float[8,4,1,1] w, int64[4] to = {2,8,4,4}, float[5,8,1,1] k> { a = Conv(x, w)  b = Expand(a, to)  y = Conv(b, k) }"
    done = pruned(text, 0, 1, 2, 3)
    assert numbers(done, "Expand", 1) == [2, 4, 4, 4]


def test_a_resize_by_scales_stays() -> None:
    text = 'g (float[1,4,4,4] x) => (float[1,5,8,8] y) <float[8,4,1,1] w, float[4] by = {1,1,2,2}, float[5,8,1,1] k> { a = Conv(x, w)  b = Resize<mode="nearest">(a, , by)  y = Conv(b, k) }'
    done = pruned(text, 0, 1, 2, 3)
    assert numbers(done, "Resize", 2) == [1, 1, 2, 2] and shapes(done.model)["k"] == (5, 4, 1, 1)


@pytest.mark.parametrize(
    ("op", "weight", "kept"),
    [("Conv", "8,1,3,3", (4, 1, 3, 3)), ("Conv", "16,1,3,3", (8, 1, 3, 3)), ("ConvTranspose", "8,1,3,3", (4, 1, 3, 3))],
)
def test_groups_of_a_depthwise_convolution_follow(op: str, weight: str, kept: tuple[int, ...]) -> None:
    read = 16 if weight.startswith("16") else 8
    text = f"g (float[1,4,4,4] x) => (float[1,5,4,4] y) <float[8,4,1,1] w, float[{weight}] d, float[5,{read},1,1] k> {{ a = Conv(x, w)  b = {op}<group=8, pads=[1,1,1,1]>(a, d)  y = Conv(b, k) }}"
    done = pruned(text, 0, 1, 2, 3)
    (node,) = (node for node in done.model.graph.node if "d" in node.input)
    assert next(item.i for item in node.attribute if item.name == "group") == 4 and shapes(done.model)["d"] == kept


@pytest.mark.parametrize(
    ("nodes", "constants", "why"),
    [
        (
            "b = Slice(a, zero, eight, one, two)",
            "int64[1] eight = {8}, int64[1] two = {2}, float[5,4,1,1] k",
            "takes every n-th of them",
        ),
        (
            "s = Shape(x)  i = Slice(s, zero, one)  b = Gather<axis=1>(a, i)",
            "float[5,1,1,1] k",
            "Gather b needs all of them",
        ),
        ("b = LRN<size=3>(a)", "float[5,8,1,1] k", "LRN"),
        ("b = CumSum(a, o)", "int64 o = {1}, float[5,8,1,1] k", "CumSum"),
    ],
)
def test_operators_that_need_all_of_them_keep_them(nodes: str, constants: str, why: str) -> None:
    from qdqtool.errors import QdqError

    text = f"g (float[N,4,4,4] x) => (float[N,5,4,4] y) <float[8,4,1,1] w, {constants}, {ONES}> {{ a = Conv(x, w)  {nodes}  y = Conv(b, k) }}"
    with pytest.raises(QdqError, match=rf"no channel .*{why}"):
        halved(model_of(text))
