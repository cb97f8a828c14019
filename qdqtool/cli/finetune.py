# SPDX-License-Identifier: Apache-2.0
"""`qdqtool finetune`: a Q/DQ model and data to the same model with better weights. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.next_steps import after_finetune
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.report_option import add_report_argument, check_report, write_report
from qdqtool.errors import QdqError
from qdqtool.training.losses.options import LossOptions, parse_distill, parse_label
from qdqtool.training.schedules import Schedule

if TYPE_CHECKING:
    from qdqtool.verbs.finetune import FinetuneOptions
    from qdqtool.verbs.validation_metric import TaskMetric

_LABEL = (
    "OUTPUT:KIND[:WEIGHT[:ARRAY]], a loss on labels in the data: ce, focal, sigmoid-focal, bce, smooth-l1, mse, ..."
)
_BIND = "STUDENT:TEACHER:KIND[:WEIGHT], distillation of named tensors: L1, L2, KL[=temperature] or COS"
_SHAPES = ("cosine", "soft-start", "linear", "constant")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, which is not changed")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.set_defaults(batch=None)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="default: beside MODEL, with .finetuned.onnx for its ending"
    )
    add_report_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_what(parser.add_argument_group("what is trained, and on what loss"))
    _add_how_long(parser.add_argument_group("how long"))
    _add_how(parser.add_argument_group("how"))
    _add_measuring(parser.add_argument_group("measuring"))
    _add_keeping(parser.add_argument_group("long runs"))


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ranges",
        choices=("fixed", "learn", "ema"),
        default="fixed",
        help="activation scales: fixed (default), learn (trained), or ema (follow the running range)",
    )
    group.add_argument(
        "--bn",
        choices=("keep", "fold"),
        default="keep",
        help="BatchNormalization: keep (default), or fold into the weights",
    )
    group.add_argument(
        "--freeze", metavar="RE", action="append", default=[], help="do not train initializers or nodes of such a name"
    )
    group.add_argument("--label", metavar="L", action="append", default=[], help=_LABEL)
    group.add_argument("--teacher", metavar="T", help="FP32 model to distill from (default: MODEL without its Q/DQ)")
    group.add_argument("--distill", metavar="B", action="append", default=[], help=_BIND)
    group.add_argument("--loss", metavar="F", help="script.py:function that builds loss terms")
    group.add_argument(
        "--distill-weight", metavar="W", type=float, help="weight of the loss against the teacher's tensors"
    )
    group.add_argument(
        "--equalize",
        choices=("auto", "none"),
        default="auto",
        help="equalize channels before the first step (default auto: if that reduces the loss)",
    )
    group.add_argument(
        "--blocks", action="store_true", help="reconstruct block by block: train each block towards its FP32 outputs"
    )
    group.add_argument(
        "--augment",
        metavar="A",
        help="augmentation of images: none, or some of flip,crop,color (default: all of them without labels)",
    )


def _add_how_long(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--steps",
        metavar="N",
        type=int,
        help="number of updates (default: as many as --max-minutes allows; 200 per block)",
    )
    group.add_argument("--max-minutes", metavar="M", type=float, help="CPU minutes at most (default 5 without --steps)")
    group.add_argument("--grad-accum", metavar="N", type=int, help="batches averaged in one update (1, or up to 4)")
    group.add_argument("--schedule", choices=_SHAPES, default="cosine", help="learning-rate schedule (default cosine)")
    group.add_argument(
        "--warmup", metavar="P", type=float, default=0.05, help="share of the run with a rising learning rate"
    )
    group.add_argument(
        "--soft-start",
        metavar="P",
        type=float,
        default=0.1,
        help="soft-start: share of the run until the rate is full (default 0.1)",
    )
    group.add_argument(
        "--annealing",
        metavar="P",
        type=float,
        default=0.7,
        help="soft-start: share of the run after which the rate falls (default 0.7)",
    )
    group.add_argument(
        "--min-lr-ratio",
        metavar="P",
        type=float,
        default=0.01,
        help="final learning rate as a share of the full one (default 0.01)",
    )


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="adamw (default) or sgd")
    rate = group.add_mutually_exclusive_group()
    rate.add_argument("--relative-lr", metavar="R", type=float, help="learning rate in INT8 steps of each weight")
    rate.add_argument("--lr", metavar="R", type=float, help="plain learning rate, the same for every weight")
    group.add_argument("--scale-lr", metavar="R", type=float, help="learning rate of the logarithms of learned scales")
    group.add_argument(
        "--betas", metavar="A:B", type=_betas, default=(0.9, 0.999), help="betas of adamw (default 0.9:0.999)"
    )
    group.add_argument("--epsilon", metavar="E", type=float, default=1e-8, help="epsilon of adamw (default 1e-8)")
    group.add_argument("--momentum", metavar="M", type=float, default=0.9, help="momentum of sgd (default 0.9)")
    group.add_argument("--nesterov", action="store_true", help="of sgd")
    group.add_argument(
        "--weight-decay", metavar="D", type=float, default=0.0, help="weight decay, on weights, not biases (default 0)"
    )
    group.add_argument(
        "--l1", metavar="W", type=float, default=0.0, help="weight of an L1 penalty on the weights (default 0)"
    )
    group.add_argument(
        "--grad-clip",
        metavar="N",
        type=float,
        default=1.0,
        help="clip the gradient to this norm; 0: no clipping (default 1)",
    )
    group.add_argument(
        "--ema-decay",
        metavar="D",
        type=float,
        default=0.98,
        help="decay of the moving average of the weights; 0: none (default 0.98)",
    )
    group.add_argument("--backend", choices=("auto", "builtin", "ort-training"), default="auto", help="of gradients")
    group.add_argument("--threads", metavar="N", type=int, default=1, help="of onnxruntime (1)")
    group.add_argument("--seed", metavar="N", type=int, default=0, help="seed of all random choices (default 0)")


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--evaluate-every", metavar="N", type=int, help="updates between two measurements")
    group.add_argument(
        "--patience",
        metavar="N",
        type=int,
        default=8,
        help="stop after this many measurements without improvement; 0: never (default 8)",
    )
    group.add_argument("--eval-data", metavar="D", help="labeled data: measure the task instead of the loss")
    group.add_argument("--eval-labels", metavar="L", help="its labels, as evaluate --labels")
    group.add_argument("--eval-metric", choices=("top1", "coco", "voc"), help="as evaluate --metric")
    group.add_argument("--eval-decoder", metavar="D", default="auto", help="as evaluate --decoder")
    group.add_argument("--eval-names", metavar="N", help="as evaluate --names")


def _add_keeping(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--checkpoint", metavar="F", type=Path, help="save the progress in F while running")
    group.add_argument(
        "--checkpoint-every", metavar="N", type=int, default=50, help="updates between two checkpoints (default 50)"
    )
    group.add_argument("--resume", action="store_true", help="continue from --checkpoint, if the file exists")
    group.add_argument("--keep-checkpoint", action="store_true", help="do not remove F when the model is written")
    group.add_argument("--log", metavar="F", type=Path, help="write JSON lines to F, one for each update")


def run(args: argparse.Namespace) -> int:
    """Train, write the model, say what came of it; faults are raised as QdqError."""
    from qdqtool.verbs.finetune import finetune

    options = _options(args)
    args.batch = 1  # the loader's; training makes its own
    judged_by = args.eval_data, args.eval_labels, args.eval_names
    check_report(args, args.teacher, args.loss, *judged_by, alone=True)
    result = finetune(args.model, args.data, options, data_options_from(args), output=args.output)
    for note in result.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(result.to_json())
    else:
        print_lines([*result.summary(), *after_finetune(args, result)], args)
    lines = write_report(args, result.model, log=args.log, data=args.data, data_options=data_options_from(args))
    print_lines([] if args.json else lines, args)
    return 0


def _options(args: argparse.Namespace) -> FinetuneOptions:
    from qdqtool.training.options import SCALE_LR, RunOptions, UpdateOptions
    from qdqtool.verbs.finetune import FinetuneOptions

    labels, bindings = tuple(map(parse_label, args.label)), tuple(map(parse_distill, args.distill))
    update = UpdateOptions(
        optimizer=args.optimizer,
        lr=args.lr,
        relative_lr=args.relative_lr,
        scale_lr=SCALE_LR if args.scale_lr is None else args.scale_lr,
        betas=args.betas,
        epsilon=args.epsilon,
        momentum=args.momentum,
        nesterov=args.nesterov,
        weight_decay=args.weight_decay,
        l1=args.l1,
        grad_clip=args.grad_clip,
        ema_decay=args.ema_decay,
    )
    run = RunOptions(
        steps=args.steps,
        max_minutes=args.max_minutes,
        grad_accum=args.grad_accum,
        schedule=Schedule(args.schedule, args.warmup, args.soft_start, args.annealing, args.min_lr_ratio),
        evaluate_every=args.evaluate_every,
        patience=args.patience,
        seed=args.seed,
        threads=args.threads,
        checkpoint=args.checkpoint,
        checkpoint_every=args.checkpoint_every,
        resume=args.resume,
        keep_checkpoint=args.keep_checkpoint,
        log=args.log,
        progress=False if args.quiet else None,
    )
    return FinetuneOptions(
        loss=LossOptions(labels, bindings, args.loss, args.distill_weight),
        update=update,
        run=run,
        ranges=args.ranges,
        bn=args.bn,
        freeze=tuple(args.freeze),
        backend=args.backend,
        teacher=args.teacher,
        augment=_augment(args.augment),
        equalize=args.equalize == "auto",
        batch=args.batch,
        task=_task(args),
        provider=args.provider,
        blocks=args.blocks,
    )


def _augment(text: str | None) -> tuple[str, ...] | None:
    """The steps named; None where nothing was said."""
    if text is None:
        return None
    return () if text == "none" else tuple(filter(None, text.split(",")))


def _task(args: argparse.Namespace) -> TaskMetric | None:
    """What measures the task; None where the loss does."""
    if args.eval_data is None:
        for option in ("eval_labels", "eval_metric", "eval_names"):
            if getattr(args, option) is not None:
                raise QdqError(f"--{option.replace('_', '-')}", "belongs to --eval-data, which is not given", "give it")
        return None
    from qdqtool.verbs.evaluate import EvaluateOptions
    from qdqtool.verbs.validation_metric import TaskMetric

    how = EvaluateOptions(metric=args.eval_metric, decoder=args.eval_decoder, names=args.eval_names, progress=False)
    return TaskMetric(
        args.eval_data,
        args.eval_labels,
        how,
        data_options_from(argparse.Namespace(**{**vars(args), "batch": 1, "limit": None})),
    )


def _betas(text: str) -> tuple[float, float]:
    first, _, second = text.partition(":")
    try:
        return float(first), float(second)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers such as 0.9:0.999") from None
