# SPDX-License-Identifier: Apache-2.0
"""Outputs of a detector without labels, all in INT8: conditioned, and trained block by block, in dB against FP32.

`python -m tests.bench.blocks [--model blazeface_front] [--seeds 3] [--limit 100]`: the model and faces of the corpus
(QDQTOOL_SHARED), calibrated on one folder and judged on the other by the reference executor, not by TensorRT.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.runtime.executor import Executor
from qdqtool.training.options import RunOptions
from qdqtool.verbs.finetune import FinetuneOptions, finetune
from tests.bench.shared_material import SHARED

CALIBRATION, JUDGED = "facemask_calib32/images", "facemask_100/images"


def samples_of(model: onnx.ModelProto, folder: Path, preprocess: str, limit: int | None = None) -> np.ndarray:
    """The images of a folder as the network's only input takes them."""
    (given,) = inputs_of(model.graph)
    loader = open_loader(folder, (given,), DataOptions(preprocess=preprocess, limit=limit))
    return np.concatenate([batch[given.name] for batch in loader])


def decibels(model: onnx.ModelProto, other: onnx.ModelProto, samples: np.ndarray) -> dict[str, float]:
    """Signal to noise of each output of a model with Q/DQ against the float model."""
    (given,) = inputs_of(model.graph)
    exact, rounded = Executor(Model(model)), Executor(Model(other))
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for row in samples:
        feed = {given.name: row[None]}
        theirs = rounded.run(feed)
        for name, value in exact.run(feed).items():
            wanted = value.astype(np.float64)
            signal[name] = signal.get(name, 0.0) + float(np.square(wanted).sum())
            noise[name] = noise.get(name, 0.0) + float(np.square(wanted - theirs[name]).sum())
    return {name: 10 * float(np.log10(signal[name] / max(noise[name], 1e-30))) for name in signal}


def ways(model: onnx.ModelProto, data: np.ndarray, seeds: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model in INT8, in each way."""

    def inserted(condition: str | None) -> onnx.ModelProto:
        plan, how = PlanOptions(float_heads="none"), CalibrationOptions("mse", progress=False)
        options = verbs.InsertOptions(plan=plan, calibration=how, keep_float=0, condition=condition, advise=False)
        made = verbs.insert(model, data=data, options=options).model
        assert isinstance(made, onnx.ModelProto)
        return made

    yield "insert", inserted(None)
    yield "--condition auto", inserted("auto")
    start = inserted("equalize,smooth")
    yield "--condition equalize,smooth", start
    for ranges in ("fixed", "learn"):
        for seed in range(seeds):
            run = RunOptions(seed=seed, progress=False)
            options = FinetuneOptions(run=run, ranges=ranges, blocks=True)  # type: ignore[arg-type]
            yield f"then --blocks --ranges {ranges}, seed {seed}", finetune(start, data, options).model


def main() -> int:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--model", default="blazeface_front")
    parser.add_argument("--preprocess", default="color=bgr,scale=1/255")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="images to judge on; default all")
    args = parser.parse_args()
    corpus = SHARED / "corpus"
    model = onnx.load(corpus / "models" / f"{args.model}.onnx")
    data = samples_of(model, corpus / "datasets" / CALIBRATION, args.preprocess)
    judged = samples_of(model, corpus / "datasets" / JUDGED, args.preprocess, args.limit)
    for way, made in ways(model, data, args.seeds):
        found = ", ".join(f"{name} {value:.1f}" for name, value in decibels(model, made, judged).items())
        print(f"{way}: {found} dB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
