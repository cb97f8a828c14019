# SPDX-License-Identifier: Apache-2.0
"""What `insert` is asked for, and what it gives back. `-h` reads the options: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, get_args

from qdqtool.data.options import DataOptions
from qdqtool.display import Displayed, ModelT, counted, model_name, written
from qdqtool.errors import QdqError
from qdqtool.match.options import PlanOptions, keep_float
from qdqtool.observers.options import CalibrationOptions
from qdqtool.options import ADVANCED, TextOption, option
from qdqtool.precision.options import Rest

if TYPE_CHECKING:
    from qdqtool.dla.assignment import DlaReport
    from qdqtool.emit.job import Tensor
    from qdqtool.match.plan import Plan
    from qdqtool.measuring.keep_float import OutputLoss
    from qdqtool.measuring.search_result import SearchResult
    from qdqtool.passes.insert import Inserted
    from qdqtool.scales import ScaleTable
    from qdqtool.verbs.insert_costs import Int8Costs
    from qdqtool.verbs.typed_rest import TypedRest

_SHOWN = 6  # heads that are named


def _range(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        limits = float(low), float(high)
    except ValueError:
        limits = (0.0, 0.0)
    if not colon or not -3e38 < limits[0] < limits[1] < 3e38:
        raise QdqError(f"--input-range {text}", "is not two numbers, the smaller first", "write it like 0:1")
    return limits


@dataclass(frozen=True)
class InsertOptions:
    """How Q/DQ are inserted; what an option's help says in full is not repeated here.

    Attributes:
        plan: target, version, heads, rules.
        calibration: method and provider, or a method's name, where data is given. Without a method: `auto`; `mse` for
            weights that `condition` edited (`default_method`).
        data_options: how data is read.
        fold_constants: their nodes are gone: `peel` gives the model back as it was with its source alone.
        input_range: smallest and largest value of the network's input.
        keep_float: how many operators accuracy may keep in float, or "auto": few, where the loss is concentrated. None
            is "auto" where pairs are placed in a plain model for the GPU by data, else 0; also 0 where `condition`
            has corrected biases already, which would be off in float. Operators by name: `plan.keep_float`.
        max_output_loss: goes with no `keep_float` of its own. The model is written where the loss is missed, too: see
            `InsertResult.misses`.
        condition: "auto", or steps as `condition` takes them; "" for not at all.
        whole_table: whether every float tensor is calibrated, for the table in the metadata; False does the points
            alone, in about half the time, and `peel --target dla` then wants data.
        advise: whether a note says what conditioning is predicted to win, where it is much; takes a look at the data.
        rest: None is "fp16" from TensorRT 11 on, with data or scales, else "fp32" (`precision/rest.py`). Operators
            whose values FP16 does not hold stay FP32.
        opset_lowered_later: the model's opset is lowered before TensorRT reads it: no warning that it is too high.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: TextOption[CalibrationOptions] = TextOption(CalibrationOptions, CalibrationOptions)
    data_options: DataOptions | None = None
    fold_bn: bool = option(
        False, "--fold-bn", "first fold BatchNormalization into the weights, where that is exact", group=ADVANCED
    )
    fold_constants: bool = option(
        False, "--fold-constants", "first store what operators compute from constants alone", group=ADVANCED
    )
    requantize: bool = option(False, "--requantize", "remove the Q/DQ of the model first")
    input_range: tuple[float, float] | None = option(
        None,
        "--input-range",
        "range of the network's input, to estimate scales without data",
        metavar="LO:HI",
        convert=_range,
        group=ADVANCED,
    )
    keep_float: int | Literal["auto"] | None = option(
        None,
        "--keep-float",
        "operators that stay in float: names separated by commas; or how many may stay in float for accuracy: a "
        "number, or auto: a few, where the loss is concentrated (default auto with --data for the GPU, else 0)",
        metavar="N",
        read=keep_float,
    )
    max_output_loss: float | None = option(
        None,
        "--max-output-loss",
        "keep the cheapest operators in float that reduce the loss at the outputs (0 to 1) to L; exit 1 if that is"
        " not reached",
        metavar="L",
        read=float,
    )
    condition: str = option(
        "",
        "--condition",
        "edit weights first: auto, or some of relu6,equalize,smooth,shift,clip,correct; see condition -h",
        metavar="STEPS",
    )
    advise: bool = False
    whole_table: bool = option(
        True,
        "--points-only",
        "calibrate only tensors that get Q/DQ: faster, but peel --target dla then needs --data",
        group=ADVANCED,
    )
    allow_empty: bool = option(
        False,
        "--allow-empty",
        "if nothing can be quantized, write the model without Q/DQ instead of stopping",
        group=ADVANCED,
    )
    build: bool = option(
        False,
        "--build",
        "with --target rtx: build engines of the float, FP16 and INT8 file on this CPU, and say what INT8 costs",
    )
    rest: Rest | None = option(
        None,
        "--rest",
        "float type of operators that are not INT8, written as Casts (default: fp16 with --trt-version 11 or later "
        "and with data or scales; else fp32)",
        choices=get_args(Rest),
    )
    dq_only: bool = option(
        False, "--dq-only", "store quantized weights as INT8, with only a DequantizeLinear after them", group=ADVANCED
    )
    opset_lowered_later: bool = option(False, "--opset-lowered-later", None)


