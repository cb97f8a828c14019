# SPDX-License-Identifier: Apache-2.0
"""The recipe that does a deployment again: its steps in the words of the command line, as TOML. Nothing is run here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RecipeValue = str | int | float | bool | Sequence[str]


@dataclass(frozen=True)
class WrittenStep:
    """One verb.

    Attributes:
        name: of the step.
        verb: of qdqtool.
        output: file name of its main output, in the folder of the run; "" where it writes none.
        model: a file beside the recipe, or the name of an earlier step; "" for what the step before wrote.
        options: long option names without dashes -> values.
    """

    name: str
    verb: str
    output: str = ""
    model: str = ""
    options: Mapping[str, RecipeValue] = field(default_factory=dict)


def recipe_text(model: str, out: str, steps: Sequence[WrittenStep], comments: Sequence[str] = ()) -> str:
    """The recipe as TOML.

    Args:
        model: the plain model's file, as seen from the recipe.
        out: the folder of the run, likewise.
        steps: in order.
        comments: lines at its top.
    """
    lines = [*(f"# {' '.join(one.split())}" for one in comments), f"model = {_value(model)}", f"out = {_value(out)}"]
    for step in steps:
        lines += ["", "[[step]]"]
        fields = {"name": step.name, "verb": step.verb, "model": step.model, "output": step.output}
        lines += [f"{key} = {_value(value)}" for key, value in fields.items() if value]
        if step.options:
            lines += ["[step.options]", *(f"{key} = {_value(value)}" for key, value in step.options.items())]
    return "\n".join(lines) + "\n"


def _value(value: RecipeValue) -> str:
    """A value as TOML has it: its basic strings are JSON's, but for characters beyond the first plane."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"[{', '.join(map(_value, value))}]"
