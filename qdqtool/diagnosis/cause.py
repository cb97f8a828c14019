# SPDX-License-Identifier: Apache-2.0
"""A cause of a loss as a value: name, places, evidence, remedy, gain. How it is found is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qdqtool.display import Cells, Displayed, counted, finite_only, named
from qdqtool.evaluation.bootstrap import UNKNOWN, Interval
from qdqtool.recipe.values import OptionValue, RecipeStep

CauseName = Literal[
    "zero points",
    "per-tensor weights",
    "preprocessing",
    "calibration data",
    "saturated tensor",
    "dead tensor",
    "outliers",
    "head in INT8",
    "incomplete attention",
    "FP16 overflow",
    "few channels",
    "SiLU or depthwise",
]


LEAST_GAIN = 0.01  # of a cause, and the least loss that needs one: less, no metric shows
WITH_CACHES = "10.3"  # a version that peel takes, which writes a cache beside the plain model


@dataclass(frozen=True, repr=False)
class Cause(Displayed):
    """One cause of a loss.

    Attributes:
        name: what is wrong.
        where: tensors or operators, the worst first.
        evidence: facts with their figures, with semicolons between and without a stop.
        remedy: the step that does away with it, and changes nothing else where a step can do that. `insert` takes the
            FP32 model, or the Q/DQ model with --requantize; `graft` the FP32 model and the cache of the Q/DQ model.
        gain: what one change, which does away with this cause alone, takes off the loss at the outputs; None where that
            was not measured.
        unmeasured: why it was not.
        figures: the figures of the evidence.
        refused: whether TensorRT refuses the model for it.
        brought: what the remedy takes off the loss, run on the half of the data that ranges come from; None where that
            was not measured.
    """

    name: CauseName
    where: tuple[str, ...]
    evidence: str
    remedy: RecipeStep
    gain: float | None = None
    unmeasured: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    refused: bool = False
    brought: float | None = None

    def headline(self) -> str:
        """Name, evidence and gain."""
        return f"{self.name}: {self.evidence}; {self.gain_text()}"

    def summary(self) -> list[str]:
        """Name and evidence, a fact on each line, then the gain."""
        first, *more = self.evidence.split("; ")
        return [f"{self.name}: {first}", *(f"  {fact}" for fact in (*more, self.gain_text()))]

    def gain_text(self) -> str:
        """The expected gain in words: of the change, and of the command where that was run."""
        if self.gain is None:
            said = f"gain not measured ({self.unmeasured})"
        else:
            said = f"without it the loss at the outputs is {_less(self.gain)}"
        if self.brought is not None:
            takes = f"takes {self.brought:.4g} off" if self.brought >= 0 else f"makes it {_less(self.brought)}"
            said = f"{said}; its command {takes}"
        if self.gain is not None and self.gain < LEAST_GAIN:
            said += "; labels tell whether it costs accuracy"
        return said

    def commands(self, model: str, output: str, data: Sequence[str] = (), source: str | None = None) -> list[list[str]]:
        """The words behind `qdqtool` that carry out the remedy: one command, or two where the plain model is needed.

        Args:
            model: the file of the Q/DQ model.
            output: the file that is written.
            data: the words that name the data.
            source: the file of the FP32 model, where there is one.
        """
        words = _words(self.remedy.options)
        stem = output.removesuffix(".onnx")
        if self.remedy.verb == "graft":
            peeled = ["peel", model, "--target", "gpu", "--trt-version", WITH_CACHES]
            peeled += ["-o", f"{stem}.plain.onnx", "--cache", f"{stem}.cache"]
            plain = f"{stem}.plain.onnx" if source is None else source
            return [peeled, ["graft", plain, "--cache", f"{stem}.cache", *words, "-o", output]]
        before = []
        if source is None and ("condition" in self.remedy.options or self.name == "FP16 overflow"):
            source = f"{stem}.plain.onnx"
            files = ["-o", source, "--cache", f"{stem}.cache"]
            before = [["peel", model, "--target", "gpu", "--trt-version", WITH_CACHES, *files]]
        if source is None:  # --requantize keeps the types that are in the file
            options = {name: value for name, value in self.remedy.options.items() if name != "rest"}
            given, words = [model, "--requantize"], _words(options)
        else:
            given = [source]
        return [*before, [self.remedy.verb, *given, *data, *words, "-o", output]]

    def to_json(self) -> dict[str, Any]:
        """The cause as JSON values."""
        return {
            "name": self.name,
            "where": list(self.where),
            "evidence": self.evidence,
            "figures": dict(self.figures),
            "remedy": {"verb": self.remedy.verb, "options": dict(self.remedy.options)},
            "gain": self.gain,
            "unmeasured": self.unmeasured,
            "brought": self.brought,
            "refused": self.refused,
        }


def _less(gain: float) -> str:
    return f"{gain:.4g} less" if gain >= 0 else f"{-gain:.4g} more"


def _words(options: Mapping[str, OptionValue]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True, repr=False)
class LossCauses(Displayed):
    """What a Q/DQ model loses at its outputs, and why.

    Attributes:
        causes: faults of the Q/DQ model first, then traits of the network, whose gains are those without the faults. In
            both the causes for which TensorRT refuses the model are first, then by gain, those not measured last.
        loss: at the outputs against the float model, 0 to 1 (`measuring/output_loss.py`); None where it was not
            measured.
        samples: how many the loss and the gains were measured on.
        notes: sentences: what was not measured, and why.
        interval: of the loss, 95 %.
    """

    causes: tuple[Cause, ...]
    loss: float | None
    samples: int
    notes: tuple[str, ...] = ()
    interval: Interval = UNKNOWN

    @property
    def unexplained(self) -> bool:
        """Whether something is lost and no cause was found."""
        return not self.causes and self.loss is not None and self.loss >= LEAST_GAIN

    def headline(self) -> str:
        """The likely cause, or that there is none."""
        if not self.causes:
            lost = "" if self.loss is None else f": {self.loss:.4g} is lost at the outputs"
            return f"no cause of {'the' if self.unexplained else 'a'} loss found{lost}"
        more = f"; then {named([one.name for one in self.causes[1:]])}" if self.causes[1:] else ""
        return f"likely cause: {self.causes[0].headline()}{more}"

    def summary(self) -> list[str]:
        """The loss, a few lines for each cause, the notes."""
        of = f"{self.interval.phrase()}{counted(self.samples, 'sample')}"
        lost = [] if self.loss is None else [f"loss at the outputs: {self.loss:.4g} ({of})"]
        lost += ["no cause of it was found"] if self.unexplained else []
        return [*lost, *(line for one in self.causes for line in one.summary()), *self.notes]

    def rows(self) -> Cells:
        """One row for each cause."""
        rows = [(one.name, named(one.where, 3), one.evidence, one.gain_text()) for one in self.causes]
        return [("cause", "where", "evidence", "gain"), *rows] if rows else ()

    def to_json(self) -> dict[str, Any]:
        """The causes as JSON values."""
        return {
            "loss": self.loss,
            **finite_only({"low": self.interval.low, "high": self.interval.high}),
            "samples": self.samples,
            "causes": [one.to_json() for one in self.causes],
            "notes": list(self.notes),
        }
