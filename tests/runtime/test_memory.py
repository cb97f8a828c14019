# SPDX-License-Identifier: Apache-2.0
"""Freed memory goes back to the system where the C library can be asked, and nothing happens where it cannot."""

from __future__ import annotations

import ctypes

import pytest

from qdqtool.runtime.memory import large_pieces_mapped, parts_within, release_freed_memory


class Library:
    """glibc, which notes what it is asked."""

    def __init__(self, asked: list[object]) -> None:
        self.malloc_trim = asked.append
        self.mallopt = lambda parameter, size: asked.append((parameter, size))


def test_the_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(asked))
    assert release_freed_memory() and asked == [0]


def test_large_pieces_are_mapped_until_the_end_even_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(asked))
    with pytest.raises(KeyError), large_pieces_mapped():
        assert asked == [(-3, 1 << 20)]
        raise KeyError
    assert asked[1:] == [(-3, 32 << 20), (-1, 64 << 20)]


@pytest.mark.parametrize("fault", [AttributeError, OSError, TypeError])
def test_where_it_cannot_be_asked_nothing_happens(fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: object) -> None:
        raise fault

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert not release_freed_memory()
    with large_pieces_mapped():
        pass


def test_parts_fit_and_what_is_too_large_stands_alone() -> None:
    assert list(parts_within(10, [4, 6, 1, 12, 3, 7, 1], int)) == [[4, 6], [1], [12], [3, 7], [1]]
    assert list(parts_within(10, [], int)) == []
