# SPDX-License-Identifier: Apache-2.0
"""Fields of options: how they are typed on the command line, and text that is converted when the options are made.

`cli/declared.py` makes parsers of the declarations and options of what was parsed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, TypeVar

from qdqtool.errors import QdqError

T = TypeVar("T")

ADVANCED = "advanced"  # title of the group of options that few need

_KEY = "option"  # of a field's metadata


@dataclass(frozen=True)
class Option:
    """How a field is given on the command line. What it is where nothing is given is the field's own default.

    An option without metavar and choices is a flag: it turns a default of True or False around. A field that is None by
    default is True with `--flag` and False with `--no-flag`.

    Attributes:
        spelling: its flags, separated by spaces.
        help: one sentence; "%(default)s" in it is the default. None for an option that help does not show.
        metavar: the name of its value in the help.
        choices: the words that it takes; None for any.
        read: the value of a word, while the command line is read: `argparse.ArgumentTypeError` refuses one.
        convert: the field's value from what was given, when the options are made: QdqError refuses one.
        repeated: whether it may be given again; the field is a tuple then.
        required: whether it must be given.
        group: title of its group in the help; "" for the verb's main options.
        one_of: name of a set of options of which one at most is given; "" for none. They follow each other.
    """

    spelling: str
    help: str | None
    metavar: str | None = None
    choices: Sequence[str] | None = None
    read: Callable[[str], Any] | None = None
    convert: Callable[[Any], Any] | None = None
    repeated: bool = False
    required: bool = False
    group: str = ""
    one_of: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags."""
        return tuple(self.spelling.split())

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.metavar is None and self.choices is None

    @property
    def dest(self) -> str:
        """The attribute of argparse's Namespace."""
        name = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return name.lstrip("-").replace("-", "_")


def option(default: Any, spelling: str | Option, help_: str | None = None, **how: Any) -> Any:
    """A field of a dataclass that is given on the command line.

    Args:
        default: of the field; `MISSING` for none.
        spelling: the flags, separated by spaces; or an option that several classes share.
        help_: as in `Option`.
        how: the others of `Option`; or a `default_factory`.
    """
    factory = how.pop("default_factory", MISSING)
    one = spelling if isinstance(spelling, Option) else Option(spelling, help_, **how)
    return field(default=default, default_factory=factory, metadata={_KEY: one})


def declared(options: type) -> dict[str, Option]:
    """Field of a class of options -> the option that it is given by, in order; fields without one are left out."""
    found: dict[str, Option] = {}
    for name in (one.name for one in fields(options)):
        for base in options.__mro__:  # a field that repeats one of a base without an option has the base's
            default, own = vars(base).get(name), vars(base).get("__dataclass_fields__", {}).get(name)
            given = default.option if isinstance(default, _TextField) else own and own.metadata.get(_KEY)
            if given is not None:
                found[name] = given
                break
    return found


def check_choices(options: object) -> None:
    """Refuse a word that is none of its option's choices.

    Raises:
        QdqError: such a word, with the choices.
    """
    for name, one in declared(type(options)).items():
        value = getattr(options, name)
        if one.choices is not None and value is not None and value not in one.choices:
            known = f"{', '.join(one.choices[:-1])} or {one.choices[-1]}"
            raise QdqError(one.flags[0], f"{value!r} is not one", f"choose {known}")


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
    """The regular expression after an option.

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
    """What both kinds of field keep: how text is read, the option it is given by, and the name of the attribute."""

    def __init__(self, kind: type[T], convert: Callable[[str], T], option: Option | None = None) -> None:
        self._kind, self._convert, self.option = kind, convert, option

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
