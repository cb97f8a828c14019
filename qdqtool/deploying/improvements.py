# SPDX-License-Identifier: Apache-2.0
"""What `improve` tries where INT8 loses too much: in which order, and when it is enough. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from qdqtool.deploying.candidates import FINETUNE_STEPS, DeployCandidate, candidate_step
from qdqtool.evaluation.metrics import Figure
from qdqtool.recipe.values import OptionValue, RecipeStep, Scalar

Stage = Literal["method", "condition", "keep-float", "finetune"]
STAGES: tuple[Stage, ...] = ("method", "condition", "keep-float", "finetune")
_METHODS = ("auto", "mse", "entropy")
_KEPT: tuple[Scalar, ...] = ("auto", 4, 8, 16)
GIVEN = DeployCandidate("as given", "qdq", (), "the model as it is")


@dataclass(frozen=True)
class Attempt:
    """One thing to try.

    Attributes:
        candidate: its steps.
        on_best: whether they begin at the best model so far; else at the plain one.
    """

    candidate: DeployCandidate
    on_best: bool = False


def attempts(stage: Stage, best: DeployCandidate) -> list[Attempt]:
    """What is tried in a stage, in order."""
    if stage == "method":
        return [_inserted(f"method {one}", {"method": one, "keep-float": 0}, "another range") for one in _METHODS]
    if stage == "condition":
        return [_inserted("condition", {"method": "mse", "condition": "auto", "keep-float": 0}, "weights edited first")]
    if stage == "keep-float":
        base = _insert_options(best)
        why, name = "the operators that lose most in float", best.name if best.steps else f"method {_METHODS[0]}"
        return [_inserted(f"{name}, keep-float {n}", {**base, "keep-float": n}, why) for n in _KEPT]
    moved = "condition" in _insert_options(best)
    tune = candidate_step("finetune", steps=FINETUNE_STEPS, **({"teacher": True} if moved else {}))
    name = "finetune" if best is GIVEN else f"{best.name}, finetune"
    return [Attempt(DeployCandidate(name, "qdq", (tune,), "weights trained for INT8"), on_best=True)]


def satisfies(loss: Figure, most: float) -> bool:
    """Whether a loss lies within what is allowed with all of its 95 % interval."""
    return loss.value <= most and loss.interval.high <= most


def is_within(loss: Figure, most: float) -> bool:
    """Whether a loss itself lies within what is allowed, whatever its interval says."""
    return loss.value <= most


def with_rest(attempt: Attempt, rest: str | None) -> Attempt:
    """The attempt with a float type for what is not INT8, where its model had one."""
    if rest is None:
        return attempt
    steps = tuple(
        replace(step, options={**step.options, "rest": rest}) if step.verb == "insert" else step
        for step in attempt.candidate.steps
    )
    return replace(attempt, candidate=replace(attempt.candidate, steps=steps))


def _inserted(name: str, options: Mapping[str, OptionValue], why: str) -> Attempt:
    return Attempt(DeployCandidate(name, "qdq", (RecipeStep("insert", "insert", options=options),), why))


def _insert_options(best: DeployCandidate) -> dict[str, OptionValue]:
    """The options of the best model's `insert`; those of `auto` where the model as given is the best."""
    for step in best.steps:
        if step.verb == "insert":
            return {key: value for key, value in step.options.items() if key != "keep-float"}
    return {"method": _METHODS[0]}
