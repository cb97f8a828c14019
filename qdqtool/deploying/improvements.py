# SPDX-License-Identifier: Apache-2.0
"""What `improve` tries where INT8 loses too much, in which order, and which of it is best. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qdqtool.deploying.candidates import FINETUNE_STEPS, DeployCandidate, candidate_step
from qdqtool.deploying.choice import AS_NEAR, DeployCost
from qdqtool.deploying.options import Effort
from qdqtool.evaluation.loss_scale import is_at_most
from qdqtool.evaluation.metrics import Figure, ResampledFigure, loss_between
from qdqtool.formats import FP8, INT8
from qdqtool.recipe.values import OptionValue, RecipeStep

Stage = Literal["granularity", "method", "condition", "keep-float", "blocks", "finetune"]
STAGES: tuple[Stage, ...] = ("granularity", "method", "condition", "keep-float", "blocks", "finetune")
_STAGES_OF: dict[Effort, int] = {"fast": 3, "default": 5, "best": 6}  # how many of them
_METHODS = ("auto", "mse", "entropy")
_OF_INT8: tuple[Stage, ...] = ("granularity", "blocks", "finetune")
_OUTPUT_LOSSES = (0.02, 0.003)  # the first is what `deploy` asks for, the second what docs/peers.md measures
# What n samples do not show once is rarer than 3 in n, with 95 %: 1 - 0.05^(1/n) is 3/n.
_OF_NONE = 3
_CACHE_VERSION = "10.3"  # of a cache between two steps, which no TensorRT reads; its scales are those of any version
_FIRST_EDITS, _LAST_EDIT = "equalize,smooth,clip", "correct"  # of `--condition auto`
GIVEN = DeployCandidate("as given", "qdq", (), "the model as it is")


@dataclass(frozen=True)
class GivenFaults:
    """What the graph alone shows of a model's pairs that may cost accuracy.

    Attributes:
        per_tensor: whether a weight has one scale where its channels may have one each.
        zero_points: whether pairs have zero points, which TensorRT refuses.
        heads: whether detection heads are in INT8 that the rules leave in float.
    """

    per_tensor: bool = False
    zero_points: bool = False
    heads: bool = False


@dataclass(frozen=True)
class Attempt:
    """One thing to try.

    Attributes:
        candidate: its steps.
        over: the candidate that it differs from by one change, where that was measured; None for the best so far.
        start: the candidate whose model its steps begin at; None for the plain one.
        without_float: the candidate that it repeats without what that keeps in float for accuracy; it is left out where
            that keeps nothing.
    """

    candidate: DeployCandidate
    over: str | None = None
    start: DeployCandidate | None = None
    without_float: str | None = None


def stages_of(effort: Effort, number_format: str = INT8.name) -> tuple[Stage, ...]:
    """The stages of an effort, in order. Caches and training are for INT8 alone."""
    stages = STAGES[: _STAGES_OF[effort]]
    return stages if number_format == INT8.name else tuple(one for one in stages if one not in _OF_INT8)


def attempts(stage: Stage, faults: GivenFaults, best: DeployCandidate, number_format: str = INT8.name) -> list[Attempt]:
    """What is tried in a stage, in order, whatever loss is accepted: that only ends the order sooner."""
    methods = _METHODS if number_format == INT8.name else (FP8.method, *_METHODS[1:])
    if stage == "granularity":
        return _own_scales(faults)
    if stage == "method":
        return [_inserted(f"method {one}", {"method": one, "keep-float": 0}, "other scales") for one in methods]
    if stage == "condition":
        auto = _inserted("condition", {"condition": "auto"}, "weights edited first", over="method mse")
        whole = _inserted("condition, keep-float 0", {"condition": "auto", "keep-float": 0}, "weights edited first")
        return [auto, replace(whole, over="method mse", without_float="condition")]
    options = _insert_options(best, methods[0])
    name = best.name if any(step.verb == "insert" for step in best.steps) else f"method {methods[0]}"
    base = {key: value for key, value in options.items() if key not in ("keep-float", "max-output-loss", "attention")}
    if stage == "keep-float":
        why = "the operators that lose most in float"
        first = [] if "condition" in base else [_inserted(f"{name}, keep-float auto", base, why, over=name)]
        return first + [
            _inserted(f"{name}, output loss {most:g}", {**base, "max-output-loss": most}, why, over=name)
            for most in _OUTPUT_LOSSES
        ]
    if stage == "blocks":
        kept = {key: value for key, value in options.items() if key == "max-output-loss"}
        insert = RecipeStep("insert", "insert", options={**kept, "condition": "equalize,smooth"})
        trained = candidate_step("finetune", blocks=True, ranges="learn")
        return [Attempt(DeployCandidate("blocks", "qdq", (insert, trained), "weights trained block by block"))]
    # A model whose weights were edited or trained is no teacher.
    moved = "condition" in options or len(best.steps) > 1
    tune = candidate_step("finetune", steps=FINETUNE_STEPS, **({"teacher": True} if moved else {}))
    name = "finetune" if best is GIVEN else f"{best.name}, finetune"
    return [Attempt(DeployCandidate(name, "qdq", (tune,), "weights trained for INT8"), best.name, best)]


def _own_scales(faults: GivenFaults) -> list[Attempt]:
    """The given model with its own scales, placed by the rules: one scale per channel of a weight, no zero points."""
    found: list[Attempt] = []
    changed = [*(["no zero points"] * faults.zero_points), *(["weights per channel"] * faults.per_tensor)]
    if changed:
        found.append(_grafted(", ".join(changed), "none", GIVEN.name))
    if faults.heads:
        over = found[-1].candidate.name if found else GIVEN.name
        found.append(_grafted(", ".join([*changed, "heads in float"]), "regression", over))
    return found


def _grafted(name: str, float_heads: str, over: str) -> Attempt:
    peel = RecipeStep("peel", "peel", options={"on-asymmetric": "widen", "trt-version": _CACHE_VERSION})
    graft = RecipeStep("graft", "graft", options={"cache": "${step:1-peel:cache}", "float-heads": float_heads})
    return Attempt(DeployCandidate(name, "qdq", (peel, graft), "its own scales, placed by the rules"), over, GIVEN)


def _inserted(name: str, options: Mapping[str, OptionValue], why: str, over: str | None = None) -> Attempt:
    return Attempt(DeployCandidate(name, "qdq", (RecipeStep("insert", "insert", options=options),), why), over)


def _insert_options(best: DeployCandidate, method: str) -> dict[str, OptionValue]:
    """The options of the best model's `insert`; a method where it keeps the scales that were given."""
    for step in best.steps:
        if step.verb == "insert":
            options = dict(step.options)
            return {**options, "condition": "auto"} if options.get("condition") == _LAST_EDIT else options
    return {"method": method}