@dataclass(frozen=True, repr=False)
class InsertResult(Displayed, Generic[ModelT]):
    """A Q/DQ model, of the kind that was given (a path for a path), and how it came about.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        plan: what was decided.
        inserted: what was added, what was there.
        table: the scales that were calibrated, given or estimated.
        notes: sentences on what was lifted, folded or guessed.
        output_loss: of the model as it is written, against the float model as it was given; None without data.
        search: what was tried in float for accuracy; None where nothing was to be.
        max_output_loss: what the loss at the outputs was to be at most.
        conditioned: whether `condition` edited the weights, now or before.
        build_warnings: sentences on operators that TensorRT's parser does not import, on an opset that it does not
            read, and on more DLA subgraphs than a core holds.
        costs: of the engines before and after, where `build` asked for them: the compiler's plan, not measured.
        rest: which operators have which float type, where what is not INT8 is FP16 or BF16; else None.
        rest_note: a sentence on what another float type would give; empty where there is nothing to say.
        inputs: of the model, as it declares them.
        requantized: whether pairs that were there were taken out first.
        overwrites: what the file of that name held so far, where that was better: scales that came from data or
            training, in place of which estimated ones were written; else empty.
        has_pairs: whether the model has any Q/DQ, those that no point needs among them.
        dla: what the DLA runs, by the rules; None for another target, and where no version is named.
    """

    model: ModelT
    plan: Plan
    inserted: Inserted
    table: ScaleTable
    notes: tuple[str, ...]
    output_loss: OutputLoss | None = None
    search: SearchResult | None = None
    max_output_loss: float | None = None
    conditioned: bool = False
    build_warnings: tuple[str, ...] = ()
    costs: Int8Costs | None = None
    rest: TypedRest | None = None
    rest_note: str = ""
    inputs: tuple[Tensor, ...] = ()
    requantized: bool = False
    overwrites: str = ""
    has_pairs: bool = True
    dla: DlaReport | None = None

    @property
    def had_pairs(self) -> bool:
        """Whether the model that was given had Q/DQ, so that it is no float model."""
        return bool(self.inserted.kept) or self.requantized

    def headline(self) -> str:
        """What was quantized, what stays in float, the loss at the outputs where it was measured."""
        phrases = [self.plan.headline()]
        if self.output_loss is not None and self.output_loss.value is not None:
            phrases += [f"loss at the outputs {self.output_loss.value:.4g}", self.output_loss.sentence]
        return f"{model_name(self.model)}: {'; '.join(phrases)}"

    def summary(self) -> list[str]:
        """What `qdqtool insert` prints, without what to do next."""
        lines = self.plan.counts()
        as_heads = {one.site for one in self.plan.refusals if one.rule == "float-head"}
        unnamed = {"regression": "unbounded"} if self.plan.head_noun == "output layer" else {}
        labels = {head.name: unnamed.get(head.label, head.label) for head in self.plan.heads}
        floats = [f"{name} ({label})" for name, label in labels.items() if name in as_heads]
        if floats:
            more = f" and {len(floats) - _SHOWN} more" if floats[_SHOWN:] else ""
            lines.append(f"{self.plan.head_noun}s in float: {', '.join(floats[:_SHOWN])}{more}")
        if self.inserted.kept:
            lines.append(f"kept {counted(len(self.inserted.kept), 'pair')} that were there before")
        if self.rest is not None:
            lines += self.rest.lines()
        if self.rest_note:
            lines.append(self.rest_note)
        if self.dla is not None:
            lines += self.dla.summary()
        if self.output_loss is not None:
            lines += self.output_loss.lines()
        if self.costs is not None:
            lines += self.costs.lines()
        return lines + written(self.model)

    def format_loss(self) -> str:
        """What the model loses at its outputs, what was tried in float, and what would reach what was asked for."""
        if self.output_loss is None or self.output_loss.value is None:
            return f"the loss at the outputs was not measured: {self.output_loss.reason if self.output_loss else ''}"
        title = next((point.format.title for point in self.plan.points), "INT8")
        phrases = self.output_loss.warning(title) if self.output_loss.large else [self.output_loss.summary()]
        return "; ".join([*phrases, *(self.search.summary() if self.search is not None else ())])

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that `qdqtool insert` warns of, without the commands that it prints beside the last one."""
        said = (*self.build_warnings, self.overwrite_warning, self.estimate_warning, self.loss_warning)
        return tuple(filter(None, said))

    @property
    def overwrite_warning(self) -> str:
        """Better scales that the file held before."""
        lost = f"{self.model}: replaced a file that held {self.overwrites} by one with estimated scales"
        return f"{lost}; -o writes another file" if self.overwrites else ""

    @property
    def estimate_warning(self) -> str:
        """Scales that no data was seen for."""
        some = counted(self.estimated, "scale")
        return f"{some} estimated without data: calibrate with --data, or fine-tune" if self.estimated else ""

    @property
    def loss_warning(self) -> str:
        """A loss that may be much, or larger than was asked for."""
        if self.misses:
            return f"--max-output-loss {self.max_output_loss}: is not met: {self.format_loss()}"
        large = self.output_loss is not None and self.output_loss.large
        return f"{model_name(self.model)}: {self.format_loss()}" if large else ""

    @property
    def misses(self) -> bool:
        """Whether the loss at the outputs is larger than was asked for, or was not measured though it was asked for."""
        if self.max_output_loss is None:
            return False
        loss = None if self.output_loss is None else self.output_loss.searched
        return loss is None or loss > self.max_output_loss

    @property
    def estimated(self) -> int:
        """How many points have a scale that no data was seen for."""
        fresh = sum(scale.origin == "estimated" for scale in self.inserted.scales.values())
        return fresh + len(self.inserted.estimated)
