# SPDX-License-Identifier: Apache-2.0
"""One shape per input: TensorRT calibrates at a single one. What `--shapes` says, and inputs that it makes fixed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from qdqtool.data.model_inputs import Input, check_names
from qdqtool.errors import QdqError

Shapes = Mapping[str, tuple[int, ...]]

_OPTION = "--shapes"
_TODO = "write input:1x3x224x224, commas between several"
_SIDE = 1 << 31


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes as trtexec spells them: `x:1x3x224x224,mask:1x10`.

    Raises:
        QdqError: not of that form, a side below 1, an input named twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for word in text.split(","):
        name, colon, sides = word.strip().rpartition(":")
        if not (colon and name and re.fullmatch(r"\d+(x\d+)*", sides, re.ASCII)):
            raise QdqError(f"{_OPTION} {text}", f"{word!r} is not an input and its shape", _TODO)
        shape = tuple(map(int, sides.split("x")))
        if not all(0 < side < _SIDE for side in shape) or name in found:
            reason = f"{name!r} is named twice" if name in found else f"{sides} is not a shape"
            raise QdqError(f"{_OPTION} {text}", reason, _TODO)
        found[name] = shape
    return found


def fix_inputs(inputs: Sequence[Input], shapes: Shapes) -> tuple[Input, ...]:
    """The inputs with the shapes that were given.

    Raises:
        QdqError: a name that is not an input, or a shape that the model does not take.
    """
    named = {one.name: one for one in inputs}
    for name, shape in shapes.items():
        if name not in named:
            check_names(_OPTION, [name], inputs)
        if not named[name].fits(shape):
            given = "x".join(map(str, shape))
            raise QdqError(
                _OPTION, f"{name!r} takes {named[name].format_shape()}, not {given}", "give what the model takes"
            )
    return tuple(replace(one, shape=tuple(shapes[one.name])) if one.name in shapes else one for one in inputs)


def require_fixed(inputs: Iterable[Input]) -> dict[str, tuple[int, ...]]:
    """The shape of every input.

    Raises:
        QdqError: one leaves a dimension open; TensorRT would calibrate at a shape that nobody chose.
    """
    fixed: dict[str, tuple[int, ...]] = {}
    for one in inputs:
        if one.shape is None or not all(isinstance(side, int) for side in one.shape):
            guess = "x".join(str(side if isinstance(side, int) else 1) for side in one.shape or (1,))
            reason = f"is {one.format_shape()}, and TensorRT calibrates at one fixed shape"
            raise QdqError(one.name, reason, f"give it, such as {_OPTION} {one.name}:{guess}")
        fixed[one.name] = tuple(side for side in one.shape if isinstance(side, int))
    return fixed