def with_edits_apart(attempt: Attempt) -> Attempt:
    """The attempt with a step of its own for what `insert --condition auto` does before biases are corrected.

    That is the same whatever stays in float, so that attempts share it. `condition` places pairs as `insert` does for a
    GPU: other targets keep the one step.
    """
    first, *more = attempt.candidate.steps
    if first.options.get("condition") != "auto":
        return attempt
    edit = RecipeStep("condition", "condition", options={"steps": _FIRST_EDITS})
    insert = replace(first, options={**first.options, "condition": _LAST_EDIT})
    return replace(attempt, candidate=replace(attempt.candidate, steps=(edit, insert, *more)))


def with_kept(attempt: Attempt, stage: Stage, kept: Mapping[str, OptionValue]) -> Attempt:
    """The attempt with the options that keep what its model had: number format, attentions, the type of what is float.

    Where operators are put in float for accuracy, data decide about attentions, too.
    """
    freed = {name: value for name, value in kept.items() if stage != "keep-float" or name != "attention"}
    taken = {"insert": freed, "graft": {name: value for name, value in kept.items() if name != "format"}}
    steps = tuple(
        replace(step, options={**step.options, **taken.get(step.verb, {})}) for step in attempt.candidate.steps
    )
    return replace(attempt, candidate=replace(attempt.candidate, steps=steps))


