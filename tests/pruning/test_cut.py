# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What is left of tensors, weights and multiply-adds when classes go, by hand."""

from __future__ import annotations

import pytest

from qdqtool.pruning.cut import Cut
from tests.graphs import model_of
from tests.pruning.nets import CASES, case, channels_of, halved, shapes

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

NET = "g (float[1,4,8,8] x) => (float[1,6,8,8] y) <float[8,4,3,3] w, float[8] b, float[6,8,1,1] u> { a = Conv<pads=[1,1,1,1]>(x, w, b)  r = Relu(a)  y = Conv(r, u) }"


def cut_of(text: str, *places: int) -> Cut:
    """Without some classes of the first group."""
    channels = channels_of(model_of(text))
    return Cut(channels, channels.groups[0].classes[list(places)].tolist())


def test_tensors_lose_the_places_of_their_classes() -> None:
    cut = cut_of(NET, 0, 3, 5)
    for name in ("a", "r"):
        assert {axis: kept.tolist() for axis, kept in cut.kept(name).items()} == {1: [1, 2, 4, 6, 7]}
        assert cut.shape(name) == (1, 5, 8, 8)
    assert cut.kept("x") == {} == cut.kept("y") and cut.shape("y") == (1, 6, 8, 8)


def test_weights_lose_theirs() -> None:
    cut = cut_of(NET, 0, 3, 5)
    found = {(axis.use.node.key, axis.use.index, axis.axis): cut.weight_shape(axis) for axis in cut.channels.axes}
    assert found == {
        ("a", 1, 0): (5, 4, 3, 3),
        ("a", 1, 1): (5, 4, 3, 3),
        ("a", 2, 0): (5,),
        ("y", 1, 0): (6, 5, 1, 1),
        ("y", 1, 1): (6, 5, 1, 1),
    }


def test_multiply_adds_by_operator() -> None:
    whole, cut = cut_of(NET), cut_of(NET, 0, 3, 5)
    assert whole.operator_macs() == {"a": 64 * 8 * 4 * 9, "y": 64 * 6 * 8}
    assert cut.operator_macs() == {"a": 64 * 5 * 4 * 9, "y": 64 * 6 * 5}
    assert cut.multiply_adds() == 64 * (180 + 30)


def test_a_name_behind_a_pair_is_that_of_the_tensor() -> None:
    cut = Cut(channels_of(case("quantized")), ())
    assert cut.shape("d") == cut.shape("a")


@pytest.mark.parametrize("name", CASES)
def test_what_is_foretold_of_weights_is_what_the_edit_makes(name: str) -> None:
    """Of each constant that an operator reads as it is stored."""
    channels = channels_of(case(name))
    done = halved(case(name))
    kept = {group.name: group.kept for group in done.groups}
    assert all(0 < kept[group.name] <= len(group.classes) for group in channels.groups)
    made = shapes(done.model)
    assert done.parameters[1] <= done.parameters[0] and done.multiply_adds[1] <= done.multiply_adds[0]
    assert all(0 not in shape for shape in made.values())
