# SPDX-License-Identifier: Apache-2.0
"""A recipe's TOML to values and back: keys and kinds are checked here, verbs and files are not."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, read_toml
from qdqtool.recipe.model_facts import forecast_device
from qdqtool.recipe.values import OptionValue, Recipe, RecipeStep

RECIPE = FileKind("a recipe", 1 << 20, "see docs/run.md for the form")
_TOP = ("model", "out", "device", "step")
_STEP = ("name", "verb", "model", "arguments", "output", "options")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SCALARS = (str, int, float, bool)


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe.

    Raises:
        QdqError: no TOML, an unknown key, a value of the wrong kind, neither a model nor a step, two steps of one name,
            no such device.
    """
    path = Path(path)
    document = read_toml(path, RECIPE)
    _refuse_unknown(path, "", document, _TOP)
    steps = document.get("step", [])
    if (
        not isinstance(steps, list)
        or (not steps and "model" not in document)
        or not all(isinstance(step, dict) for step in steps)
    ):
        raise QdqError(path, "has no [[step]]", RECIPE.todo)
    read = tuple(_step(path, number, step) for number, step in enumerate(steps, 1))
    for number, step in enumerate(read, 1):
        if step.name in {other.name for other in read[: number - 1]}:
            raise QdqError(path, f"two steps are called {step.name}", "give each a name of its own")
    model, out, device = (_text(path, key, document.get(key)) for key in ("model", "out", "device"))
    forecast_device(device)
    recipe = Recipe(path, read, model, out, device)
    return replace(recipe, out=_folder(path, recipe.out))


def _step(path: Path, number: int, table: Mapping[str, Any]) -> RecipeStep:
    name = table.get("name", f"step{number}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise QdqError(path, f"step {number} is called {name!r}", "use letters, digits, and . _ - inside")
    where = f"step {name}: "
    _refuse_unknown(path, where, table, _STEP)
    verb = _text(path, f"{where}verb", table.get("verb"))
    if not verb:
        raise QdqError(path, f"step {name} has no verb", RECIPE.todo)
    output = _text(path, f"{where}output", table.get("output"))
    options = table.get("options", {})
    if not isinstance(options, dict):
        raise QdqError(path, f"step {name}: options is not a table", RECIPE.todo)
    for key in options:
        if key.startswith("-") and key.lstrip("-") in options:
            raise QdqError(path, f"step {name}: option {key.lstrip('-')} is given twice", "leave one out")
    return RecipeStep(
        name,
        " ".join(verb.split()),
        _words(path, f"{where}model", table.get("model", ())),
        _words(path, f"{where}arguments", table.get("arguments", ())),
        output,
        {key.lstrip("-"): _value(path, f"{where}option {key}", value) for key, value in options.items()},
    )


def _refuse_unknown(path: Path, where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in sorted(table.keys() - set(known)):
        near = difflib.get_close_matches(key, list(known), 1)
        raise QdqError(
            path, f"{where}unknown key {key!r}" + (f", did you mean {near[0]!r}" if near else ""), RECIPE.todo
        )


def _text(path: Path, what: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value and value.isprintable()):
        return value
    raise QdqError(path, f"{what} is {value!r}, no text", RECIPE.todo)


def _folder(path: Path, out: str | None) -> str | None:
    if out is not None and Path(out) == Path():
        raise QdqError(path, "out is the recipe's own folder", "give a folder of its own")
    return out


def _words(path: Path, what: str, value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word for word in words):
        return tuple(words)
    raise QdqError(path, f"{what} is {value!r}, neither a text nor a list of texts", RECIPE.todo)


def _value(path: Path, what: str, value: Any) -> OptionValue:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, list) and value and all(isinstance(one, _SCALARS) for one in value):
        return tuple(value)
    raise QdqError(path, f"{what} is {value!r}", "give a text, a number, true, false or a list of these")


# ---------------------------------------------------------------------------------------------------------- writing


def recipe_text(recipe: Recipe, comments: Iterable[str] = ()) -> str:
    """The TOML of a recipe, which `read_recipe` reads back to the same values."""
    lines = [f"# {' '.join(one.split())}" for one in comments]
    top = {"model": recipe.model, "out": recipe.out, "device": recipe.device}
    lines += [f"{key} = {_toml(value)}" for key, value in top.items() if value is not None]
    for step in recipe.steps:
        lines += ["", "[[step]]", f"name = {_toml(step.name)}", f"verb = {_toml(step.verb)}"]
        if step.models:
            lines.append(f"model = {_toml(step.models[0] if len(step.models) == 1 else step.models)}")
        if step.arguments:
            lines.append(f"arguments = {_toml(step.arguments)}")
        if step.output is not None:
            lines.append(f"output = {_toml(step.output)}")
        if step.options:
            lines += ["[step.options]", *(f"{_key(key)} = {_toml(value)}" for key, value in step.options.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: OptionValue) -> str:
    """A value as TOML has it: its basic strings are JSON's, but for characters beyond the first plane and DEL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
