# SPDX-License-Identifier: Apache-2.0
"""Each test of counting chooses the kernel anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qdqtool.amax import kernel


@pytest.fixture(autouse=True)
def _choose_again() -> Iterator[None]:
    kernel.choose.cache_clear()
    yield
    kernel.choose.cache_clear()
