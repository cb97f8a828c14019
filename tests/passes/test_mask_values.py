# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Numbers that mask attention become -30000: the same Softmax where a row has an unmasked key."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.linting.lint_context import LintContext
from qdqtool.passes.mask_values import find_mask_values
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import model_of
from tests.linting.quantized import findings_of
from tests.ort_session import PLAIN, session_of

MINUS = np.array([-np.inf, -3.4028235e38, -1e9], np.float32)
CAUSAL = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
# Way of the mask -> text from the scores s [2,4,4] and keep [2,4,4] (bool) to the weights y; its constant is k.
WAYS = {
    "chosen": "m = Where(keep, s, k) y = Softmax<axis=-1>(m)",
    "scaled": "t = Mul(s, half) m = Where(keep, t, k) y = Softmax<axis=-1>(m)",
    "added": "n = Cast<to=1>(keep) o = Sub(one, n) a = Mul(o, k) m = Add(s, a) y = Softmax<axis=-1>(m)",
    "made, then added": "z = Where(keep, zero, k) m = Add(s, z) e = Reshape(m, shape) y = Softmax<axis=-1>(e)",
    "bounded": "z = Where(keep, zero, k) m = Add(s, z) b = Max(m, k) y = Softmax<axis=-1>(b)",
    "twice": "m = Where(keep, s, k) y1 = Softmax<axis=-1>(m) n = Where(keep, y1, k) y = Softmax<axis=-1>(n)",
}
# What is no mask, or not of a Softmax alone.
OTHERS = {
    "read elsewhere": "m = Where(keep, s, k) w = Softmax<axis=-1>(m) r = Add(s, k) q = Add(r, w) y = Relu(q)",
    "no Softmax": "m = Where(keep, s, k) y = Relu(m)",
    "LogSoftmax": "m = Where(keep, s, k) y = LogSoftmax<axis=-1>(m)",
    "a factor of scores": "m = Mul(s, k) y = Softmax<axis=-1>(m)",
    "the scores are an output": "y = Where(keep, s, k) w = Softmax<axis=-1>(y)",
}


def net(body: str, mask: np.ndarray | np.float32) -> onnx.ModelProto:
    constants = {
        "half": "float half = {0.5}",
        "one": "float one = {1}",
        "zero": "float zero = {0}",
        "shape": "int64[3] shape = {2,4,4}",
    }
    listed = ", ".join(text for name, text in constants.items() if f"{name}," in body or f"{name})" in body)
    model = model_of(f"net (float[2,4,4] s, bool[2,4,4] keep) => (float[2,4,4] y) <{listed}> {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(mask), "k"))
    return model


def outputs_of(model: onnx.ModelProto) -> np.ndarray:
    values = np.random.default_rng(0)
    keep = values.random((2, 4, 4)) < 0.5
    keep[..., 0] = True
    return np.asarray(
        session_of(model, PLAIN).run(None, {"s": values.normal(0, 9, (2, 4, 4)).astype(np.float32), "keep": keep})[0]
    )


@pytest.mark.parametrize(
    ("way", "number"),
    [(way, number) for way in WAYS for number in MINUS if not (way == "added" and np.isinf(number))],  # 0 * inf is NaN
    ids=str,
)
def test_the_softmax_is_the_same_where_a_row_has_an_unmasked_key(way: str, number: np.float32) -> None:
    model = net(WAYS[way], number)
    (found,) = findings_of(model, "Q061")
    assert (found.where, found.fixable) == ("k", True)
    result = lint(model, LintOptions(fix=("Q061",)))
    assert numpy_helper.to_array(next(t for t in result.model.graph.initializer if t.name == "k")) == -30000
    assert outputs_of(result.model).tobytes() == outputs_of(model).tobytes()
    assert "Q061" not in {one.code for one in result.findings}


def test_a_causal_mask_keeps_its_zeros() -> None:
    model = net("m = Add(s, k) y = Softmax<axis=-1>(m)", CAUSAL)
    result = lint(model, LintOptions(fix=("Q061",)))
    written = numpy_helper.to_array(result.model.graph.initializer[0])
    assert np.array_equal(written, np.triu(np.full((4, 4), -30000, np.float32), 1))
    assert outputs_of(result.model).tobytes() == outputs_of(model).tobytes()


def test_a_mask_that_is_filled_and_cut_is_written_where_it_is_filled() -> None:
    model = net(
        "f = ConstantOfShape<value = float[1] {-inf}>(shape2) u = Trilu<upper=1>(f, diagonal) m = Add(s, u) y = Softmax<axis=-1>(m)",
        np.float32(0),
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([4, 4]), "shape2"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "diagonal"))
    result = lint(model, LintOptions(fix=("Q061",)))
    assert numpy_helper.to_array(result.model.graph.node[0].attribute[0].t) == -30000
    assert outputs_of(result.model).tobytes() == outputs_of(model).tobytes()


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_mask_of_a_softmax_alone_stays(other: str) -> None:
    assert not list(find_mask_values(GraphView(net(OTHERS[other], np.float32(-np.inf)).graph)))


@pytest.mark.parametrize("number", [-30000.0, -10000.0, 0.0])
def test_a_number_that_fp16_holds_stays(number: float) -> None:
    assert not list(find_mask_values(GraphView(net(WAYS["chosen"], np.float32(number)).graph)))


def test_it_is_repaired_by_its_code_alone() -> None:
    result = lint(net(WAYS["chosen"], np.float32(-np.inf)), LintOptions(fix=("all",)))
    assert "Q061" in {one.code for one in result.findings}


def test_a_typed_model_keeps_its_types() -> None:
    model = net(WAYS["chosen"], np.float16(-np.inf))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    result = lint(model, LintOptions(fix=("Q061",)))
    assert (
        LintContext(Model(model)).has_halves and result.model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    )
    assert numpy_helper.to_array(result.model.graph.initializer[0]) == -30000
