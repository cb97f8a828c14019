# SPDX-License-Identifier: Apache-2.0
"""Loaders that read and write calibration caches and scale tables."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from polygraphy import mod
from polygraphy.backend.base import BaseLoader

from qdqtool.files import replacing
from qdqtool.polygraphy.arguments import keep_arguments, loads, value_of

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache
    from qdqtool.polygraphy.arguments import AnyPath
    from qdqtool.scales import ScaleTable


@mod.export(funcify=True)
class CacheFromPath(BaseLoader):
    """Functor that reads a calibration cache."""

    @keep_arguments
    def __init__(self, path: AnyPath) -> None:
        """Read a calibration cache.

        Args:
            path: TensorRT's text file, or a callable that returns its path.
        """

    @loads
    def call_impl(self) -> Cache:
        """The calibration cache."""
        from qdqtool.cache.text import read_cache

        return read_cache(value_of(self._path))


@mod.export(funcify=True)
class SaveCache(BaseLoader):
    """Functor that writes a calibration cache, and facts beside it."""

    @keep_arguments
    def __init__(self, cache: Cache | Callable[[], Cache], path: AnyPath) -> None:
        """Write a calibration cache.

        Args:
            cache: a cache, or a callable that returns one.
            path: where to, or a callable that returns it.
        """

    @loads
    def call_impl(self) -> Cache:
        """The same cache."""
        from qdqtool.cache.store import write
        from qdqtool.cache.text import format_cache

        cache: Cache = value_of(self._cache)
        write(format_cache(cache).encode(), value_of(self._path), {"verb": "SaveCache", "header": cache.header}, [])
        return cache


@mod.export(funcify=True)
class ScalesFromPath(BaseLoader):
    """Functor that reads a scale table."""

    @keep_arguments
    def __init__(self, path: AnyPath) -> None:
        """Read a scale table.

        Args:
            path: the file that `calibrate` or `SaveScales` wrote, or a callable that returns its path.
        """

    @loads
    def call_impl(self) -> ScaleTable:
        """The scales."""
        from qdqtool.scales import load_table

        return load_table(value_of(self._path))


@mod.export(funcify=True)
class SaveScales(BaseLoader):
    """Functor that writes a scale table."""

    @keep_arguments
    def __init__(self, scales: ScaleTable | Callable[[], ScaleTable], path: AnyPath) -> None:
        """Write a scale table.

        Args:
            scales: a table, or a callable that returns one.
            path: where to, or a callable that returns it.
        """

    @loads
    def call_impl(self) -> ScaleTable:
        """The same table."""
        table: ScaleTable = value_of(self._scales)
        with replacing(value_of(self._path)) as file:
            file.write(table.to_json().encode("utf-8", "backslashreplace"))
        return table