def is_within(loss: Figure, most: float) -> bool:
    """Whether a loss is no more than allowed, whatever its interval says."""
    return is_at_most(loss.value, most)


def is_shown(loss: Figure, most: float, samples: int) -> bool:
    """Whether so many samples show that a loss is no more than allowed.

    All of the interval lies within, and the samples are enough to have shown what is larger: draws of samples in which
    nothing changed do not vary, however few they are.
    """
    high = loss.interval.high
    return is_within(loss, most) and is_at_most(high, most) and is_at_most(_OF_NONE, samples * most)


def is_enough(loss: Figure, most: float, samples: int) -> bool:
    """Whether no further attempt is needed: a loss is shown to be within the bound, and nothing is left to win.

    A looser bound alone must not end the search at a worse model than a tighter one.
    """
    return is_at_most(loss.value, 0.0) and is_shown(loss, most, samples)


@dataclass(frozen=True)
class Measured:
    """A candidate on the same samples as all others.

    Attributes:
        name: of the candidate.
        figure: what it is judged by.
        beside: another measure of how near its answers are to FP32's; None where `figure` says that itself.
        cost: None where it is not known.
    """

    name: str
    figure: ResampledFigure
    beside: ResampledFigure | None = None
    cost: DeployCost | None = None


def best_of(
    found: Sequence[Measured],
    given: Measured | None,
    reference: ResampledFigure,
    most: float,
    samples: int,
    *,
    labeled: bool,
) -> Measured:
    """The best candidate: of those that samples do not tell from the least loss, the one that lies nearest to FP32.

    Of few samples a difference of losses is mostly chance, and nearness varies less; the first of those that lie as
    near, within `AS_NEAR`, is taken. Those that samples show to be within the largest accepted loss go before the
    others, and of them those that no other one is cheaper than; then those that are within it. A model that does better
    than FP32 does so by chance: it counts as losing nothing.

    Without labels both measures must agree: nothing is taken whose other measure is surely worse than that of the
    model as given, and that one stays where nothing is surely better.

    Args:
        found: candidates in the order in which they were tried; not empty.
        given: the model as given, if TensorRT takes it.
        reference: FP32's figure.
        most: the largest accepted loss.
        samples: how many the figures are of.
        labeled: whether figures are by labels.
    """
    fit = found
    if given is not None and not labeled:
        fit = [one for one in found if one is given or _is_surely_better_without_labels(one, given)]
    least = min(fit, key=lambda one: _lost(one, reference))
    alike = [
        one
        for one in fit
        if _lost(one, reference) <= _lost(least, reference)
        or not loss_between(least.figure, one.figure).interval.low > 0
    ]
    shown = [one for one in alike if is_shown(loss_between(reference, one.figure), most, samples)]
    within = _cheapest(shown) or [one for one in alike if is_at_most(_lost(one, reference), most)] or alike
    if any(one.beside is None for one in within):
        return min(within, key=lambda one: _lost(one, reference))
    changes = [1 - one.beside.value for one in within if one.beside is not None]
    near = [change <= min(changes) * (1 + AS_NEAR) for change in changes]
    return within[near.index(True)]


def _cheapest(found: Sequence[Measured]) -> list[Measured]:
    """Those that no other one is cheaper than, beyond what a forecast tells."""
    costs = [one.cost for one in found if one.cost is not None]
    return [one for one in found if one.cost is None or not any(cost.is_below(one.cost) for cost in costs)]


def _lost(one: Measured, reference: ResampledFigure) -> float:
    return max(loss_between(reference, one.figure).value, 0.0)


def _is_surely_better_without_labels(one: Measured, given: Measured) -> bool:
    if not loss_between(one.figure, given.figure).interval.low > 0:
        return False
    beside = one.beside, given.beside
    return beside[0] is None or beside[1] is None or not loss_between(beside[1], beside[0]).interval.low > 0
