# SPDX-License-Identifier: Apache-2.0
"""Options as dataclasses declare them (`qdqtool/options.py`): put on a parser, and made of what it parsed."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from qdqtool.options import Option, declared

_T = TypeVar("_T")

Container = argparse._ActionsContainer  # a parser, or a group of one: argparse gives its type no public name


def add_options(
    container: Container, options: object, *, only: Collection[str] = (), without: Collection[str] = ()
) -> None:
    """Declare the options of a class, or of an instance, whose values are the defaults then.

    On a parser, options of a group go to the group of that title; on a group, all go there. `only` and `without` name
    fields.
    """
    sets: dict[str, Container] = {}
    for name, one in _chosen(options, only, without).items():
        place = container
        if one.group and isinstance(container, argparse.ArgumentParser):
            place = group_named(container, one.group)
        if one.one_of and one.one_of not in sets:
            sets[one.one_of] = place.add_mutually_exclusive_group()
        add_option(sets.get(one.one_of, place), one, _default(options, name))


def add_option(container: Container, one: Option, default: Any = None) -> None:
    """Declare one option; `default` is that of its field."""
    shown = argparse.SUPPRESS if one.help is None else one.help
    if one.is_flag:
        switch = argparse.BooleanOptionalAction if default is None else "store_true"
        container.add_argument(*one.flags, action=switch, help=shown)
        return
    how: dict[str, Any] = {"help": shown, "metavar": one.metavar, "choices": one.choices, "type": one.read}
    if one.repeated:
        how |= {"action": "append", "default": list(default or ())}
    else:
        how |= {"default": default, "required": one.required}
    container.add_argument(*one.flags, **{key: value for key, value in how.items() if value is not None})


def group_named(parser: argparse.ArgumentParser, title: str) -> Container:
    """The group of that title; a new one where there is none."""
    titled = (group for group in parser._action_groups if group.title == title)
    return next(titled, None) or parser.add_argument_group(title)


def options_from(
    kind: type[_T],
    args: argparse.Namespace,
    *,
    only: Collection[str] = (),
    **given: Any,
) -> _T:
    """The options of a class from what `add_options` declared and was parsed; `given` has fields that are no options.

    Raises:
        QdqError: a value that the field or its option refuses.
    """
    values, ungiven = dict[str, Any](), defaults_of(kind, only=only)
    for name, one in _chosen(kind, only, given).items():
        value = getattr(args, one.dest)
        if value == ungiven[one.dest]:
            continue  # the field has its default
        if one.is_flag and value is not None:
            value = value != bool(_default(kind, name))
        elif one.repeated:
            value = tuple(value)
        values[name] = value if one.convert is None else one.convert(value)
    return kind(**values, **given)


def defaults_of(options: object, *, only: Collection[str] = ()) -> dict[str, object]:
    """Attribute of the Namespace -> its value where the option is not given."""
    defaults = {}
    for name, one in _chosen(options, only, ()).items():
        default = _default(options, name)
        ungiven = False if one.is_flag and default is not None else default
        defaults[one.dest] = list(default or ()) if one.repeated else ungiven
    return defaults


def _chosen(options: object, only: Collection[str], without: Collection[str]) -> dict[str, Option]:
    found = declared(options if isinstance(options, type) else type(options))
    return {name: found[name] for name in only or found if name not in without}


def _default(options: object, name: str) -> Any:
    """The value of a field where nothing is given; None for one that has no default."""
    if not isinstance(options, type):
        return getattr(options, name)
    default = next(one.default for one in fields(options) if one.name == name)
    return None if default is MISSING else default
