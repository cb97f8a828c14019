# SPDX-License-Identifier: Apache-2.0
"""Blocks together are the form: chained they compute it, each parameter is trained once, float tensors pass between."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.blocks.block_cuts import Block, cut_blocks
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.training_graph import make_form
from tests.graphs import model_of
from tests.training.blocks.nets import DATA, form_of, quantized, seen_in

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def blocks_of(operators: int) -> list[Block]:
    form = form_of()
    return cut_blocks(form.proto, form.parameters, seen_in(form), operators)


@pytest.mark.parametrize(("operators", "count"), [(1, 4), (2, 2), (4, 1), (9, 1)])
def test_blocks_in_turn_compute_what_the_form_computes(operators: int, count: int) -> None:
    form, blocks = form_of(), blocks_of(operators)
    assert len(blocks) == count
    held = {"x": DATA[:1]}
    for block in blocks:
        assert set(block.takes) <= held.keys()
        held.update(Executor(Model(block.proto)).run({name: held[name] for name in block.takes}))
    assert np.array_equal(held["y"], Executor(Model(form.proto)).run({"x": DATA[:1]})["y"])


def test_a_sequence_stays_in_its_block() -> None:
    form = form_of()
    seen = seen_in(form)
    every = cut_blocks(form.proto, form.parameters, seen, 1)
    passing = every[1].gives[0]
    rest = {name: tensor for name, tensor in seen.items() if name != passing}  # as a run sees a sequence: not at all
    blocks = cut_blocks(form.proto, form.parameters, rest, 1)
    assert passing not in {name for block in blocks for name in (*block.takes, *block.gives)}


def test_what_passes_between_blocks_has_a_twin_in_the_float_network() -> None:
    blocks = blocks_of(1)
    made = {name for node in float_twin(form_of().proto).graph.node for name in node.output}
    assert all(name in made for block in blocks for name in block.gives)
    exact = {"x": DATA[:1]}
    for block in blocks:
        twin = float_twin(block.proto)
        exact.update(Executor(Model(twin)).run({name: exact[name] for name in block.takes}))
    plain = Executor(Model(float_twin(form_of().proto))).run({"x": DATA[:1]})
    assert np.allclose(exact["y"], plain["y"], rtol=1e-5, atol=1e-5)


def test_each_weight_is_trained_in_one_block_and_a_scale_that_two_read_in_none() -> None:
    blocks = blocks_of(1)
    trained = [name for block in blocks for name in block.parameters]
    assert len(trained) == len(set(trained))
    assert {"w1", "b1", "w2", "b2", "w3", "b3", "w4"} <= set(trained)
    readers = [{name for node in block.proto.graph.node for name in node.input} for block in blocks]
    for name in form_of().scales:
        assert (name in trained) == (sum(name in one for one in readers) == 1)


def test_a_pair_stands_in_each_block_that_reads_it() -> None:
    blocks = blocks_of(1)
    pairs = [sum(node.domain == PAIR_DOMAIN for node in block.proto.graph.node) for block in blocks]
    form = sum(node.domain == PAIR_DOMAIN for node in form_of().proto.graph.node)
    assert sum(pairs) >= form and all(count >= 2 for count in pairs)


def test_inputs_and_outputs_have_the_shapes_of_a_batch() -> None:
    for block in blocks_of(2):
        onnx.checker.check_model(block.proto)
        for value in (*block.proto.graph.input, *block.proto.graph.output):
            assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1, 4, 8, 8]


def test_a_network_without_weighted_operators_is_one_block() -> None:
    form = form_of()
    (block,) = cut_blocks(float_twin(form.proto), (), seen_in(form), 1)
    assert block.takes == ("x",) and block.gives == ("y",) and block.parameters == ()


def test_a_weight_read_by_two_blocks_is_trained_in_none() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4,4,1,1] v>
    { a = Conv(x, w)  b = Relu(a)  c = Conv(b, v)  d = Relu(c)  e = Conv(d, w)  f = Relu(e)  y = Conv(f, v) }"""
    form = make_form(Model(model_of(text, 17)))
    blocks = cut_blocks(form.proto, form.weights, seen_in(form), 1)
    shared = [
        name for name in form.weights if sum(name in {t.name for t in b.proto.graph.initializer} for b in blocks) > 1
    ]
    assert shared and not any(name in block.parameters for block in blocks for name in shared)


def test_the_form_is_left_as_it_is() -> None:
    form = form_of()
    before = form.proto.SerializeToString()
    cut_blocks(form.proto, form.parameters, seen_in(form), 1)
    assert form.proto.SerializeToString() == before
    assert quantized().graph.node
