# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Types that were put in come out again: the same nodes and names, constants rounded at most."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.graph.edit import set_metadata
from qdqtool.graph.model import Model
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.precision_record import PRECISION, stored_precision
from qdqtool.precision.untype import fp32_masters, take_out_types, types_over_pairs
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed import BF16, FP16, FP32, QDQ_CONV, constants_of, nodes_of, typed

SHARED = "g (float[2] x) => (float[2] y) <float[2] c = {0.1, 0.25}> { a = Add(x, c) y = Mul(a, c) }"
GIVEN_OUT = "g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {0.1, 0.25}> { y = Add(x, c) }"
BODIES = """g (float[2] x, bool k) => (float[2] y) <float[2] c = {0.1, 0.2}> { a = Add(x, c)
 b = If (k) <then_branch = t () => (float[2] o) { o = Add(a, c) }, else_branch = e () => (float[2] p) { p = Neg(a) }> y = Relu(b) }"""


def halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 constants that FP16 and BF16 hold exactly."""
    for tensor in model.graph.initializer:
        if tensor.data_type == FP32:
            value = numpy_helper.to_array(tensor)
            coarse = (np.frexp(value)[0] * 16).round() / 16 * np.exp2(np.frexp(value)[1])
            tensor.CopyFrom(numpy_helper.from_array(coarse.astype(np.float32), tensor.name))
    return model


def back(model: onnx.ModelProto) -> onnx.ModelProto:
    record = stored_precision(model)
    assert record is not None
    return take_out_types(Model(model), record).proto


@pytest.mark.parametrize("text", [SMALL_NET, QDQ_CONV, SHARED, GIVEN_OUT, BODIES])
@pytest.mark.parametrize("rest", [FP16, BF16])
@pytest.mark.parametrize("half_io", [False, True])
@pytest.mark.parametrize("float32", [(), ("a",), ("y",), ("c1", "r2")])
def test_types_in_and_out_are_the_same_model(text: str, rest: int, half_io: bool, float32: tuple[str, ...]) -> None:
    model = halves(model_of(text))
    made = back(typed(model, *float32, rest=rest, half_io=half_io))
    assert made.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_constants_stay_rounded_and_those_that_were_stored_twice_are_exact() -> None:
    model = model_of(SHARED)
    rounded = numpy_helper.to_array(back(typed(model)).graph.initializer[0])
    assert rounded.tolist() == np.float16([0.1, 0.25]).astype(np.float32).tolist()
    exact = back(typed(model, "y"))
    assert constants_of(exact) == {"c": FP32}
    assert exact.graph.initializer[0] == model.graph.initializer[0]


def test_the_fp32_copy_of_a_constant_that_is_given_out_in_16_bits_is_the_one_that_counts() -> None:
    text = GIVEN_OUT.replace("y = Add", "a = Exp(c) b = Add(a, x) y = Add")
    model = model_of(text)
    made = typed(model, "a", half_io=True)
    assert constants_of(made) == {"c": FP16, "c_fp32": FP32}
    assert back(made).graph.initializer[0] == model.graph.initializer[0]


def test_types_that_came_after_the_pairs_are_known_by_the_casts_beside_them() -> None:
    made = typed(QDQ_CONV)
    assert types_over_pairs(made) == stored_precision(made)
    assert types_over_pairs(model_of(QDQ_CONV)) is None
    for node in made.graph.node:
        if node.op_type == "Cast":
            del node.metadata_props[:]
    assert types_over_pairs(made) is None


def test_the_record_is_gone_and_other_metadata_stay() -> None:
    model = model_of(SMALL_NET)
    set_metadata(model, "scales", "{}")
    made = back(typed(model))
    assert [entry.key for entry in made.metadata_props] == ["qdqtool.scales"]
    assert stored_precision(made) is None


# ---------------------------------------------------------------------- masters of a training


def test_a_model_in_fp32_is_its_own_master() -> None:
    model = Model(model_of(QDQ_CONV))
    assert fp32_masters(model) == (model, None)
    assert fp32_masters(model)[0] is model


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("rest", [FP16, BF16])
def test_types_come_from_the_record_or_from_the_file(rest: int, recorded: bool) -> None:
    text = QDQ_CONV.replace("y = Relu(c)", "e = Exp(c) y = Relu(e)")
    made = typed(text, "e", rest=rest)
    if not recorded:
        for entry in list(made.metadata_props):
            if entry.key.endswith(PRECISION):
                made.metadata_props.remove(entry)
    model, types = fp32_masters(Model(made))
    master = model.proto
    assert nodes_of(master) == nodes_of(model_of(text))
    assert types == TypeAssignment(rest, frozenset({"e"}))
    assert nodes_of(typed(master, *types.float32, rest=types.rest)) == nodes_of(made)


def test_weights_that_old_files_list_as_inputs_are_no_inputs_in_half_precision() -> None:
    """Inputs stay FP32 where only the listed weights are halves."""
    model = typed(model_of(SMALL_NET, 13), rest=FP16, half_io=False)
    del model.metadata_props[:]
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    _, types = fp32_masters(Model(model))
    assert types is not None and not types.half_io
