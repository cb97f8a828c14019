# SPDX-License-Identifier: Apache-2.0
"""Whether a recipe is for an engine with the types of its file; all rows of a table are counted alike then."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.errors import QdqError
from qdqtool.precision.element_types import FIRST_STRONGLY_TYPED
from qdqtool.recipe.values import RecipeStep
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import parse

_HALVES = frozenset({"fp16", "bf16"})


def builds_by_file_types(steps: Iterable[RecipeStep]) -> bool:
    """Whether a step names TensorRT 11 or later or TensorRT for RTX, or puts FP16 or BF16 into a file."""
    return any(_is_typed(step) for step in steps)


def _is_typed(step: RecipeStep) -> bool:
    if step.verb == "amp" or step.options.get("target") == RTX_TARGET or step.options.get("rest") in _HALVES:
        return True
    try:
        return parse(str(step.options["trt-version"])).major >= FIRST_STRONGLY_TYPED
    except (KeyError, QdqError):
        return False
