# SPDX-License-Identifier: Apache-2.0
"""Histograms counted by the C kernel and by NumPy, and values to count."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdqtool.amax import kernel
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.trt_entropy import EntropyHistogram

Float32 = npt.NDArray[np.float32]
Kind = type[Histogram] | type[EntropyHistogram]
MODULE = kernel.choose().module
VARIANTS = range(len(MODULE.variants())) if MODULE else range(0)
LARGE = 40_001  # counts in two tables, over many pieces, with a rest

compiled = pytest.mark.skipif(MODULE is None, reason=kernel.why())
kinds = pytest.mark.parametrize("kind", [Histogram, EntropyHistogram])

bits = hnp.arrays(np.uint32, st.integers(0, 70), elements=st.integers(0, 2**32 - 1)).map(lambda x: x.view(np.float32))
awkward = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-126), float(np.finfo(np.float32).max), np.inf])
plain = st.floats(-8.0, 8.0, width=32)
vectors = st.one_of(
    bits,
    hnp.arrays(np.float32, st.integers(0, 70), elements=st.one_of(plain, awkward)),
    hnp.arrays(np.float32, st.integers(0, 70), elements=plain),
)


def by_numpy(kind: Kind, *batches: npt.NDArray[Any]) -> bytes:
    made = kind()
    for batch in batches:
        made.add_in_numpy(kernel.flatten(batch))
    return made.state()


def by_c(kind: Kind, variant: int, *batches: npt.NDArray[Any]) -> bytes:
    made = kind()
    for batch in batches:
        MODULE.add_all([made], [batch], kernel.flatten, variant)
    return made.state()


def assert_same(kind: Kind, *batches: npt.NDArray[Any]) -> None:
    expected = by_numpy(kind, *batches)
    for variant in VARIANTS:
        assert by_c(kind, variant, *batches) == expected, MODULE.variants()[variant]


def some(count: int) -> list[Float32]:
    rng = np.random.default_rng(21)
    return [rng.standard_normal(int(rng.integers(0, 5000))).astype(np.float32) for _ in range(count)]
