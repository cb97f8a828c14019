# SPDX-License-Identifier: Apache-2.0
"""How many threads are taken, and which numbers are refused."""

from __future__ import annotations

import pytest

from qdqtool import threads
from qdqtool.errors import QdqError


@pytest.mark.parametrize(("cores", "most"), [(1, 8), (2, 8), (3, 12), (64, 256)])
def test_four_threads_for_each_core_and_eight_on_the_smallest(
    cores: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    assert threads.useful_threads() == most


def test_the_cores_of_this_process_are_counted() -> None:
    assert threads.usable_cores() >= 1


@pytest.mark.parametrize("count", [1, 2, 1024])
def test_numbers_that_are_threads_pass(count: int) -> None:
    threads.check_threads("--threads", count)


@pytest.mark.parametrize("count", [-(2**63), -1, 0, 1025, 2**63 - 1, 10**30])
def test_numbers_that_cannot_be_meant_are_refused_by_their_option(count: int) -> None:
    with pytest.raises(QdqError, match=rf"^--threads: {count} .* 1 to 1024 "):
        threads.check_threads("--threads", count)
