# SPDX-License-Identifier: Apache-2.0
"""Fields of options that also take text, such as "8502" for a TrtVersion: converted once, when the options are made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from qdqtool.errors import QdqError

T = TypeVar("T")


def converted(value: object, kind: type[T], convert: Callable[[str], T], where: str) -> T:
    """A value of a kind, or what its text means.

    Raises:
        QdqError: neither of that kind nor text.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        return convert(value)
    raise QdqError(where, f"{value!r} is a {type(value).__name__}", f"give a {kind.__name__} or its text")


def compile_pattern(option: str, text: str) -> re.Pattern[str]:
    """The regular expression behind an option.

    Raises:
        QdqError: it is none, or one that Python cannot compile.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what later versions may read otherwise
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise QdqError(
            f"{option} {text}", f"not a regular expression ({error})", "escape what is meant literally"
        ) from None


class _TextField(Generic[T]):
    """What both kinds of field keep: how text is read, and the name of the attribute."""

    def __init__(self, kind: type[T], convert: Callable[[str], T]) -> None:
        self._kind, self._convert = kind, convert

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _read(self, value: object) -> T:
        return converted(value, self._kind, self._convert, self._name)


class TextOption(_TextField[T]):
    """A field of a frozen dataclass that takes a value, its text, or None, which is the default."""

    def __get__(self, instance: Any, owner: type | None = None) -> T | None:
        """The value; of the class: the default of the field."""
        value: T | None = None if instance is None else vars(instance)[self._name]
        return value

    def __set__(self, instance: Any, value: T | str | None) -> None:
        vars(instance)[self._name] = None if value is None else self._read(value)


class RequiredTextOption(_TextField[T]):
    """The same without a default."""

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        """The value; the class has none, by which `dataclass` knows that there is no default."""
        if instance is None:
            raise AttributeError(self._name)
        value: T = vars(instance)[self._name]
        return value

    def __set__(self, instance: Any, value: T | str) -> None:
        vars(instance)[self._name] = self._read(value)
