# SPDX-License-Identifier: Apache-2.0
"""What the user asks of a training. `-h` reads it: no onnx here.

What `prepare.py` has built of it is a `TrainingRun`; `Length` is what `choose_length` makes of steps and time once
batches can be timed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.options import option
from qdqtool.runtime.execution import PROVIDER
from qdqtool.threads import check_threads
from qdqtool.training.losses.options import WHAT, LossOptions
from qdqtool.training.schedules import HOW_LONG, Schedule

if TYPE_CHECKING:
    from qdqtool.autodiff.backends import BackendName
    from qdqtool.graph.io import ModelSource

Ranges = Literal["fixed", "learn", "ema"]
BatchNorms = Literal["keep", "fold"]
ReducerName = Literal["auto", "mpi", "torch", "mpi=all-reduce", "torch=all-reduce"]
Precision = Literal["fp32", "fp16", "bf16"]
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {"betas": (0.9, 0.999), "epsilon": 1e-8},
    "sgd": {"momentum": 0.9, "nesterov": False},
}
"""Each optimizer and its settings, with their defaults."""

RELATIVE_LR = 0.002
FLOAT_RELATIVE_LR = 0.1  # of a model without Q/DQ, which makes up for more than a rounding; 0.3 won no more
FLOAT_RISE = 1.05  # times the start, of the same without labels: the rate is searched from above; 1.5 won less
FLOAT_EPOCHS = 2000  # of the same: its loss still falls where INT8 has long learned what there is
EMA_DECAY = 0.98
SCALE_LR = 1e-3
MAX_MINUTES = 5.0
_MOST = 1_000_000_000  # updates: years
_MOST_WORKERS = 4096
_HOW, _MEASURING, _KEEPING = "how", "measuring", "long runs"  # titles of groups of options


def optimizer_of(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of ``adamw,betas=0.9:0.999,epsilon=1e-8`` or ``sgd,momentum=0.9,nesterov``, defaults filled in.

    Raises:
        QdqError: no such optimizer or setting, or a number that means nothing.
    """
    name, *words = text.split(",")
    if name not in OPTIMIZERS:
        raise QdqError("--optimizer", f"{name!r} is not one", f"choose one of {', '.join(OPTIMIZERS)}")
    settings = dict(OPTIMIZERS[name])
    for word in words:
        key, equals, value = word.partition("=")
        where = f"--optimizer {name},{key}"
        if key not in settings:
            raise QdqError("--optimizer", f"{key!r} is no setting of {name}", f"{name} has {', '.join(settings)}")
        if (key == "nesterov") == bool(equals):
            raise QdqError(where, "takes no value" if equals else "lacks its value", "see docs/finetune.md")
        try:
            numbers = tuple(map(float, value.split(":"))) if equals else ()
        except ValueError:
            numbers = ()
        if len(numbers) != {"betas": 2, "nesterov": 0}.get(key, 1):
            count = "two numbers such as 0.9:0.999" if key == "betas" else "a number"
            raise QdqError(where, f"{value!r} is not {count}", "leave it out for the default")
        for number in numbers:
            wanted = "more than 0" if key == "epsilon" else "from 0 to below 1"
            _check_number(where, number, wanted, number > 0 if key == "epsilon" else 0 <= number < 1)
        settings[key] = numbers if key == "betas" else numbers[0] if numbers else True
    return name, settings


def _loss_scale(text: str) -> float | Literal["dynamic"]:
    if text == "dynamic":
        return "dynamic"
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither dynamic nor a number") from None


