# SPDX-License-Identifier: Apache-2.0
"""A .npz written while batches pass: what numpy reads, the same bytes each time, and what one array cannot hold."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.simulation.recorder import Recorder


def recorded(*batches: dict[str, Any]) -> bytes:
    with Recorder() as recorder:
        for batch in batches:
            recorder.add(batch)
        file = io.BytesIO()
        recorder.write(file)
    return file.getvalue()


def test_rows_of_all_batches_by_name() -> None:
    a, n = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4)
    data = recorded({"a/b:0": a[:3], "n": n[:3]}, {"a/b:0": a[3:], "n": n[3:]})
    with np.load(io.BytesIO(data)) as read:
        assert list(read) == ["a/b:0", "n"]
        assert read["a/b:0"].dtype == np.float32 and np.array_equal(read["a/b:0"], a)
        assert np.array_equal(read["n"], n)


def test_scalars_and_transposed_arrays() -> None:
    matrix = np.arange(6).reshape(2, 3).T
    with np.load(io.BytesIO(recorded({"s": np.array(1.5), "m": matrix}, {"s": np.array(2.5), "m": matrix}))) as read:
        assert read["s"].tolist() == [1.5, 2.5]
        assert np.array_equal(read["m"], np.concatenate([matrix, matrix]))


def test_the_same_arrays_the_same_bytes() -> None:
    assert recorded({"a": np.ones((2, 2))}, {"a": np.ones((1, 2))}) == recorded({"a": np.ones((3, 2))})


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(QdqError, match=r"boxes: .* \[3\], .* \[2\]"):
        recorded({"boxes": np.ones((1, 2))}, {"boxes": np.ones((1, 3))})


def test_the_temporary_files_are_gone() -> None:
    with Recorder() as recorder:
        recorder.add({"a": np.ones(2)})
        file = recorder._files["a"]
    assert file.closed
