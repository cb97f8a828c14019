# SPDX-License-Identifier: Apache-2.0
"""What the user asks of a training. Nothing is decided here but what cannot be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from qdqtool.autodiff.backends import BackendName
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource
from qdqtool.threads import check_threads
from qdqtool.training.losses.options import LossOptions
from qdqtool.training.optimizers import AdamW, Optimizer, Sgd
from qdqtool.training.schedules import Schedule
from qdqtool.training.training_graph import BatchNorms, Ranges

OptimizerName = Literal["adamw", "sgd"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)

RELATIVE_LR = 0.002
FLOAT_RELATIVE_LR = 0.1  # of a model without Q/DQ, which makes up for more than a rounding; 0.3 won no more
FLOAT_RISE = 1.05  # times the start, of the same without labels: the rate is searched from above; 1.5 won less
FLOAT_EPOCHS = 2000  # of the same: its loss still falls where INT8 has long learned what there is
EMA_DECAY = 0.98
SCALE_LR = 1e-3
MAX_MINUTES = 5.0
_MOST = 1_000_000_000  # updates: years


@dataclass(frozen=True)
class UpdateOptions:
    """How a gradient becomes an update.

    Attributes:
        optimizer: adamw or sgd.
        lr: the rate, of every parameter; None for `relative_lr`.
        relative_lr: the learning rate in INT8 steps of each weight, see `parameters.steps_of_weight`, where it
            is searched `parameters.channel_steps`; for adamw.
        scale_lr: learning rate of the logarithms of learned scales.
        betas: of adamw.
        epsilon: of adamw.
        momentum: of sgd.
        nesterov: of sgd.
        weight_decay: decoupled, on weights of operators only (no biases, BatchNormalization, scales).
        l1: weight of sum |w| over the same weights.
        grad_clip: largest global norm of a gradient; 0 for any.
        ema_decay: decay of the moving average of the weights that is handed out; 0 for none.
        rise: times its start that the measure may rise; then the rate is quartered, and the run goes on from the best
            weights. None for 5 times and half the rate, three times at most.
    """

    optimizer: OptimizerName = "adamw"
    lr: float | None = None
    relative_lr: float | None = None
    scale_lr: float = SCALE_LR
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    l1: float = 0.0
    grad_clip: float = 1.0
    ema_decay: float = EMA_DECAY
    rise: float | None = None

    @property
    def relative(self) -> bool:
        """Whether the rate is given in INT8 steps."""
        return self.lr is None

    @property
    def rate(self) -> float:
        """The rate, the default worked out."""
        if self.lr is not None:
            return self.lr
        return RELATIVE_LR if self.relative_lr is None else self.relative_lr

    def check(self) -> None:
        """Refuse numbers that mean nothing, and words that do not go together.

        Raises:
            QdqError: one of them, named.
        """
        if self.optimizer not in OPTIMIZERS:
            raise QdqError("--optimizer", f"{self.optimizer!r} is not one", f"choose one of {', '.join(OPTIMIZERS)}")
        if self.lr is not None and self.relative_lr is not None:
            raise QdqError(
                "--lr", "cannot be combined with --relative-lr: both set the learning rate", "give one of them"
            )
        if self.optimizer == "sgd" and self.lr is None:
            raise QdqError("--optimizer sgd", "has no default learning rate", "give --lr")
        for option, value in (("--lr", self.rate), ("--scale-lr", self.scale_lr), ("--epsilon", self.epsilon)):
            _check_number(option, value, "more than 0", value > 0)
        for option, value in (
            ("--weight-decay", self.weight_decay),
            ("--l1", self.l1),
            ("--grad-clip", self.grad_clip),
        ):
            _check_number(option, value, "0 or more", value >= 0)
        parts = (*(("--betas", beta) for beta in self.betas), ("--momentum", self.momentum))
        for option, value in (*parts, ("--ema-decay", self.ema_decay)):
            _check_number(option, value, "from 0 to below 1", 0 <= value < 1)

    def make(self, size: int) -> Optimizer:
        """The optimizer, for a vector of so many elements."""
        if self.optimizer == "sgd":
            return Sgd(size, self.momentum, self.nesterov)
        return AdamW(size, self.betas, self.epsilon)


def _check_number(option: str, value: float, wanted: str, fine: bool) -> None:
    if not fine or not math.isfinite(value):
        raise QdqError(option, f"{value:g} is not {wanted}", "leave it out for the default")


@dataclass(frozen=True)
class RunOptions:
    """How long it goes on, and what is kept of it.

    Attributes:
        steps: updates in all; None for as many as `max_minutes` allow, at most `MOST_STEPS`.
        most_epochs: how often each sample is seen at most where `steps` is None, in place of `MOST_STEPS`; None for
            what serves a model with Q/DQ.
        max_minutes: CPU minutes, of all threads, after which it ends; None for 5 where `steps` is None, else any.
        grad_accum: batches whose gradients are averaged for one update; None for 1, or up to 4 where few
            data leave time over.
        schedule: course of the rate.
        evaluate_every: updates between two measurements; None for a twentieth of the run, more where measuring
            costs much.
        patience: measurements without a gain after which it ends; 0 for no such end.
        seed: of all that is drawn.
        threads: of onnxruntime inside one operator.
        checkpoint: a file to keep the work in.
        checkpoint_every: updates between two checkpoints.
        resume: whether a checkpoint that is there is continued.
        keep_checkpoint: whether it stays when the model is written.
        log: a file of JSON lines.
        progress: whether a bar is drawn on stderr; None draws one where stderr is a terminal.
    """

    steps: int | None = None
    max_minutes: float | None = None
    most_epochs: int | None = None
    grad_accum: int | None = None
    schedule: Schedule = field(default_factory=Schedule)
    evaluate_every: int | None = None
    patience: int = 8
    seed: int = 0
    threads: int = 1
    checkpoint: Path | None = None
    checkpoint_every: int = 50
    resume: bool = False
    keep_checkpoint: bool = False
    log: Path | None = None
    progress: bool | None = None

    def check(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            QdqError: one of them, named.
        """
        self.schedule.check()
        counts = (("--steps", self.steps), ("--grad-accum", self.grad_accum), ("--evaluate-every", self.evaluate_every))
        for option, value in (*counts, ("--checkpoint-every", self.checkpoint_every)):
            if value is not None and not 1 <= value <= _MOST:
                raise QdqError(option, f"{value} is not a valid number", f"give 1 to {_MOST}")
        check_threads("--threads", self.threads)
        if self.patience < 0 or self.seed < 0:
            option, value = ("--patience", self.patience) if self.patience < 0 else ("--seed", self.seed)
            raise QdqError(option, f"{value} is below 0", "give 0 or more")
        if self.max_minutes is not None:
            _check_number("--max-minutes", self.max_minutes, "more than 0", self.max_minutes > 0)
        if self.keep_checkpoint and self.checkpoint is None:
            raise QdqError("--keep-checkpoint", "keeps a checkpoint, and none is named", "give --checkpoint F")
        if self.resume and self.checkpoint is None:
            raise QdqError("--resume", "continues from a checkpoint, and none is named", "give --checkpoint F")

    @property
    def seconds(self) -> float | None:
        """CPU seconds after which it ends; None for any."""
        if self.max_minutes is None:
            return None if self.steps is not None else MAX_MINUTES * 60
        return self.max_minutes * 60


