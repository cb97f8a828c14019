# SPDX-License-Identifier: Apache-2.0
"""Channels out of models: weights, scales, sizes and indices, in every way in which graphs join channels."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.pruning.check import INSIDE, TOLERANCE
from tests.graphs import model_of
from tests.pruning.nets import ATTENTION, CASES, case, halved, shapes, value

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.mark.parametrize("name", CASES)
def test_half_of_each_group_goes_and_the_rest_computes_the_same(name: str) -> None:
    model = case(name)
    before = model.SerializeToString()
    done = halved(model)
    assert done.difference is not None
    assert done.difference.outputs <= TOLERANCE and done.difference.inside <= INSIDE
    found = shapes(done.model)
    assert {key: found[key] for key in CASES[name][4]} == CASES[name][4]
    assert done.parameters[1] < done.parameters[0] and done.multiply_adds[1] < done.multiply_adds[0]
    assert model.SerializeToString() == before, "the original stays"
    onnx.checker.check_model(done.model, full_check=True)


@pytest.mark.parametrize("name", [name for name in CASES if "no rectangle" not in name])
def test_names_and_order_of_operators_stay(name: str) -> None:
    model = case(name)
    pruned = halved(model).model
    assert [node.name for node in pruned.graph.node] == [node.name for node in model.graph.node]
    assert [node.op_type for node in pruned.graph.node] == [node.op_type for node in model.graph.node]
    assert list(pruned.graph.input) == list(model.graph.input) and list(pruned.graph.output) == list(model.graph.output)


def test_whole_heads_go_and_hidden_channels_of_the_mlp() -> None:
    done = halved(model_of(ATTENTION))
    assert done.difference is not None and done.difference.small
    found = shapes(done.model)
    assert {name: found[name] for name in ("wq", "wk", "wv", "wo", "bq")} == {
        "wq": (8, 4), "wk": (8, 4), "wv": (8, 4), "wo": (4, 8), "bq": (4,),
    }  # fmt: skip
    assert (found["up"], found["ub"], found["down"]) == ((8, 8), (8,), (8, 8))
    assert value(done.model, "heads").tolist() == [0, 5, 1, 4] and value(done.model, "back").tolist() == [0, 5, 4]
    assert (found["g1"], found["b1"]) == ((8,), (8,)), "what is normalized stays"


def test_which_indices_stay_is_what_the_weights_say() -> None:
    model = case("chain with bias")
    weight = value(model, "w").copy()
    weight[[1, 2, 5, 6]] *= 0.01
    model.graph.initializer.remove(next(one for one in model.graph.initializer if one.name == "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    pruned = halved(model).model
    kept = [0, 3, 4, 7]
    assert (value(pruned, "w") == weight[kept]).all()
    assert (value(pruned, "b") == value(model, "b")[kept]).all()
    assert (value(pruned, "u") == value(model, "u")[:, kept]).all()


@pytest.mark.parametrize("name", ["depthwise", "depthwise with a multiplier"])
def test_a_depthwise_convolution_has_as_many_groups_as_channels(name: str) -> None:
    attributes = [item for node in halved(case(name)).model.graph.node for item in node.attribute]
    assert [item.i for item in attributes if item.name == "group"] == [4]


def test_a_constant_that_two_groups_read_is_given_to_each() -> None:
    pruned = halved(case("one constant of two groups")).model
    read = [node.input[1] for node in pruned.graph.node if node.op_type == "Mul"]
    assert len(set(read)) == 2 and all(shapes(pruned)[name] == (4, 1, 1) for name in read)


@pytest.mark.parametrize("name", CASES)
def test_declared_shapes_follow_or_go(name: str) -> None:
    declared = halved(onnx.shape_inference.infer_shapes(case(name))).model
    bare = onnx.ModelProto.FromString(declared.SerializeToString())
    del bare.graph.value_info[:]
    inferred = {one.name: one for one in onnx.shape_inference.infer_shapes(bare, strict_mode=True).graph.value_info}
    assert declared.graph.value_info
    assert [one for one in declared.graph.value_info if one.name in inferred and one != inferred[one.name]] == []


def test_old_files_list_new_initializers_as_inputs() -> None:
    model = case("one constant of two groups")
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    pruned = halved(model).model
    assert {one.name for one in pruned.graph.initializer} <= {one.name for one in pruned.graph.input}
    onnx.checker.check_model(pruned)
