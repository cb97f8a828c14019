# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Constants that are cut: where they are stored, whatever stands before who reads them, and apart where readers differ."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.pruning.constant_edits import ConstantEdits, cut
from tests.graphs import model_of
from tests.pruning.nets import shapes, value, with_values

PLACES = np.array([0, 2])


class Edited:
    """A model with the collected edits of its constants."""

    def __init__(self, text: str, **arrays: np.ndarray) -> None:
        self.model = with_values(model_of(text), **arrays)
        self.view = GraphView(self.model.graph)
        self.edits = ConstantEdits(self.view)

    def node(self, output: str) -> Node:
        return self.view.producers[output]

    def use(self, output: str, index: int = 1) -> Use:
        return Use(self.node(output), index)

    def applied(self) -> onnx.ModelProto:
        editor = Editor(self.view)
        self.edits.apply(editor)
        editor.commit()
        return self.model


def test_one_reader_cuts_in_place() -> None:
    edited = Edited("g (float[3] x) => (float[3] y) <float[3] c> { y = Mul(x, c) }", c=np.array([1, 2, 3]))
    edited.edits.keep(edited.use("y"), {0: PLACES})
    assert value(edited.applied(), "c").tolist() == [1, 3] and edited.edits.passed == {"c"}


def test_readers_that_want_the_same_share_it() -> None:
    edited = Edited("g (float[3] x) => (float[3] y) <float[3] c> { z = Mul(x, c)  y = Add(z, c) }")
    for name in "zy":
        edited.edits.keep(edited.use(name), {0: PLACES})
    assert shapes(edited.applied()) == {"c": (2,)}


def test_a_reader_that_wants_all_of_it_keeps_it() -> None:
    edited = Edited("g (float[3] x) => (float[3] y) <float[3] c> { z = Mul(x, c)  y = Add(z, c) }")
    edited.edits.keep(edited.use("z"), {0: PLACES})
    made = edited.applied()
    assert shapes(made) == {"c": (3,), "c_pruned": (2,)}
    assert [list(node.input) for node in made.graph.node] == [["x", "c_pruned"], ["z", "c"]]


def test_readers_that_want_different_places_get_one_each() -> None:
    edited = Edited(
        "g (float[3] x) => (float[3] y) <float[3] c> { z = Mul(x, c)  y = Add(z, c) }", c=np.array([1, 2, 3])
    )
    edited.edits.keep(edited.use("z"), {0: PLACES})
    edited.edits.keep(edited.use("y"), {0: np.array([1])})
    made = edited.applied()
    assert value(made, made.graph.node[0].input[1]).tolist() == [1, 3]
    assert value(made, made.graph.node[1].input[1]).tolist() == [2]


def test_a_constant_that_the_graph_gives_out_stays() -> None:
    edited = Edited("g (float[3] x) => (float[3] y, float[3] c) <float[3] c> { y = Mul(x, c) }")
    edited.edits.keep(edited.use("y"), {0: PLACES})
    assert shapes(edited.applied())["c"] == (3,)


def test_both_axes_at_once() -> None:
    edited = Edited(
        "g (float[2,3] x) => (float[2,4] y) <float[3,4] c> { y = MatMul(x, c) }", c=np.arange(12).reshape(3, 4)
    )
    edited.edits.keep(edited.use("y"), {0: PLACES})
    edited.edits.keep(edited.use("y"), {1: np.array([1, 3])})
    assert value(edited.applied(), "c").tolist() == [[1, 3], [9, 11]]


def test_one_reader_that_wants_two_things_of_one_axis_is_refused() -> None:
    edited = Edited("g (float[3] x) => (float[3] y) <float[3] c> { y = Mul(x, c) }")
    edited.edits.keep(edited.use("y"), {0: PLACES})
    with pytest.raises(QdqError, match="c: is read through y with different channels"):
        edited.edits.keep(edited.use("y"), {0: np.array([1])})


@pytest.mark.parametrize(
    ("before", "kept", "expected"),
    [
        ("k = Transpose<perm=[1,0]>(c)", {0: PLACES}, (4, 2)),
        ("k = Transpose<perm=[1,0]>(c)", {1: PLACES}, (2, 3)),
        ("k = Cast<to=1>(c)", {1: PLACES}, (4, 2)),
        ("k = Identity(c)", {0: PLACES}, (2, 3)),
    ],
)
def test_what_stands_before_a_reader_is_seen_through(
    before: str, kept: dict[int, np.ndarray], expected: tuple[int, int]
) -> None:
    edited = Edited(f"g (float[1,1] x) => (float[a,b] y) <float[4,3] c> {{ {before}  y = Mul(x, k) }}")
    edited.edits.keep(edited.use("y"), kept)
    assert shapes(edited.applied()) == {"c": expected}


