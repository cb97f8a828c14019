# SPDX-License-Identifier: Apache-2.0
"""What `deploy` tries: ways from a model to a file for a target, each as steps of verbs. Nothing is run here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from qdqtool.deploying.options import Effort
from qdqtool.deploying.target import DeployTarget
from qdqtool.formats import FP8, INT8, number_format
from qdqtool.recipe.values import RecipeStep, Scalar

Form = Literal["qdq", "cache", "fp16", "as-is"]
FINETUNE_STEPS = 200  # a number, not a time: the recipe must give the same bytes
SHUFFLES = "Q030"  # the code by which lint makes convolutions, which a DLA runs, of channel shuffles


@dataclass(frozen=True)
class DeployCandidate:
    """One way to a file that TensorRT builds.

    Attributes:
        name: as tables and progress call it.
        form: a Q/DQ model, a plain model with a cache, a model in FP16, or the model as it is.
        steps: of a recipe, in order; each takes what the one before it wrote. Data, its preprocessing and the version
            are added where they become a recipe.
        why: what it is tried for, one sentence.
        format: of the codes, as `insert --format` has it, where the form is neither "fp16" nor "as-is".
    """

    name: str
    form: Form
    steps: tuple[RecipeStep, ...]
    why: str
    format: str = INT8.name

    @property
    def is_float(self) -> bool:
        """Whether nothing of it is quantized."""
        return self.form in ("fp16", "as-is")

    @property
    def title(self) -> str:
        """Its number format, as people write it."""
        return number_format(self.format).title


def candidates_for(target: DeployTarget, effort: Effort) -> list[DeployCandidate]:
    """The candidates of a target: INT8, FP8 where it runs, FP16, and the model as it is, which a DLA does not run."""
    floats = [_fp16(target)]
    if target.kind != "dla":
        floats.append(DeployCandidate("as-is", "as-is", (), "the model as it was given"))
    if not target.int8:
        return floats
    if target.kind == "dla":
        found = _typed_dla(effort) if target.form == "qdq" else _dla_caches(effort)
    elif target.form == "cache":
        found = _gpu_caches(effort)
    else:
        found = _qdq(effort)
        if target.has_caches and effort != "fast":
            found.append(_ptq("entropy", "the cache that TensorRT's own calibrator would give"))
    if target.fp8:
        step = _insert(format=FP8.name) if target.typed else _insert(format=FP8.name, rest="fp16")
        found.append(DeployCandidate("insert-fp8", "qdq", (step,), "codes of floats: no range to choose", FP8.name))
    return [*found, *floats]


def without_shuffles(candidate: DeployCandidate) -> DeployCandidate:
    """A candidate for a DLA whose first step makes convolutions of the channel shuffles, which the DLA does not run."""
    step = candidate_step("lint", select=SHUFFLES, fix=SHUFFLES)
    why = f"{candidate.why}; channel shuffles written as convolutions, which the DLA runs"
    return replace(candidate, name=f"{candidate.name}+{SHUFFLES}", steps=(step, *candidate.steps), why=why)


def candidate_step(verb: str, **options: Scalar) -> RecipeStep:
    """A step by its verb and its own options, `_` for the dashes in their names."""
    return RecipeStep(verb, verb, options={key.replace("_", "-"): value for key, value in options.items()})


def _insert(**options: Scalar) -> RecipeStep:
    return candidate_step("insert", **options)


def _qdq(effort: Effort) -> list[DeployCandidate]:
    """Q/DQ models for a GPU."""
    found = [
        DeployCandidate(
            "insert-auto", "qdq", (_insert(method="auto"),), "the scale of each tensor by the error of its consumers"
        ),
        DeployCandidate(
            "insert-entropy",
            "qdq",
            (_insert(method="entropy", keep_float=0),),
            "TensorRT's own method, everything in INT8",
        ),
    ]
    conditioned = _insert(method="mse", condition="auto")
    if effort != "fast":
        found.append(DeployCandidate("condition", "qdq", (conditioned,), "weights edited first"))
        kept = _insert(method="auto", max_output_loss=0.02)
        found.append(DeployCandidate("keep-float", "qdq", (kept,), "the cheapest operators in float that save most"))
    if effort == "best":
        tune = candidate_step("finetune", steps=FINETUNE_STEPS)
        found.append(DeployCandidate("finetune", "qdq", (_insert(method="auto"), tune), "weights trained for INT8"))
    return found


def _typed_dla(effort: Effort) -> list[DeployCandidate]:
    """Q/DQ models for a DLA that takes them; a BatchNormalization between pairs would stay a layer of its own."""
    found = [
        DeployCandidate(f"insert-{method}", "qdq", (_insert(method=method, fold_bn=True),), "every tensor with a scale")
        for method in ("auto", "entropy")
    ]
    if effort != "fast":
        edited = _insert(method="auto", condition="auto", fold_bn=True)
        found.append(DeployCandidate("condition", "qdq", (edited,), "weights edited first"))
    return found


def _ptq(method: str, why: str) -> DeployCandidate:
    return DeployCandidate(f"ptq-{method}", "cache", (candidate_step("ptq", method=method),), why)


def _peeled(name: str, why: str, *steps: RecipeStep) -> DeployCandidate:
    return DeployCandidate(name, "cache", (*steps, candidate_step("peel")), why)


def _dla_caches(effort: Effort) -> list[DeployCandidate]:
    """Plain models with a scale for every tensor, the only INT8 of a DLA up to TensorRT 10.7."""
    found = [
        _ptq("entropy", "the cache that TensorRT's own calibrator would give"),
        _ptq("mse", "the least squared error of each tensor"),
        _peeled("insert-gpu", "scales of the GPU's plan, the others filled in", _insert(method="auto")),
    ]
    if effort != "fast":
        found.append(_peeled("insert-dla", "every tensor, for the DLA", _insert(method="auto", target="dla")))
        found.append(
            _peeled("condition", "weights edited first", _insert(method="auto", target="dla", condition="auto"))
        )
    if effort == "best":
        tune = candidate_step("finetune", steps=FINETUNE_STEPS)
        found.append(_peeled("finetune", "weights trained for INT8", _insert(method="mse", target="dla"), tune))
    return found


def _gpu_caches(effort: Effort) -> list[DeployCandidate]:
    """Plain models with a cache for a GPU that reads no Q/DQ."""
    found = [
        _ptq("entropy", "the cache that TensorRT's own calibrator would give"),
        _peeled("insert-auto", "the scale of each tensor by the error of its consumers", _insert(method="auto")),
    ]
    if effort != "fast":
        found.append(_ptq("mse", "the least squared error of each tensor"))
        found.append(_peeled("condition", "weights edited first", _insert(method="mse", condition="auto")))
    if effort == "best":
        tune = candidate_step("finetune", steps=FINETUNE_STEPS)
        found.append(_peeled("finetune", "weights trained for INT8", _insert(method="auto"), tune))
    return found


def _fp16(target: DeployTarget) -> DeployCandidate:
    """The model without INT8: types in the file where the target takes them from there, else the builder's choice."""
    steps = (candidate_step("amp"),) if target.typed else ()
    return DeployCandidate("fp16", "fp16", steps, "no INT8 at all")
