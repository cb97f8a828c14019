# SPDX-License-Identifier: Apache-2.0
"""What `finetune` is asked for, and what it gives back. `-h` reads the options: no onnx here.

The file is beside the verb and not in `training/`, as these options name those of `evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from qdqtool.display import Displayed, ModelT, counted, model_name, written
from qdqtool.errors import QdqError
from qdqtool.options import option
from qdqtool.training.losses.options import WHAT
from qdqtool.training.options import TrainingOptions

if TYPE_CHECKING:
    from qdqtool.training.finished_model import OutputGain
    from qdqtool.verbs.validation_metric import TaskMetric


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """How a Q/DQ model is fine-tuned: what `TrainingOptions` lists, and a task.

    Attributes:
        labels: classes or boxes of the data, as `evaluate` takes them, or "folders" where the data tell the classes;
            None for arrays that the loss names, or for none.
        task: measures the task on labeled data in place of the loss; the loss on data without labels.
        decoder: of a detector that learns labels, see `find_decoder`.
        names: its classes, where labels call them by words.
    """

    labels: str | Path | None = option(
        None,
        "--labels",
        "classes or boxes of --data, as evaluate --labels, or the word folders: train on them",
        metavar="L",
        group=WHAT,
    )
    task: TaskMetric | None = None
    decoder: str = "auto"
    names: str | None = None

    def check(self) -> None:
        """Refuse what `TrainingOptions.check` refuses, and labels where blocks are trained.

        Raises:
            QdqError: one of them, named.
        """
        super().check()
        if self.labels is not None and self.blocks:
            reason = "cannot be combined with --blocks, which learn the model's own FP32 outputs"
            raise QdqError("--labels", reason, "leave one of them out")


@dataclass(frozen=True, repr=False)
class FinetuneResult(Displayed, Generic[ModelT]):
    """A fine-tuned model, of the kind that was given, and what training did.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        measure: what was measured on held-out samples: "loss", or the task's metric.
        before: its value at the start, the less the better.
        after: of the model that is handed out.
        step: after how many updates that was; 0 where nothing was better than the start, whose weights come back.
        steps: updates taken.
        planned: updates that were planned.
        seconds: CPU seconds of the loop.
        reason: why it ended.
        trained: how many numbers were trained.
        samples: how many samples were trained on.
        held_samples: how many were held out.
        outputs: each float output against the model in float, before and after; empty where a loss on labels or
            another teacher drew it elsewhere.
        checked: largest relative differences that the checks at the start found: forward, gradients.
        backend: what made gradients.
        notes: sentences for the user.
        in_float: whether the model has no Q/DQ, so that it was trained in float.
        was_plain: whether the model as given had no Q/DQ; JSON has it in `notes`.
    """

    model: ModelT
    measure: str
    before: float
    after: float
    step: int
    steps: int
    planned: int
    seconds: float
    reason: str
    trained: int
    samples: int
    held_samples: int
    outputs: tuple[OutputGain, ...]
    checked: tuple[float, float]
    backend: str
    notes: tuple[str, ...]
    in_float: bool = False
    was_plain: bool = False

    def headline(self) -> str:
        """What was measured on held-out samples, before and after, and how long it took."""
        gain = f"held-out {self.measure} {self.before:.4g} -> {self.after:.4g}"
        return f"{model_name(self.model)}: {gain}, {self.steps} of {counted(self.planned, 'step')}"

    def summary(self) -> list[str]:
        """What `qdqtool finetune` prints."""
        samples = f"{counted(self.samples, 'sample')}, {self.held_samples} held out"
        steps = f"{self.steps} of {counted(self.planned, 'step')}"
        lines = [
            f"trained {self.trained} parameters on {samples}; gradients by {self.backend}",
            f"{steps}, {self.seconds:.0f} CPU seconds: {self.reason}",
            f"held-out {self.measure}: {self.before:.4g} -> {self.after:.4g} (step {self.step})",
        ]
        if self.outputs:
            lines.append("SQNR of outputs to the model in float, on held-out samples (onnxruntime, not TensorRT):")
            lines += [f"  {one.output}: {one.before:.1f} -> {one.after:.1f} dB" for one in self.outputs]
        return lines + written(self.model)

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool finetune --json` prints."""
        fields = {
            name: value for name, value in vars(self).items() if name not in ("model", "outputs", "notes", "was_plain")
        }
        gains = [one.to_json() for one in self.outputs]
        file = str(self.model) if isinstance(self.model, Path) else None
        checks = dict(zip(("forward", "gradients"), self.checked, strict=True))
        return {"schema": 1, "file": file, **fields, "checked": checks, "outputs": gains, "notes": list(self.notes)}
