# SPDX-License-Identifier: Apache-2.0
"""What `amp` is asked for, and what it gives back. `-h` reads the options: no onnx here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

from qdqtool.data.options import DataOptions
from qdqtool.display import Cells, Displayed, ModelT, counted, model_name, written
from qdqtool.errors import QdqError
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import Option, TextOption, option
from qdqtool.precision.options import HalfType
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.precision.choose import TypeChoice
    from qdqtool.precision.value_ranges import ValueRanges

Io = Literal["keep", "fp16"]
_REASONS = 4  # of a kind that are named
# What operators are in FP32 for, in the words of the summary.
_RULES = {
    "kept": "--keep-fp32",
    "operator": "what the operator is",
    "untyped": "a tensor of unknown type",
    "range": "values near the limit of the type",
    "constant": "a constant outside the range of the type",
    "product": "the sums of a product",
    "sum": "a sum of many values",
    "steep": "an input that must not be rounded",
    "singular": "a value that may become 0",
    "faint": "values that are too small",
    "tail": "the digits of scores and coordinates",
    "together": "parts of an operator that is written out",
    "casts": "fewer casts",
    "overflow": "an overflow in the simulation",
    "loss": "--max-output-loss",
    "recorded": "what was chosen before",
}


@dataclass(frozen=True)
class AmpOptions:
    """How a model gets its types.

    Attributes:
        io: with BF16 the types are always kept.
        keep_fp32: regular expressions.
        max_output_loss: takes data.
        assume_range: the user vouches for it.
        calibration: provider and workers.
        data_options: how data is read.
        trt_version: TensorRT that shall build it, 9 or later: one that takes types from the file; None for the newest.
    """

    to: HalfType = option("fp16", "--to", "the half type (default %(default)s)", choices=get_args(HalfType))
    io: Io = option("keep", "--io", "type of float inputs and outputs (default keep: FP32)", choices=get_args(Io))
    keep_fp32: tuple[str, ...] = option(
        (), "--keep-fp32", "operators that stay in FP32: node or output names", metavar="RE", repeated=True
    )
    max_output_loss: float | None = option(
        None,
        "--max-output-loss",
        "keep more operators in FP32, those that lose most first, until the loss at the outputs (0 to 1) is at "
        "most this",
        metavar="L",
        read=float,
    )
    fold_constants: bool = option(False, "--fold-constants", "first store what operators compute from constants alone")
    assume_range: float | None = option(
        None,
        "--assume-range",
        "without data and scales: assume that no activation exceeds N in magnitude",
        metavar="N",
        read=float,
    )
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion,
        parse,
        Option(
            "--trt-version", "TensorRT version that shall build it, 9 or later (default: the newest known)", metavar="V"
        ),
    )

    def __post_init__(self) -> None:
        if self.to not in ("fp16", "bf16"):
            raise QdqError("to", f"{self.to!r} is not a type of 16 bits", "write fp16 or bf16")
        if self.io not in ("keep", "fp16"):
            raise QdqError("io", f"{self.io!r} is not known", "write keep or fp16")
        if self.io == "fp16" and self.to != "fp16":
            raise QdqError("--io fp16", f"needs --to fp16, not {self.to}", "leave --io out")
        if self.max_output_loss is not None and not 0 <= self.max_output_loss <= 1:
            raise QdqError(f"--max-output-loss {self.max_output_loss}", "is not between 0 and 1", "0 is no loss at all")
        if self.assume_range is not None and not 0 < self.assume_range < float("inf"):
            raise QdqError(f"--assume-range {self.assume_range}", "is not a positive number", "such as 1000")
        version = self.trt_version
        if version is not None and not version.has_strong_types:
            reason = f"TensorRT {version.text} takes no types from the file: its builder chooses them"
            raise QdqError("--trt-version", reason, "build the FP32 model with trtexec --fp16, or name 9 or later")


@dataclass(frozen=True, repr=False)
class AmpResult(Displayed, Generic[ModelT]):
    """A typed model, of the kind that was given (a path for a path), and how it came about.

    Attributes:
        model: a path, ModelProto or gs.Graph; None of a dry run.
        choice: the type of every operator, with the reasons.
        ranges: what the choice was made by.
        notes: sentences on what was found on the way.
        output_loss: at the outputs against FP32, by the rounding executor; None where nothing was run.
        max_output_loss: what it was to be at most.
        unchanged: whether the model had these types already, and is given back as it is.
    """

    model: ModelT
    choice: TypeChoice
    ranges: ValueRanges
    notes: tuple[str, ...] = ()
    output_loss: float | None = None
    max_output_loss: float | None = None
    unchanged: bool = False

    def headline(self) -> str:
        """How many operators have which type, what it loses where that was measured."""
        phrases = [self.choice.headline()]
        if self.output_loss is not None:
            phrases.append(f"loss at the outputs {self.output_loss:.2g}")
        return f"{model_name(self.model)}: {'; '.join(phrases)}" if self.model is not None else "; ".join(phrases)

    def summary(self) -> list[str]:
        """What `qdqtool amp` prints, without what to do next."""
        lines = [self.choice.headline(), *self.by_rule()]
        if self.choice.plain_casts > self.choice.casts:
            lines.append(
                f"{self.choice.plain_casts - self.choice.casts} Casts saved by running operators between FP32 ones "
                "in FP32, too"
            )
        if self.output_loss is not None:
            lines.append(
                f"loss at the outputs, simulated with these types: {self.output_loss:.2g} (0: none, 1: all signal lost)"
            )
        return [*lines, *written(self.model)]

    def by_rule(self) -> list[str]:
        """One line for each kind of reason: how many operators are in FP32 for it, the first of them named."""
        kinds: dict[str, list[str]] = {}
        makers: dict[str, None] = {}  # where the types end
        for name, _, rule, text in self.choice.rows()[1:]:
            kinds.setdefault(rule, []).append(name)
            makers |= dict.fromkeys([text.rpartition("; ")[2]] if rule == "untyped" else [])
        causes = {"untyped": f": {', '.join(list(makers)[:_REASONS])}"}
        return [f"  FP32 for {_RULES[rule]}: {_some(names)}{causes.get(rule, '')}" for rule, names in kinds.items()]

    def require_conversion(self, name: object) -> None:
        """Refuse a choice in which no operator changes its type, though nobody asked for that.

        Raises:
            QdqError: every operator stays FP32, for other reasons than `keep_fp32` and `max_output_loss`.
        """
        rules = [rule for _, _, rule, _ in self.choice.rows()[1:]]
        if self.unchanged or self.choice.half or self.choice.int8 or not {"kept", "loss"}.isdisjoint(rules):
            return
        half = self.choice.assignment.rest_name.upper()
        foreign = [note for note in self.notes if note.startswith(("TensorRT cannot parse", "TensorRT needs a plugin"))]
        why = "; ".join([*foreign, *(line.strip() for line in self.by_rule())]) or "it has no float operator"
        raise QdqError(name, f"no operator can be {half}: {why}", "amp --explain names each operator")

    def explained(self) -> list[str]:
        """What `--explain` prints: every operator in FP32 with its reason."""
        cells = self.choice.rows()
        return [self.choice.headline(), *(f"{name} ({op}): {text}" for name, op, _, text in cells[1:])]

    def rows(self) -> Cells:
        """One row for each operator in FP32."""
        return self.choice.rows()

    @property
    def misses(self) -> bool:
        """Whether the loss at the outputs is larger than was asked for."""
        return None not in (self.max_output_loss, self.output_loss) and self.output_loss > self.max_output_loss  # type: ignore[operator]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        choice = self.choice
        facts: dict[str, Any] = {
            "schema": 1,
            "file": None if self.model is None else str(self.model),
            "to": choice.assignment.rest_name,
            "source": self.ranges.source,
            "samples": self.ranges.samples,
            "operators": len(choice.operators),
            "half": choice.half,
            "int8": choice.int8,
            "float32": [dict(zip(("node", "op", "rule", "reason"), row, strict=True)) for row in choice.rows()[1:]],
            "casts": choice.casts,
            "plain_casts": choice.plain_casts,
            "notes": list(self.notes),
        }
        if self.output_loss is not None:
            facts["output_loss"] = self.output_loss
        if self.max_output_loss is not None:
            facts.update(max_output_loss=self.max_output_loss, max_output_loss_met=not self.misses)
        return facts


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _REASONS} more" if names[_REASONS:] else ""
    return f"{counted(len(names), 'operator')} ({', '.join(names[:_REASONS])}{more})"
