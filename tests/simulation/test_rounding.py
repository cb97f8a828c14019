# SPDX-License-Identifier: Apache-2.0
"""Each way of rounding, at every half-way value and one float32 step beside it, in numpy and in the graph."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.formats import INT8
from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.simulation.rounding import Rounding, RoundingNodes, fake_quantize, fake_quantize_weight, rounded

Float32 = npt.NDArray[np.float32]
WAYS: tuple[Rounding, ...] = ("even", "up", "away")


def halves() -> Float32:
    """-140.5 to 140.5 in steps of a half, and their float32 neighbors."""
    middle = np.arange(-281, 282, dtype=np.float32) / np.float32(2)
    inf = np.float32(np.inf)
    tiny = np.array([np.finfo(np.float32).tiny, 1e-45, 0.0, -0.0], np.float32)
    return np.concatenate([middle, np.nextafter(middle, inf), np.nextafter(middle, -inf), tiny, -tiny])


def exactly(value: float, how: Rounding) -> int:
    """The same in whole numbers and fractions, where nothing is lost."""
    exact, half = Fraction(value), Fraction(1, 2)
    if how == "up":
        return math.floor(exact + half)
    if how == "away":
        return math.floor(abs(exact) + half) * (1 if exact >= 0 else -1)
    return round(exact)  # Python rounds fractions half to even


@pytest.mark.parametrize("how", WAYS)
def test_at_half_way_values_and_beside_them(how: Rounding) -> None:
    values = halves()
    got = rounded(values, how)
    assert got.dtype == np.float32
    assert got.tolist() == [exactly(float(value), how) for value in values]


def test_what_sets_the_three_ways_apart() -> None:
    values = np.array([0.5, 1.5, -0.5, -1.5, 2.5, -2.5], np.float32)
    assert rounded(values, "even").tolist() == [0, 2, 0, -2, 2, -2]
    assert rounded(values, "up").tolist() == [1, 2, 0, -1, 3, -2]
    assert rounded(values, "away").tolist() == [1, 2, -1, -2, 3, -3]


def test_adding_one_half_would_be_wrong() -> None:
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert np.floor(below + np.float32(0.5)) == 1
    assert [rounded(np.array([below]), how).tolist() for how in WAYS] == [[0], [0], [0]]


@pytest.mark.filterwarnings("error")
def test_a_quotient_beyond_float32_saturates_without_a_warning() -> None:
    made = fake_quantize(np.array([3e38, -3e38], np.float32), np.float32(1e-3), "even", (-128, 127))
    assert made.tolist() == [np.float32(127) * np.float32(1e-3), np.float32(-128) * np.float32(1e-3)]


def test_fake_quantize_saturates_and_scales() -> None:
    scale = np.float32(0.25)
    values = np.array([-1000, -32, -31.75, 0.125, 31.75, 1000], np.float32)
    assert fake_quantize(values, scale, "even", INT8.codes).tolist() == [-32, -32, -31.75, 0, 31.75, 31.75]
    assert fake_quantize(values, scale, "up", INT8.weight_codes).tolist() == [
        -31.75,
        -31.75,
        -31.75,
        0.25,
        31.75,
        31.75,
    ]
    assert fake_quantize(values, scale, "even", INT8.codes).dtype == np.float32


def in_graph(values: Float32, scale: float, how: Rounding, codes: tuple[int, int], opset: int) -> Float32:
    """The same by nodes, as the reference executor runs them."""
    pytest.importorskip("onnxruntime")
    from qdqtool.runtime.executor import Executor

    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N] x) => (float[N] y) {{ y = Identity(x) }}'
    )
    view = GraphView(model.graph)
    editor = Editor(view)
    maker = view.producers["y"]
    raw = editor.unique_name("y_raw")
    editor.rename_output(maker, 0, raw)
    RoundingNodes(editor, how, codes).write(raw, "y", np.float32(scale), beside=maker)
    editor.commit()
    onnx.checker.check_model(model, full_check=True)
    result: Float32 = Executor(Model(model)).run({"x": values})["y"]
    return result


@pytest.mark.parametrize("opset", [8, 13, 21])
@pytest.mark.parametrize("how", ["even", "away"])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0312])
def test_the_nodes_do_the_same_to_the_bit(how: Rounding, scale: float, opset: int) -> None:
    values = halves() * np.float32(scale)
    want = fake_quantize(values, np.float32(scale), how, INT8.codes)
    got = in_graph(values, scale, how, INT8.codes, opset)
    assert np.array_equal(got, want)  # -0.0 and 0.0 are one value
    if scale == 1.0:
        levels = [min(127, max(-128, exactly(float(value), how))) for value in values]
        assert got.tolist() == levels


def test_random_values_too() -> None:
    values = (np.random.default_rng(5).normal(size=20_000) * 3).astype(np.float32)
    for how in ("even", "away"):
        want = fake_quantize(values, np.float32(0.0173), how, INT8.weight_codes)
        assert np.array_equal(in_graph(values, 0.0173, how, INT8.weight_codes, 13), want)


def test_up_is_for_weights_only() -> None:
    view: Any = GraphView(onnx.GraphProto())
    with pytest.raises(ValueError, match="weights only"):
        RoundingNodes(Editor(view), "up", INT8.codes)


def test_a_weight_is_rounded_to_127_levels_per_channel_and_keeps_zero_channels() -> None:
    weight = np.array([[1.0, -0.5, 0.004], [0.0, 0.0, 0.0], [100.0, 1.0, 0.3]], np.float32)
    got = fake_quantize_weight(weight, 0)
    assert got[0, 0] == 1.0 and (got[1] == 0).all() and got[2, 0] == 100.0
    assert got[2, 2] == 0.0 and got[0, 2] == pytest.approx(0.00787, abs=1e-4)
    assert fake_quantize_weight(weight, None)[0, 0] == pytest.approx(100 / 127)
    assert (fake_quantize_weight(np.zeros((2, 2), np.float32), 0) == 0).all()
