# SPDX-License-Identifier: Apache-2.0
"""Scales and codes of weights in blocks: to the bit against ml_dtypes, and what the search for scales is to find."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest

from qdqtool.amax.weight_blocks import BlockLayout, Moments, block_of
from qdqtool.formats import INT4

HALF, BFLOAT = int(onnx.TensorProto.FLOAT16), int(onnx.TensorProto.BFLOAT16)


def weight_of(shape: tuple[int, int], seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.random.default_rng(seed).standard_t(4, shape) * 0.05).astype(np.float32)


def test_the_longest_block_that_cuts_an_axis_is_taken() -> None:
    assert block_of(768, INT4.blocks) == 128
    assert block_of(192, INT4.blocks) == 64
    assert block_of(96, INT4.blocks) == 32
    assert block_of(128, INT4.blocks) == 64  # one block of 128 is no block that a product takes in
    assert block_of(32, INT4.blocks) == 0
    assert block_of(100, INT4.blocks) == 0
    assert block_of(0, INT4.blocks) == 0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", [HALF, BFLOAT])
def test_codes_and_scales_are_those_of_the_plain_formula_and_of_ml_dtypes(axis: int, kind: int) -> None:
    weight, layout = weight_of((96, 64)), BlockLayout(axis, 32, INT4, kind)
    scales = layout.scales(weight)
    assert scales.shape == ((3, 64) if axis == 0 else (96, 2))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    assert scales.astype(dtype).astype(np.float32).tobytes() == scales.tobytes()
    spread = np.repeat(scales, 32, axis)
    expected = np.clip(np.rint(weight / spread), -8, 7).astype(ml_dtypes.int4)
    codes = layout.codes(weight, scales)
    assert codes.dtype == ml_dtypes.int4
    assert codes.tobytes() == expected.tobytes()
    assert layout.values(codes, scales).tobytes() == (expected.astype(np.float32) * spread).tobytes()
    inside = np.abs(weight) <= 7 * spread
    assert (np.abs(layout.values(codes, scales) - weight)[inside] <= spread[inside] / 2 * (1 + 1e-6)).all()


def test_the_same_bytes_as_onnx_dequantizes() -> None:
    weight, layout = weight_of((64, 24)), BlockLayout(0, 16, INT4, HALF)
    scales = layout.scales(weight)
    codes = layout.codes(weight, scales)
    node = onnx.helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=0, block_size=16)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [64, 24])],
        [onnx.numpy_helper.from_array(codes, "w"), onnx.numpy_helper.from_array(scales, "s")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    (made,) = onnx.reference.ReferenceEvaluator(model).run(None, {})
    assert made.tobytes() == layout.values(codes, scales).tobytes()


def test_a_block_of_zeros_has_a_scale_and_huge_weights_stay_finite() -> None:
    layout = BlockLayout(0, 16, INT4, HALF)
    weight = np.zeros((32, 2), np.float32)
    weight[16:, 1] = 1e6
    scales = layout.scales(weight)
    assert (scales > 0).all()
    assert scales[1, 1] == 65504
    assert not layout.codes(weight, scales)[:16].any()


def test_the_search_never_loses_more_than_rounding_and_a_lone_large_weight_is_cut() -> None:
    layout, rng = BlockLayout(0, 32, INT4, HALF), np.random.default_rng(1)
    weight = (rng.standard_normal((64, 40)) * 0.02).astype(np.float32)
    weight[5] = 0.11
    inputs = rng.standard_normal((500, 64)).astype(np.float32)
    inputs[:, 5] *= 0.01  # what the large weights multiply is small: cutting them costs nothing
    moments = Moments(64, 32)
    moments.add(inputs)
    exact = inputs.astype(np.float64)[:, 32:]
    assert moments.rows == 500 and moments.sums[1] == pytest.approx(exact.T @ exact, rel=1e-4, abs=1e-3)
    found, lost = layout.searched(weight, moments.sums / moments.rows)
    plain = layout.scales(weight)
    errors = [np.square(inputs @ (layout.values(layout.codes(weight, s), s) - weight)).mean() for s in (plain, found)]
    assert errors[1] < errors[0] / 2
    assert (found <= plain).all()
    assert (found[0] / plain[0]).mean() < 0.6
    assert (lost >= 0).all()


def test_a_negative_extreme_takes_the_code_that_has_no_positive_one() -> None:
    layout = BlockLayout(0, 16, INT4, HALF)
    weight = np.linspace(-8, 7, 16, dtype=np.float32).reshape(16, 1).repeat(1, 1) * np.float32(0.25)
    found, lost = layout.searched(np.concatenate([weight, weight]), None)
    assert (found == 0.25).all()
    assert lost == pytest.approx(0, abs=1e-12)
    assert layout.codes(weight, found[:1]).astype(int).ravel().tolist() == list(range(-8, 8))


def test_moments_do_not_depend_on_how_rows_come_and_stay_as_large() -> None:
    rows = np.random.default_rng(2).standard_normal((6, 5, 64)).astype(np.float32)
    whole, parts = Moments(64, 16), Moments(64, 16)
    whole.add(rows)
    for row in rows:
        parts.add(row)
    assert whole.rows == parts.rows == 30
    np.testing.assert_allclose(whole.sums, parts.sums, rtol=1e-5, atol=1e-4)
    assert parts.sums.shape == (4, 16, 16)
    flat = rows.reshape(-1, 64)[:, 16:32].astype(np.float64)
    np.testing.assert_allclose(whole.sums[1], flat.T @ flat, rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("error")
def test_values_whose_squares_are_beyond_float32_are_not_finite_and_no_warning() -> None:
    seen = Moments(32, 32)
    seen.add(np.full((2, 32), 1e30, np.float32))
    assert not seen.is_finite