@dataclass(frozen=True)
class TrainingOptions:
    """All that a training is asked for, in the user's words: `finetune` takes these and a task.

    Attributes:
        loss: what is minimized; without anything, the distance to the model in float.
        update: optimizer and rates.
        run: how long, seed, checkpoint, log.
        ranges: what becomes of scales: fixed, learn, or ema (TAO's moving maximum).
        bn: BatchNormalization: keep trains it as an affine map, fold folds it into the weights first.
        freeze: patterns of initializers and nodes that are not trained.
        backend: what makes gradients.
        teacher: another float model to learn from; None for the model's own float twin.
        augment: some of flip, crop, color, for pictures without labels; None for all of them there.
        equalize: whether channels are equalized within the scales before the first step, where the model in float is
            what is learned and nothing is frozen.
        batch: samples in one run; None for 1, or for what the model fixes.
        memory: bytes of samples that may be held.
        provider: execution provider of onnxruntime (default cpu).
        blocks: whether the network is trained block by block, each to give what its float twin gives.
    """

    loss: LossOptions = field(default_factory=LossOptions)
    update: UpdateOptions = field(default_factory=UpdateOptions)
    run: RunOptions = field(default_factory=RunOptions)
    ranges: Ranges = "fixed"
    bn: BatchNorms = "keep"
    freeze: tuple[str, ...] = ()
    backend: BackendName = "auto"
    teacher: ModelSource | None = None
    augment: tuple[str, ...] | None = None
    equalize: bool = True
    batch: int | None = None
    memory: int = 1 << 30
    provider: str = "cpu"
    blocks: bool = False

    @property
    def learns_float(self) -> bool:
        """Whether the model in float is what is learned, and nothing else."""
        return self.teacher is None and not (self.loss.labels or self.loss.distill or self.loss.script)

    @property
    def labeled(self) -> bool:
        """Whether a loss reads arrays that the data must hold beside the inputs."""
        return bool(self.loss.labels or self.loss.script)

    def check(self) -> None:
        """Refuse numbers that mean nothing, and words that do not go together.

        Raises:
            QdqError: one of them, named.
        """
        self.update.check()
        self.run.check()
        if self.blocks:
            self._check_blocks()

    def _check_blocks(self) -> None:
        """Refuse what a training block by block has no use for."""
        if not self.learns_float:
            reason = "trains towards the model's own FP32 outputs only"
            raise QdqError("--blocks", reason, "leave out --label, --distill, --loss and --teacher")
        if self.ranges == "ema":
            raise QdqError("--ranges ema", "cannot be combined with --blocks", "choose fixed or learn")
        run = self.run
        given = (
            ("--max-minutes", run.max_minutes),
            ("--grad-accum", run.grad_accum),
            ("--evaluate-every", run.evaluate_every),
            ("--checkpoint", run.checkpoint),
        )
        for option, value in given:
            if value is not None:
                raise QdqError(
                    option, "cannot be combined with --blocks", "--steps says how many updates each block gets"
                )


@dataclass(frozen=True)
class Length:
    """How far a training goes, the defaults of `RunOptions` worked out; see run_length.py.

    Attributes:
        steps: updates in all.
        grad_accum: batches whose gradients are averaged for one update.
        evaluate_every: updates between two measurements.
    """

    steps: int
    grad_accum: int = 1
    evaluate_every: int = 50
