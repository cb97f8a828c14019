# SPDX-License-Identifier: Apache-2.0
"""How fast `finetune` trains: it runs on made-up data, and its log tells the time of each step. No loop of its own."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from qdqtool.data.model_inputs import Input, inputs_of
from qdqtool.display import table
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.training.launch import launched
from qdqtool.verbs.finetune import finetune
from qdqtool.verbs.finetune_options import FinetuneOptions

_LEAST_SAMPLES = 8
_PARTS = ("data", "gradient", "exchange", "update")  # of a step, as the log names their seconds


@dataclass(frozen=True)
class TrainingSpeed:
    """Speed of one training, as rank 0 saw it.

    Attributes:
        workers: processes.
        images_per_second: of all workers, the median of the measured steps.
        shares: of the time of the measured steps: making batches ("data"), computing gradients ("gradient"),
            sending, adding and waiting for other workers ("exchange"), and the rest ("update").
    """

    workers: int
    images_per_second: float
    shares: dict[str, float]


def measure_training(model: ModelSource, steps: int, options: FinetuneOptions) -> TrainingSpeed | None:
    """Train for a step to warm up and `steps` measured ones on made-up data; nothing is written.

    Returns:
        The speed; None on ranks other than 0.

    Raises:
        QdqError: options that need data or write files, an input with open dimensions, what `finetune` refuses.
    """
    _check(steps, options)
    rank, workers = launched()
    draw = np.random.default_rng(0)
    inputs = inputs_of(open_model(model).proto.graph)
    samples = max(_LEAST_SAMPLES, 2 * (options.batch or 1))
    data = [{one.name: one.made_up(_shape(one), draw) for one in inputs} for _ in range(samples)]
    with TemporaryDirectory(prefix="qdqtool-") as folder:
        log = Path(folder, "log.jsonl")
        run = replace(options.run, steps=steps + 1, evaluate_every=steps + 1, patience=0, log=log)
        finetune(model, data, replace(options, run=run, equalize=False), output=Path(folder, "model.onnx"))
        lines = [] if rank else [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    if rank:
        return None
    taken = [line for line in lines if line["event"] == "step"][1:]
    seconds = {what: math.fsum(line[f"{what}_seconds"] for line in taken) for what in _PARTS}
    whole = math.fsum(seconds.values())
    speed = statistics.median(line["images_per_second"] for line in taken)
    return TrainingSpeed(workers, speed, {what: part / whole for what, part in seconds.items()})


def _check(steps: int, options: FinetuneOptions) -> None:
    if steps < 1:
        raise QdqError("--benchmark", f"{steps} is not a number of steps", "give 1 or more")
    given = {
        "--labels": options.labels,
        "--label": options.labeled,
        "--eval-data": options.task,
        "--blocks": options.blocks,
        "--steps": options.run.steps,
        "--epochs": options.run.epochs,
        "--max-minutes": options.run.max_minutes,
        "--checkpoint": options.run.checkpoint,
        "--log": options.run.log,
    }
    for name, value in given.items():
        if value:
            raise QdqError(name, "cannot be combined with --benchmark, which makes up data and writes nothing")


def _shape(one: Input) -> tuple[int, ...]:
    """The shape of one sample."""
    sides = one.shape if one.shape is None or not one.batched else (1, *one.shape[1:])
    if sides is None or not all(isinstance(side, int) for side in sides):
        raise QdqError(
            one.name, f"is {one.format_shape()}: --benchmark needs fixed dimensions", "fix them in the model"
        )
    return tuple(int(side) for side in sides if side is not None)


def speeds_to_json(speeds: Sequence[TrainingSpeed]) -> dict[str, Any]:
    """What `qdqtool finetune --benchmark --json` prints."""
    return {"schema": 1, "rows": [asdict(one) for one in speeds]}


def speed_table(speeds: Sequence[TrainingSpeed]) -> list[str]:
    """What `qdqtool finetune --benchmark` prints."""
    rows = [
        (str(one.workers), f"{one.images_per_second:.1f}", *(f"{share:.0%}" for share in one.shares.values()))
        for one in speeds
    ]
    return table(("workers", "images/s", *speeds[0].shares), rows)
