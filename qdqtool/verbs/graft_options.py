# SPDX-License-Identifier: Apache-2.0
"""What `graft` is asked for, and what it gives back. `-h` reads the options: no onnx here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, get_args

from qdqtool.data.options import DataOptions
from qdqtool.display import Displayed, ModelT, counted, model_name, named, written
from qdqtool.match.options import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import TextOption, option
from qdqtool.precision.options import Rest

if TYPE_CHECKING:
    from qdqtool.dla.assignment import DlaReport
    from qdqtool.match.plan import Plan
    from qdqtool.measuring.keep_float import OutputLoss
    from qdqtool.passes.insert import Inserted
    from qdqtool.verbs.typed_rest import TypedRest


@dataclass(frozen=True)
class GraftOptions:
    """How a cache goes into a model.

    Attributes:
        plan: target, version, heads, rules. Heads with a scale are quantized unless `float_heads` says otherwise.
        rest: None is "fp16" from TensorRT 11 on, else "fp32". Operators whose values FP16 does not hold stay FP32: by
            data, else by the cache's scales.
        calibration: provider and workers, where data choose the types.
        data_options: how data is read.
    """

    plan: PlanOptions = field(default_factory=lambda: PlanOptions(float_heads="none"))
    everywhere: bool = option(False, "--everywhere", "use every entry, also where the rules place no pair")
    requantize: bool = option(False, "--requantize", "remove the Q/DQ of the model first")
    rest: Rest | None = option(
        None,
        "--rest",
        "float type of operators that are not INT8, written as Casts (default: fp16 with --trt-version 11 or later; "
        "else fp32)",
        choices=get_args(Rest),
    )
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None
    force: bool = option(
        False, "--force", "take a cache that is of another export by the model's constants or its shifted names, too"
    )


@dataclass(frozen=True, repr=False)
class GraftResult(Displayed, Generic[ModelT]):
    """A Q/DQ model, of the kind that was given, and what became of each entry of the cache.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        plan: what was placed, and what was left in float without a scale.
        inserted: what was added.
        unplaced: entry without a point -> why.
        unknown: entry whose tensor the model lacks -> the nearest names it has.
        made_up: entries whose names TensorRT makes up while it reads a model: no model has them.
        uncovered: float tensors of the model as given that the cache lacks.
        filled: tensors whose scale is from data, since the cache lacks them.
        lent: tensors that the cache lacks, with the scale of one that has the same values -> which.
        data: what the data was, see `DataLoader.facts`; None where there was none.
        notes: sentences on what was lifted, and on entries that hold no scale.
        rest: which operators have which float type, where what is not INT8 is FP16 or BF16; else None.
        warnings: sentences on what of the data is left out, and on products that build in float for want of a scale.
        starved: those products -> the tensors that they read and that have no scale.
        output_loss: of the model as it is written, against the float model; None without data.
        dla: what the DLA runs, by the rules; None for another target.
    """

    model: ModelT
    plan: Plan
    inserted: Inserted
    unplaced: dict[str, str]
    unknown: dict[str, tuple[str, ...]]
    made_up: tuple[str, ...]
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]
    rest: TypedRest | None = None
    filled: tuple[str, ...] = ()
    lent: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    starved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    output_loss: OutputLoss | None = None
    dla: DlaReport | None = None

    def headline(self) -> str:
        """What was placed, what was not, what the model lacks."""
        phrases = [self._placed()]
        phrases += [f"{len(self.unplaced)} entries not used"] if self.unplaced else []
        phrases += [f"{len(self.unknown)} names that the model lacks"] if self.unknown else []
        return f"{model_name(self.model)}: {'; '.join(phrases)}"

    def summary(self) -> list[str]:
        """What `qdqtool graft` prints."""
        lines = [self._placed()]
        if self.unplaced:
            lines.append(f"{counted(len(self.unplaced), 'entry')} of the cache not used:".replace("entrys", "entries"))
            reasons: dict[str, list[str]] = {}
            for name, reason in self.unplaced.items():
                reasons.setdefault(reason.split(" of ")[0], []).append(name)
            lines += [f"  {len(names)} {reason}, such as {names[0]}" for reason, names in reasons.items()]
        if self.unknown:
            shown = [name + (f" (near: {', '.join(near)})" if near else "") for name, near in self.unknown.items()]
            lines.append(f"{counted(len(shown), 'name')} that the model lacks: {named(shown)}")
        if self.made_up:
            names = counted(len(self.made_up), "name")
            lines.append(f"{names} that TensorRT generated, which no model has, such as {self.made_up[0]}")
        if self.uncovered:
            lacking = counted(len(self.uncovered), "float tensor")
            lines.append(f"{lacking} of the model not in the cache, such as {self.uncovered[0]}")
        starved = [r.site for r in self.plan.refusals if r.rule == "no-scale"]
        if starved:
            lines.append(f"{len(starved)} tensors have no scale and stay in float, such as {starved[0]}")
        if self.rest is not None:
            lines += [*self._mostly_float32(self.rest), *self.rest.lines()]
        if self.dla is not None:
            lines += self.dla.summary()
        if self.output_loss is not None:
            lines += self.output_loss.lines()
        return lines + written(self.model)

    def _mostly_float32(self, rest: TypedRest) -> list[str]:
        """That most of the engine will be FP32 for want of data, where that is so."""
        unknown = any(one.rule == "range" for one in rest.choice.reasons.values())
        slow, total = rest.products["FP32"], sum(rest.products.values())
        if self.data is not None or not unknown or 2 * slow <= total:
            return []
        share = f"{slow} of {counted(total, 'convolution')} and matrix products"
        return [f"this engine will be mostly FP32 ({share}): the cache does not have their values; give --data"]

    def _placed(self) -> str:
        again = [point.tensor for point in self.plan.activations if point.repeats]
        own = len(self.plan.activations) - len(self.filled) - len(again)
        phrases = [f"placed {counted(own, 'scale')} of the cache"]
        lenders = [f"{name} from {lender}" for name, lender in self.lent.items()]
        phrases[0] += f", {len(lenders)} of them of a tensor with the same values ({named(lenders)})" if lenders else ""
        phrases += [f"{len(self.filled)} from data ({named(self.filled)})"] if self.filled else []
        phrases += [f"{len(again)} with the scale of the pair before ({named(again)})"] if again else []
        weights = counted(len(self.plan.weights), "weight")
        return f"{', '.join(phrases)}, and pairs on {weights}"