def _augment(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(filter(None, text.split(",")))


@dataclass(frozen=True)
class UpdateOptions:
    """How a gradient becomes an update.

    Attributes:
        optimizer: see `optimizer_of`.
        lr: the rate, of every parameter; None for `relative_lr`.
        relative_lr: the learning rate in INT8 steps of each weight, see `parameters.steps_of_weight`, where it
            is searched `parameters.channel_steps`; for adamw.
        scale_lr: learning rate of the logarithms of learned scales.
        weight_decay: decoupled, on weights of operators only (no biases, BatchNormalization, scales).
        l1: weight of sum |w| over the same weights.
        l2: weight of sum w^2 over the same weights: 2 l2 w is added to the gradient, as in TAO and Keras.
        grad_clip: largest global norm of a gradient; 0 for any.
        ema_decay: decay of the moving average of the weights that is handed out; 0 for none.
        precision: type in which operators of the training graph compute, forward and backward, where `amp` would let
            them; weights, loss and measuring stay FP32.
        loss_scale: factor of the loss in half precision, or "dynamic"; None for "dynamic" with fp16 and 1 with bf16.
        rise: times its start that the measure may rise; then the rate is quartered, and the run goes on from the best
            weights. None for 5 times and half the rate, three times at most.
    """

    optimizer: str = option(
        "adamw",
        "--optimizer",
        "adamw[,betas=A:B][,epsilon=E] (default) or sgd[,momentum=M][,nesterov]",
        metavar="O",
        group=_HOW,
    )
    lr: float | None = option(
        None,
        "--lr",
        "plain learning rate, the same for every weight",
        metavar="R",
        read=float,
        group=_HOW,
        one_of="rate",
    )
    relative_lr: float | None = option(
        None,
        "--relative-lr",
        "learning rate in INT8 steps of each weight",
        metavar="R",
        read=float,
        group=_HOW,
        one_of="rate",
    )
    scale_lr: float = option(
        SCALE_LR, "--scale-lr", "learning rate of the logarithms of learned scales", metavar="R", read=float, group=_HOW
    )
    weight_decay: float = option(
        0.0, "--weight-decay", "weight decay, on weights, not biases (default 0)", metavar="D", read=float, group=_HOW
    )
    l1: float = option(
        0.0, "--l1", "weight of an L1 penalty on the weights (default 0)", metavar="W", read=float, group=_HOW
    )
    l2: float = option(
        0.0, "--l2", "weight of an L2 penalty on the weights (default 0)", metavar="W", read=float, group=_HOW
    )
    grad_clip: float = option(
        1.0,
        "--grad-clip",
        "clip the gradient to this norm; 0: no clipping (default 1)",
        metavar="N",
        read=float,
        group=_HOW,
    )
    ema_decay: float = option(
        EMA_DECAY,
        "--ema-decay",
        "decay of the moving average of the weights; 0: none (default %(default)s)",
        metavar="D",
        read=float,
        group=_HOW,
    )
    precision: Precision = option(
        "fp32",
        "--precision",
        "of the training graph: fp32 (default), fp16 or bf16, with the Casts of amp and FP32 weights",
        choices=get_args(Precision),
        group=_HOW,
    )
    loss_scale: float | Literal["dynamic"] | None = option(
        None,
        "--loss-scale",
        "factor of the loss with --precision: a number, or dynamic (default with fp16)",
        metavar="N",
        read=_loss_scale,
        group=_HOW,
    )
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
        name, _ = optimizer_of(self.optimizer)
        if self.lr is not None and self.relative_lr is not None:
            raise QdqError(
                "--lr", "cannot be combined with --relative-lr: both set the learning rate", "give one of them"
            )
        if name == "sgd" and self.lr is None:
            raise QdqError("--optimizer sgd", "has no default learning rate", "give --lr")
        if self.loss_scale is not None:
            if self.precision == "fp32":
                raise QdqError("--loss-scale", "is for half precision", "give --precision fp16, or leave it out")
            if self.loss_scale != "dynamic":
                _check_number("--loss-scale", self.loss_scale, "more than 0", self.loss_scale > 0)
        for name, value in (("--lr", self.rate), ("--scale-lr", self.scale_lr)):
            _check_number(name, value, "more than 0", value > 0)
        for name, value in (
            ("--weight-decay", self.weight_decay),
            ("--l1", self.l1),
            ("--l2", self.l2),
            ("--grad-clip", self.grad_clip),
        ):
            _check_number(name, value, "0 or more", value >= 0)
        _check_number("--ema-decay", self.ema_decay, "from 0 to below 1", 0 <= self.ema_decay < 1)


def _check_number(name: str, value: float, wanted: str, fine: bool) -> None:
    if not fine or not math.isfinite(value):
        raise QdqError(name, f"{value:g} is not {wanted}", "leave it out for the default")


@dataclass(frozen=True)
class RunOptions:
    """How long it goes on, and what is kept of it.

    Attributes:
        steps: updates in all; None for `epochs`, else as many as `max_minutes` allow, at most `MOST_STEPS`.
        epochs: how often each sample is seen; None for `steps`.
        most_epochs: how often each sample is seen at most where neither is given, in place of `MOST_STEPS`; None for
            what serves a model with Q/DQ.
        max_minutes: CPU minutes, of all threads, after which it ends; None for 5 where neither is given, else any.
        grad_accum: batches whose gradients are averaged for one update; None for 1, or up to 4 where few
            data leave time over. With workers, of each of them.
        workers: processes that share the batches of an update; see `reducers.py`. In Python, a launcher starts them.
        reducer: how they exchange gradients; see step_gradients.py.
        schedule: course of the rate.
        evaluate_every: None for a twentieth of the run, more where measuring costs much.
        keep: checkpoints that stay in the folder that `checkpoint` names; None where it names a file.
        patience: measurements without a gain after which it ends; 0 for no such end.
        threads: of onnxruntime inside one operator.
        progress: whether a bar is drawn on stderr; None draws one where stderr is a terminal.
    """

    steps: int | None = option(
        None,
        "--steps",
        "number of updates (default: as many as --max-minutes allows; 200 per block)",
        metavar="N",
        read=int,
        group=HOW_LONG,
        one_of="length",
    )
    epochs: int | None = option(
        None, "--epochs", "times that each sample is seen", metavar="N", read=int, group=HOW_LONG, one_of="length"
    )
    max_minutes: float | None = option(
        None,
        "--max-minutes",
        "CPU minutes at most (default 5 without --steps and --epochs)",
        metavar="M",
        read=float,
        group=HOW_LONG,
    )
    most_epochs: int | None = None
    grad_accum: int | None = option(
        None, "--grad-accum", "batches averaged in one update (1, or up to 4)", metavar="N", read=int, group=HOW_LONG
    )
    workers: int = option(
        1,
        "--workers",
        "processes that share each update: N workers give the file of one with N times --grad-accum (default 1)",
        metavar="N",
        read=int,
        group=HOW_LONG,
    )
    reducer: ReducerName = option(
        "auto",
        "--reducer",
        "how workers exchange gradients: mpi (mpi4py), torch (torch.distributed), default: the installed one; "
        "=all-reduce adds gradients among the workers, not on rank 0, and its bytes are not those of one worker",
        choices=get_args(ReducerName),
        group=_HOW,
    )
    schedule: Schedule = field(default_factory=Schedule)
    evaluate_every: int | None = option(
        None, "--evaluate-every", "updates between two measurements", metavar="N", read=int, group=_MEASURING
    )
    patience: int = option(
        8,
        "--patience",
        "stop after this many measurements without improvement; 0: never (default %(default)s)",
        metavar="N",
        read=int,
        group=_MEASURING,
    )
    seed: int = option(
        0, "--seed", "seed of all random choices (default %(default)s)", metavar="N", read=int, group=_HOW
    )
    threads: int = option(1, "--threads", "of onnxruntime (%(default)s)", metavar="N", read=int, group=_HOW)
    checkpoint: Path | None = option(
        None, "--checkpoint", "save the progress in F while running", metavar="F", read=Path, group=_KEEPING
    )
    checkpoint_every: int = option(
        50,
        "--checkpoint-every",
        "updates between two checkpoints (default %(default)s)",
        metavar="N",
        read=int,
        group=_KEEPING,
    )
    keep: int | None = option(
        None,
        "--keep",
        "F is a folder: leave the newest N checkpoints there, also when the model is written",
        metavar="N",
        read=int,
        group=_KEEPING,
    )
    resume: bool = option(False, "--resume", "continue from --checkpoint, if there is one", group=_KEEPING)
    keep_checkpoint: bool = option(
        False, "--keep-checkpoint", "do not remove F when the model is written", group=_KEEPING
    )
    log: Path | None = option(
        None,
        "--log",
        "write JSON lines to F, or CSV where F ends in .csv, one for each update",
        metavar="F",
        read=Path,
        group=_KEEPING,
    )
    progress: bool | None = None

    def check(self) -> None:
        """Refuse numbers that mean nothing.

        Raises:
            QdqError: one of them, named.
        """
        self.schedule.check()
        if self.steps is not None and self.epochs is not None:
            raise QdqError("--epochs", "cannot be combined with --steps: both set the length", "give one of them")
        counts = (
            ("--steps", self.steps),
            ("--epochs", self.epochs),
            ("--keep", self.keep),
            ("--grad-accum", self.grad_accum),
            ("--evaluate-every", self.evaluate_every),
            ("--checkpoint-every", self.checkpoint_every),
        )
        for name, value in counts:
            if value is not None and not 1 <= value <= _MOST:
                raise QdqError(name, f"{value} is not a valid number", f"give 1 to {_MOST}")
        check_threads("--threads", self.threads)
        if self.reducer not in get_args(ReducerName):
            raise QdqError(
                "--reducer", f"{self.reducer!r} is no reducer", f"give one of {', '.join(get_args(ReducerName))}"
            )
        if not 1 <= self.workers <= _MOST_WORKERS:
            raise QdqError("--workers", f"{self.workers} is not a valid number", f"give 1 to {_MOST_WORKERS}")
        if self.patience < 0 or self.seed < 0:
            name, value = ("--patience", self.patience) if self.patience < 0 else ("--seed", self.seed)
            raise QdqError(name, f"{value} is below 0", "give 0 or more")
        if self.max_minutes is not None:
            _check_number("--max-minutes", self.max_minutes, "more than 0", self.max_minutes > 0)
        if self.keep_checkpoint and self.checkpoint is None:
            raise QdqError("--keep-checkpoint", "keeps a checkpoint, and none is named", "give --checkpoint F")
        if self.keep is not None and self.checkpoint is None:
            raise QdqError("--keep", "is for a folder of checkpoints, and none is named", "give --checkpoint DIR")
        if self.resume and self.checkpoint is None:
            raise QdqError("--resume", "continues from a checkpoint, and none is named", "give --checkpoint F")

    @property
    def all_reduce(self) -> bool:
        """Whether workers exchange gradients by all-reduce."""
        return self.reducer.endswith("=all-reduce")

    @property
    def seconds(self) -> float | None:
        """CPU seconds after which it ends; None for any."""
        if self.max_minutes is None:
            return MAX_MINUTES * 60 if self.steps is None and self.epochs is None else None
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
        augment: some of flip, crop, color, for pictures without labels or with boxes; None for all of them there.
        equalize: whether channels are equalized within the scales before the first step, where the model in float is
            what is learned and nothing is frozen.
        batch: samples in one run; None for 1, or for what the model fixes.
        memory: bytes of samples that may be held.
    """

    loss: LossOptions = field(default_factory=LossOptions)
    update: UpdateOptions = field(default_factory=UpdateOptions)
    run: RunOptions = field(default_factory=RunOptions)
    ranges: Ranges = option(
        "fixed",
        "--ranges",
        "activation scales: fixed (default), learn (trained), or ema (follow the running range)",
        choices=get_args(Ranges),
        group=WHAT,
    )
    bn: BatchNorms = option(
        "keep",
        "--bn",
        "BatchNormalization: keep (default), or fold into the weights",
        choices=get_args(BatchNorms),
        group=WHAT,
    )
    freeze: tuple[str, ...] = option(
        (), "--freeze", "do not train initializers or nodes of such a name", metavar="RE", repeated=True, group=WHAT
    )
    backend: BackendName = option(
        "auto", "--backend", "of gradients", choices=("auto", "builtin", "ort-training"), group=_HOW
    )
    teacher: ModelSource | None = option(
        None, "--teacher", "FP32 model to distill from (default: MODEL without its Q/DQ)", metavar="T", group=WHAT
    )
    augment: tuple[str, ...] | None = option(
        None,
        "--augment",
        "augmentation of images: none, or some of flip,crop,color (default: all of them, none beside classes)",
        metavar="A",
        convert=_augment,
        group=WHAT,
    )
    equalize: bool = True
    batch: int | None = None
    memory: int = 1 << 30
    provider: str = option("cpu", PROVIDER)
    relu6: bool = option(False, "--relu6", "limit Relu to 6 before Q/DQ are placed in a model without them", group=WHAT)
    blocks: bool = option(
        False, "--blocks", "reconstruct block by block: train each block towards its FP32 outputs", group=WHAT
    )

    @property
    def learns_float(self) -> bool:
        """Whether the model in float is what is learned, and nothing else."""
        return self.teacher is None and not (self.loss.learns_labels or self.loss.distill)

    @property
    def labeled(self) -> bool:
        """Whether a loss reads arrays that the data must hold beside the inputs."""
        return self.loss.learns_labels

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
            ("--epochs", run.epochs),
            ("--max-minutes", run.max_minutes),
            ("--grad-accum", run.grad_accum),
            ("--evaluate-every", run.evaluate_every),
            ("--checkpoint", run.checkpoint),
            ("--workers", run.workers if run.workers > 1 else None),
            ("--precision", None if self.update.precision == "fp32" else self.update.precision),
        )
        for name, value in given:
            if value is not None:
                raise QdqError(
                    name, "cannot be combined with --blocks", "--steps says how many updates each block gets"
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
