# SPDX-License-Identifier: Apache-2.0
"""Freed memory goes back to the system where the C library can be asked, and nothing happens where it cannot."""

from __future__ import annotations

import ctypes

import pytest

from qdqtool.runtime.memory import parts_within, release_freed_memory


class Library:
    """A C library with or without the call."""

    def __init__(self, asked: list[int]) -> None:
        self.malloc_trim = asked.append


def test_the_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(asked))
    assert release_freed_memory() and asked == [0]


@pytest.mark.parametrize("fault", [AttributeError, OSError, TypeError])
def test_where_it_cannot_be_asked_nothing_happens(fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: object) -> None:
        raise fault

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert not release_freed_memory()


def test_parts_fit_and_what_is_too_large_stands_alone() -> None:
    assert list(parts_within(10, [4, 6, 1, 12, 3, 7, 1], int)) == [[4, 6], [1], [12], [3, 7], [1]]
    assert list(parts_within(10, [], int)) == []
