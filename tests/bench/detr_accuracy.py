# SPDX-License-Identifier: Apache-2.0
"""mAP of the bundled DETR on scenes it never saw: FP32, INT8 with its decoder in float, and in INT8. No test.

`python -m tests.bench.detr_accuracy [--model PATH] [--count 500]`: `insert --target rtx` calibrates on 64 scenes, drawn
from another seed than those that judge; onnxruntime computes Q/DQ as they stand. "As FP32" is the mean average
precision with what FP32 finds (score .5 or more) as the truth. Exit code 1 where a decoder in float loses more than a
point.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import onnx

import qdqtool as verbs
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.rounded import as_run

MODELS = Path(__file__).resolve().parents[2] / "models"
ALLOWED, SURE = 0.01, 0.5
HEAD = "| model | AP50 | AP50:95 | as FP32 | INT8 products | loss at the outputs |\n|---|---|---|---|---|---|"
RUNS: dict[str, dict[str, Any]] = {
    "decoder float": {"attention": "float"},
    "decoder float, attention of the encoder INT8": {"attention": "int8"},
    "decoder INT8": {"decoder": "int8", "attention": "float"},
    "decoder INT8, attention INT8": {"decoder": "int8", "attention": "int8"},
    "decoder INT8, box heads INT8": {"decoder": "int8", "attention": "float", "float_heads": "none"},
}


def main() -> int:
    """Print the table; 1 where the gate is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--model", type=Path, default=MODELS / "shapes_detr.onnx")
    parser.add_argument("--count", type=int, default=500, help="scenes that judge")
    args = parser.parse_args()
    sys.path.insert(0, str(MODELS))
    import shape_detections
    import shape_scenes

    scenes = shape_scenes.draw(shape_scenes.TEST[0], args.count)
    calib = [{"images": one[None]} for one in shape_scenes.draw(*shape_scenes.CALIB)["images"]]
    plain = onnx.load(args.model)

    def detections(model: onnx.ModelProto) -> Any:
        return shape_detections.detections(
            *shape_detections.run(as_run(Model(model)).proto.SerializeToString(), scenes["images"])
        )

    exact = detections(plain)
    best, sure = shape_detections.figures(exact, scenes), exact.score >= SURE
    own = {"boxes": exact.box[sure], "labels": exact.label[sure], "scene": exact.scene[sure]}
    print(f"{args.count} scenes\n\n{HEAD}")
    print(f"| FP32 | {best['ap50']:.4f} | {best['ap50_95']:.4f} | | | |")
    held = True
    for name, options in RUNS.items():
        counting = CalibrationOptions(progress=False)
        made = verbs.InsertOptions(plan=PlanOptions("rtx", **options), calibration=counting, keep_float=0)
        done = verbs.insert(plain, data=calib, options=made)
        found = detections(done.model)
        figures, same = shape_detections.figures(found, scenes), shape_detections.figures(found, own)
        loss = done.output_loss.value if done.output_loss is not None else float("nan")
        cells = (figures["ap50"], figures["ap50_95"], same["ap50_95"])
        weights = sum(len(point.reads) for point in done.plan.weights)
        print(f"| {name} | {' | '.join(f'{cell:.4f}' for cell in cells)} | {weights} | {loss:.4g} |", flush=True)
        held = held and (not name.startswith("decoder float") or figures["ap50_95"] >= best["ap50_95"] - ALLOWED)
    print("gate: held" if held else "gate: missed")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
