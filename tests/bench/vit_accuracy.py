# SPDX-License-Identifier: Apache-2.0
"""Top-1 of the bundled vision transformer on pictures it never saw: FP32, INT8, INT8 with attention. No test.

`python -m tests.bench.vit_accuracy [--model PATH] [--count 2500]`: `insert --target rtx` calibrates on 64 pictures,
drawn from another seed than those that judge; onnxruntime computes Q/DQ as they stand. Exit code 1 where INT8, with or
without attention, loses more than half a point.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool as verbs
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.rounded import as_run
from qdqtool.runtime.emulated_formats import emulated

MODELS = Path(__file__).resolve().parents[2] / "models"
ALLOWED = 0.005
HEAD = "| model | top-1 | as FP32 | attentions in INT8 | loss at the outputs |\n|---|---|---|---|---|"
RUNS = (("INT8, attention float", "float", ""), ("INT8, attention INT8", "int8", ""), ("INT8, auto", "auto", ""),
        ("INT8, attention INT8, conditioned", "int8", "equalize"))  # fmt: skip


def logits(model: onnx.ModelProto, images: Any) -> Any:
    """What a model gives for images, by batches of 100."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(emulated(as_run(Model(model))).proto.SerializeToString(), options)
    return np.concatenate([session.run(None, {"images": part})[0] for part in np.split(images, len(images) // 100)])


def main() -> int:
    """Print the table; 1 where the gate is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--model", type=Path, default=MODELS / "shapes_vit.onnx")
    parser.add_argument("--count", type=int, default=2500, help="pictures that judge, whole hundreds")
    args = parser.parse_args()
    sys.path.insert(0, str(MODELS))
    import shapes

    images, labels = shapes.draw(shapes.TEST[0], args.count)
    calib = [{"images": one[None]} for one in shapes.draw(*shapes.CALIB)[0]]
    plain = onnx.load(args.model)
    exact = logits(plain, images).argmax(1)
    best = float((exact == labels).mean())
    print(f"{args.count} pictures\n\n{HEAD}")
    print(f"| FP32 | {best:.4f} | | | |")
    held = True
    for name, attention, condition in RUNS:
        options = verbs.InsertOptions(
            plan=PlanOptions("rtx", attention=attention),  # type: ignore[arg-type]
            calibration=CalibrationOptions(progress=False),
            keep_float="auto" if attention == "auto" else 0,
            condition=condition,
        )
        done = verbs.insert(plain, data=calib, options=options)
        found = logits(done.model, images).argmax(1)
        top1, same = float((found == labels).mean()), float((found == exact).mean())
        int8 = sum(one.int8 for one in done.plan.attentions)
        loss = done.output_loss.value if done.output_loss is not None else None
        print(f"| {name} | {top1:.4f} | {same:.4f} | {int8} of {len(done.plan.attentions)} | {loss:.4g} |", flush=True)
        held = held and top1 >= best - ALLOWED
    print("gate: held" if held else "gate: missed")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
