# SPDX-License-Identifier: Apache-2.0
"""Values that are generated for an input: their type, and what none are made for. Data are in test_loader.py."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError

BFLOAT16 = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))


def made(kind: object, shape: tuple[int, ...] = (50,)) -> np.ndarray:
    return Input("x", shape, np.dtype(kind)).made_up(shape, np.random.default_rng(1))  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, BFLOAT16])
def test_floats_are_spread_around_zero(kind: object) -> None:
    values = made(kind)
    assert values.dtype == kind and values.shape == (50,)
    assert abs(values.astype(np.float64).mean()) < 0.5 < values.astype(np.float64).std() < 1.5


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, np.bool_])
def test_integers_are_zero_and_one(kind: object) -> None:
    values = made(kind)
    assert values.dtype == kind and set(values.tolist()) == {0, 1}


def test_the_same_values_each_time() -> None:
    assert made(np.float32).tobytes() == made(np.float32).tobytes()


def test_a_scalar_is_an_array() -> None:
    assert isinstance(made(np.float32, ()), np.ndarray) and made(np.int64, ()).shape == ()


@pytest.mark.parametrize("kind", [object, np.complex64, "U3"])
def test_no_values_for_other_types(kind: object) -> None:
    with pytest.raises(QdqError, match=r"^x: .*generated; give data"):
        made(kind)


def test_not_more_values_than_memory_has_room_for() -> None:
    """A free axis of the file may be a number of any size: nothing is drawn before it is looked at."""
    with pytest.raises(QdqError, match=r"^x: .* 1x64x1024x4096 values"):
        made(np.float32, (1, 64, 1024, 4096))
