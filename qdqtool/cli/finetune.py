# SPDX-License-Identifier: Apache-2.0
"""`qdqtool finetune`: a Q/DQ model and data to the same model, trained. Parses arguments and prints results."""

from __future__ import annotations

import argparse
import io
import json
import os
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, group_named, options_from
from qdqtool.cli.next_steps import after_finetune
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.report_option import add_report_argument, check_report, write_report
from qdqtool.errors import QdqError
from qdqtool.training.losses.options import WHAT, LossOptions
from qdqtool.training.options import RunOptions, UpdateOptions
from qdqtool.training.schedules import Schedule
from qdqtool.verbs.finetune_options import FinetuneOptions

if TYPE_CHECKING:
    from qdqtool.verbs.validation_metric import TaskMetric


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument(
        "model", metavar="MODEL", help="the model, which is not changed; without Q/DQ it gets them first"
    )
    add_data_arguments(parser, required=True, calibrates=False).add_argument(
        "--benchmark",
        metavar="STEPS",
        type=int,
        help="write nothing: train on made-up data and print images/s and shares of time, by workers",
    )
    parser.set_defaults(batch=None)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="default: beside MODEL, with .finetuned.onnx for its ending"
    )
    add_report_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser, LossOptions)
    add_options(parser, FinetuneOptions, without=("provider", "backend"))
    group_named(parser, WHAT).add_argument(
        "--equalize",
        choices=("auto", "none"),
        default="auto",
        help="equalize channels before the first step (default auto: if that reduces the loss)",
    )
    how_long = ("steps", "epochs", "max_minutes", "grad_accum", "workers")
    add_options(parser, RunOptions, only=how_long)
    add_options(parser, Schedule)
    how = group_named(parser, "how")
    rate = ("optimizer", "relative_lr", "lr")
    add_options(how, UpdateOptions, only=rate)
    add_options(how, UpdateOptions, without=rate)
    add_options(how, FinetuneOptions, only=("backend",))
    add_options(parser, RunOptions, without=how_long)
    measuring = group_named(parser, "measuring")
    measuring.add_argument("--eval-data", metavar="D", help="labeled data: measure the task instead of the loss")
    measuring.add_argument("--eval-labels", metavar="L", help="its labels, as evaluate --labels")
    measuring.add_argument("--eval-metric", choices=("top1", "coco", "voc", "miou"), help="as evaluate --metric")
    measuring.add_argument("--eval-decoder", metavar="D", default="auto", help="as evaluate --decoder; of --labels too")
    measuring.add_argument("--eval-names", metavar="N", help="as evaluate --names; of --labels too")


def run(args: argparse.Namespace) -> int:
    """Train, write the model, say what came of it; faults are raised as QdqError."""
    from qdqtool.training.launch import LOST, STARTED, LostWorkerError, launch, launched

    options = _options(args)
    rank, started = launched()
    if args.benchmark is not None:
        return _benchmark(args, options, rank, started)
    if options.run.workers > 1 and started == 1:
        options.check()
        raise SystemExit(launch(args.words, options.run.workers, options.run.reducer))
    from qdqtool.verbs.finetune import finetune

    args.batch = 1  # the loader's; training makes its own
    judged_by = args.eval_data, args.eval_labels, args.eval_names
    check_report(args, args.teacher, args.loss, args.labels, *judged_by)
    reference = args.teacher
    if args.report is not None and reference is None:
        from qdqtool.workflows.report_look import float_form

        reference = float_form(args.model)
    try:
        result = finetune(args.model, args.data, options, data_options_from(args), output=args.output)
    except (LostWorkerError, KeyboardInterrupt) as error:
        lost = isinstance(error, LostWorkerError)
        if rank:  # rank 0 says it, or `launch`, once
            raise SystemExit(2 if lost else 130) from None
        if lost and STARTED in os.environ:
            raise SystemExit(LOST) from None
        raise
    if rank:
        return 0
    for note in result.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(result.to_json())
    else:
        print_lines([*result.summary(), *after_finetune(args, result)], args)
    judging = {"reference": reference, "data": args.data, "data_options": data_options_from(args)}
    lines = write_report(args, result.model, log=args.log, **judging)
    print_lines([] if args.json else lines, args)
    return 0


def _benchmark(args: argparse.Namespace, options: FinetuneOptions, rank: int, started: int) -> int:
    """Measure with 1, 2, 4 and so on up to `--workers` processes; below a launcher with all that it started."""
    from qdqtool.training.launch import launch
    from qdqtool.verbs.finetune_benchmark import TrainingSpeed, measure_training, speed_table, speeds_to_json

    for option in ("output", "report"):
        if getattr(args, option) is not None:
            raise QdqError(f"--{option}", "cannot be combined with --benchmark, which writes nothing", "leave it out")
    most = options.run.workers
    if most > 1 and started == 1:
        options.check()
        speeds = list[TrainingSpeed]()
        for workers in sorted({*(1 << power for power in range(most.bit_length() - 1)), most}):
            printed = io.StringIO()
            with redirect_stdout(printed):
                code = launch([*args.words, "--workers", str(workers), "--json"], workers, options.run.reducer)
            if code:
                raise SystemExit(code)
            speeds += [TrainingSpeed(**row) for row in json.loads(printed.getvalue())["rows"]]
    else:
        speed = measure_training(args.model, args.benchmark, options)
        speeds = [] if speed is None else [speed]
    if rank:
        return 0
    if args.json:
        print_json(speeds_to_json(speeds))
    else:
        print_lines(speed_table(speeds), args, asked=True)
    return 0


def _options(args: argparse.Namespace) -> FinetuneOptions:
    return options_from(
        FinetuneOptions,
        args,
        loss=options_from(LossOptions, args),
        update=options_from(UpdateOptions, args),
        run=options_from(
            RunOptions, args, schedule=options_from(Schedule, args), progress=False if args.quiet else None
        ),
        equalize=args.equalize == "auto",
        batch=args.batch,
        task=_task(args),
        decoder=args.eval_decoder,
        names=args.eval_names,
    )


def _task(args: argparse.Namespace) -> TaskMetric | None:
    """What measures the task; None where the loss does."""
    if args.eval_data is None:
        for option in ("eval_labels", "eval_metric", *(() if args.labels else ("eval_names",))):
            if getattr(args, option) is not None:
                raise QdqError(f"--{option.replace('_', '-')}", "belongs to --eval-data, which is not given", "give it")
        return None
    from qdqtool.verbs.evaluate_options import EvaluateOptions
    from qdqtool.verbs.validation_metric import TaskMetric

    how = EvaluateOptions(metric=args.eval_metric, decoder=args.eval_decoder, names=args.eval_names, progress=False)
    return TaskMetric(
        args.eval_data,
        args.eval_labels,
        how,
        data_options_from(argparse.Namespace(**{**vars(args), "batch": 1, "limit": None})),
    )