def test_scales_of_a_pair_are_cut_with_their_channels() -> None:
    edited = Edited(
        "g (float[1,1] x) => (float[3,4] y) <float[3,4] c, float[3] s, int8[3] z> { q = QuantizeLinear<axis=0>(c, s, z)  d = DequantizeLinear<axis=0>(q, s, z)  y = Mul(x, d) }",
        s=np.array([0.1, 0.2, 0.3]),
    )
    edited.edits.keep(edited.use("y"), {0: PLACES})
    made = edited.applied()
    assert shapes(made) == {"c": (2, 4), "s": (2,), "z": (2,)}
    assert value(made, "s") == pytest.approx([0.1, 0.3])


def test_one_scale_for_all_stays() -> None:
    edited = Edited(
        "g (float[1,1] x) => (float[3,4] y) <float[3,4] c, float s, int8 z> { q = QuantizeLinear(c, s, z)  d = DequantizeLinear(q, s, z)  y = Mul(x, d) }"
    )
    edited.edits.keep(edited.use("y"), {0: PLACES})
    assert shapes(edited.applied()) == {"c": (2, 4), "s": (), "z": ()}


def test_a_reshape_before_a_reader_gets_another_target() -> None:
    edited = Edited(
        "g (float[1,1] x) => (float[6,4] y) <float[3,2,4] c, int64[2] to = {6,4}> { k = Reshape(c, to)  y = Mul(x, k) }"
    )
    edited.edits.keep(edited.use("y"), {0: np.array([0, 1, 4, 5])})
    made = edited.applied()
    assert shapes(made)["c"] == (2, 2, 4) and value(made, "to").tolist() == [4, 4]


def test_what_no_rectangle_is_left_of_becomes_a_constant_of_its_own() -> None:
    edited = Edited(
        "g (float[1,1] x) => (float[6,4] y) <float[3,2,4] c, int64[2] to = {6,4}> { k = Reshape(c, to)  y = Mul(x, k) }"
    )
    edited.edits.keep(edited.use("y"), {0: np.array([0, 3])})
    made = edited.applied()
    assert shapes(made)["c"] == (3, 2, 4) and shapes(made)["k_pruned"] == (2, 4)


def test_a_constant_node_is_cut_where_it_is() -> None:
    edited = Edited("g (float[3] x) => (float[3] y) { c = Constant<value = float[3] {1,2,3}>()  y = Mul(x, c) }")
    edited.edits.keep(edited.use("y"), {0: PLACES})
    assert onnx.numpy_helper.to_array(edited.applied().graph.node[0].attribute[0].t).tolist() == [1, 3]


def test_a_filled_tensor_gets_another_size() -> None:
    edited = Edited("g (float[3,2] x) => (float[3,2] y) <int64[2] s = {3,2}> { c = ConstantOfShape(s)  y = Mul(x, c) }")
    edited.edits.keep(edited.use("y"), {0: PLACES})
    assert value(edited.applied(), "s").tolist() == [2, 2]


def test_numbers_that_are_the_same_are_no_edit() -> None:
    edited = Edited("g (float[4] x) => (float[2,2] y) <int64[2] s = {2,2}> { y = Reshape(x, s) }")
    before = edited.model.SerializeToString()
    edited.edits.set_numbers(edited.use("y"), [2, 2])
    assert edited.applied().SerializeToString() == before


def test_numbers_that_the_graph_computes_become_a_constant() -> None:
    edited = Edited("g (float[4] x) => (float[a,b] y) { s = Shape(x)  y = Reshape(x, s) }")
    edited.edits.set_numbers(edited.use("y"), [2, 2], [4])
    made = edited.applied()
    assert value(made, made.graph.node[1].input[1]).tolist() == [2, 2]
    assert edited.edits.passed == set()


def test_a_scalar_index_stays_a_scalar() -> None:
    edited = Edited("g (float[4] x) => (float y) <int64 i = {3}> { y = Gather(x, i) }")
    edited.edits.set_numbers(edited.use("y"), [1])
    assert value(edited.applied(), "i").shape == () and value(edited.model, "i").item() == 1


def test_an_array_loses_places_of_several_axes() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    assert cut(array, {1: PLACES, 2: np.array([3])}).tolist() == [[[3], [11]], [[15], [23]]]
    assert cut(array, {}) is array
