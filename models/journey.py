# SPDX-License-Identifier: Apache-2.0
"""The whole journey on the bundled detector: data to a Q/DQ model, its accuracy, and a TensorRT cache. `make demo`."""

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
    """mAP of each model on the held-out scenes."""
    say(f"{'on 200 held-out scenes':<24}{'AP50':>8}{'AP50:95':>9}")
    for name, path in models.items():
        figures = evaluate(path, TEST)
        say(f"{name:<24}{figures['ap50']:>8.4f}{figures['ap50_95']:>9.4f}")
    say()


def main() -> None:
    """From a trained ONNX file to a Q/DQ model, to a clean model and its cache."""
    OUT.mkdir(exist_ok=True)
    qdq, clean, cache = OUT / "digits.qdq.onnx", OUT / "digits.onnx", OUT / "digits.cache"
    say("1. Q/DQ where TensorRT fuses, with scales from 64 calibration scenes; the box head stays in float\n")
    qdqtool("insert", MODEL, "--data", CALIBRATION, "-o", qdq)
    say("2. What INT8 costs, run by onnxruntime as the Q/DQ graph is written (not measured on TensorRT)\n")
    judge(FP32=MODEL, INT8=qdq)
    say("3. For TensorRT 8 and later the Q/DQ model is all it takes. For implicit INT8, JetPack 4.4 here, take the")
    say("   scales out again: the clean model and its calibration cache\n")
    qdqtool("peel", qdq, "--target", "gpu", "--trt-version", "7100", "--source", MODEL, "-o", clean, "--cache", cache)
    qdqtool("cache", "retarget", cache, "--trt-version", "8502", "-o", OUT / "digits.8502.cache")
    same = clean.read_bytes() == MODEL.read_bytes()
    say(f"out/{clean.name} is {'byte for byte' if same else 'NOT'} the model we began with")
    if not same:
        raise SystemExit(1)
    say("next: qdqtool insert YOUR.onnx --data FOLDER_OF_IMAGES --preprocess imagenet; qdqtool insert -h says the rest")


if __name__ == "__main__":
    main()
