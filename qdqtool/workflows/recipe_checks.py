# SPDX-License-Identifier: Apache-2.0
"""What can be said of a recipe before its first step runs, beside what its words are checked for: files are opened."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.opset_lower import lowering_todo
from qdqtool.graph.types import opset_of
from qdqtool.recipe.plan_steps import PlannedStep
from qdqtool.trtversion import parse

_GIVEN_BACK = ("peel",)  # verbs whose --source is what comes out
_LIFTING = ("insert", "graft")  # verbs that bring a model to the opset of Q/DQ
_LEAST_QDQ = 13


def opset_notes(steps: Sequence[PlannedStep], folder: Path) -> tuple[str, ...]:
    """Notes on models beside a cache whose opset the parser of their version does not read."""
    makers = {folder / step.outputs[""]: step for step in steps if step.outputs}
    return tuple(note for step in steps if step.step.verb == "peel" for note in _notes_of(step, makers))


def _notes_of(step: PlannedStep, makers: Mapping[Path, PlannedStep]) -> Iterator[str]:
    words = [word.typed for word in step.words]
    if "--lower-opset" in words or "--trt-version" not in words:
        return
    version = parse(words[words.index("--trt-version") + 1])
    opset, highest = _opset_behind(step, makers), version.max_opset
    if opset is not None and highest is not None and opset > highest:
        text = (
            f"step {step.step.name}: its model will have opset {opset}, TensorRT {version.text} reads up to {highest}"
        )
        yield f"{text}: lower-opset = true in its options, or {lowering_todo(highest, version)}"


def _opset_behind(step: PlannedStep, makers: Mapping[Path, PlannedStep]) -> int | None:
    """The opset of what a step writes, by the file that it began as; None where that cannot be opened."""
    least, left = 0, dict(makers)  # a file that a later step wrote before may be read: each is gone through once
    while True:
        source = _source(step) if step.step.verb in _GIVEN_BACK else None
        path = source or next(iter(step.models), None)
        if step.step.verb in _LIFTING:
            least = _LEAST_QDQ
        if path is None:
            return None
        if path not in left:
            break
        step = left.pop(path)
    try:
        return max(least, opset_of(open_model(path).proto) or 0)
    except QdqError:
        return None  # the step itself says what is wrong with the file


def _source(step: PlannedStep) -> Path | None:
    for option, value in itertools.pairwise(step.words):
        if option.typed == "--source" and value.reads:
            return value.reads[0]
    return None
