# SPDX-License-Identifier: Apache-2.0
"""The whole journey on the bundled detector: Q/DQ, caches for GPU and DLA, and back. `make demo`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from detection_map import evaluate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "out"
MODEL, CALIBRATION, TEST = (HERE / name for name in ("digits_detector.onnx", "digits_calib.npz", "digits_test.npz"))


def say(text: str = "") -> None:
    """One line, at once."""
    print(text, flush=True)


def qdqtool(*words: str | Path) -> None:
    """Run one command as a user would, and show it."""
    shown = [str(word.relative_to(ROOT)) if isinstance(word, Path) else word for word in words]
    say(f"$ qdqtool {shlex.join(shown)}")
    subprocess.run([sys.executable, "-m", "qdqtool", *shown], cwd=ROOT, check=True)
    say()


def judge(**models: Path) -> None:
    """MAP of each model on the held-out scenes."""
    say(f"{'on 200 held-out scenes':<24}{'AP50':>8}{'AP50:95':>9}")
    for name, path in models.items():
        figures = evaluate(path, TEST)
        say(f"{name:<24}{figures['ap50']:>8.4f}{figures['ap50_95']:>9.4f}")
    say()


def main() -> None:
    """From a trained ONNX file to Q/DQ, to a clean model with its cache for a GPU and for the DLA, and back again."""
    OUT.mkdir(exist_ok=True)
    qdq, clean, gpu, dla = (OUT / name for name in ("digits.qdq.onnx", "digits.onnx", "gpu.cache", "dla.cache"))
    ptq, grafted = OUT / "ptq.cache", OUT / "digits.grafted.onnx"
    peeled = ("--source", MODEL, "-o", clean)
    say("1. Q/DQ where TensorRT fuses, with scales from 64 calibration scenes; the box head stays in float\n")
    qdqtool("insert", MODEL, "--data", CALIBRATION, "-o", qdq)
    say("2. For implicit INT8, take the scales out again: the clean model and its calibration cache. For the GPU of")
    say("   JetPack 4.4, whose 7100 the blog posts name, then for its GA release\n")
    qdqtool("peel", qdq, "--target", "gpu", "--trt-version", "7100", *peeled, "--cache", gpu)
    qdqtool("cache", "retarget", gpu, "--trt-version", "7103", "-o", OUT / "gpu.7103.cache")
    say("3. The DLA of JetPack 5 wants a scale for every tensor; insert left a calibrated table in the model\n")
    qdqtool("peel", qdq, "--target", "dla", "--trt-version", "8502", *peeled, "--cache", dla, "--emit", "trtexec")
    same = clean.read_bytes() == MODEL.read_bytes()
    say("4. Without Q/DQ at all: what TensorRT's own calibrator would give\n")
    qdqtool("ptq", MODEL, "--data", CALIBRATION, "--target", "gpu", "--trt-version", "8502", "--cache", ptq)
    say("5. TensorRT 11 reads no caches: put one back into the model as Q/DQ\n")
    qdqtool("graft", MODEL, "--cache", gpu, "--float-heads", "regression", "-o", grafted)
    say("6. What INT8 costs, run by onnxruntime as the Q/DQ graph is written (not measured on TensorRT)\n")
    judge(FP32=MODEL, INT8=qdq, **{"INT8 from the cache": grafted})
    for path, use in (
        (qdq, "TensorRT 8 to 11, and fine-tuning"),
        (clean, f"{'byte for byte' if same else 'NOT'} the model we began with, to go with a cache"),
        (gpu, "TensorRT 7.1.0, GPU"),
        (OUT / "gpu.7103.cache", "TensorRT 7.1.3, GPU: JetPack 4.4 to 4.5.1"),
        (dla, "TensorRT 8.5.2, DLA: JetPack 5.1"),
        (OUT / "dla.trtexec.sh", "the command line that builds it, heads in FP16"),
        (ptq, "TensorRT 8.5.2, GPU, every tensor"),
        (grafted, "TensorRT 11"),
    ):
        say(f"{path.relative_to(ROOT)!s:<28} {use}" if path.exists() else f"{path.relative_to(ROOT)} is missing")
    if not same:
        raise SystemExit(1)
    say("\nwith your own model: qdqtool insert YOUR.onnx --data IMAGES --preprocess imagenet; see qdqtool insert -h")


if __name__ == "__main__":
    main()
