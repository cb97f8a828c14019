# SPDX-License-Identifier: Apache-2.0
"""The peers' calibrators on the same loader script, each in a process of its own, by an interpreter that has them."""

from __future__ import annotations

import itertools
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STRIDE = 8


def reader_of(items: Iterator[dict[str, Any]]) -> Any:
    """Batches as onnxruntime's CalibrationDataReader."""
    from onnxruntime.quantization import CalibrationDataReader

    class CalibrationReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = items

        def get_next(self) -> dict[str, Any] | None:
            return next(self.rest, None)

        def get_first(self) -> dict[str, Any]:
            first = next(self.rest)
            self.rest = itertools.chain([first], self.rest)
            return first

    return CalibrationReader()


def loader_of(script: str) -> Callable[[], Iterator[dict[str, Any]]]:
    """The function of a Polygraphy loader script."""
    load: Callable[[], Iterator[dict[str, Any]]] = runpy.run_path(script)["load_data"]
    return load


def run_onnxruntime(model: str, script: str, out: str, bins: int) -> None:
    """Onnxruntime's Entropy calibrator, fed in strides so that not all images' activations are held at once."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    options = {"num_bins": bins, "num_quantized_bins": 128, "symmetric": True}
    augmented = f"{out}.augmented.onnx"
    calibrator = create_calibrator(
        model, [], augmented, CalibrationMethod.Entropy, providers=["CPUExecutionProvider"], extra_options=options
    )
    items = loader_of(script)()
    while stride := list(itertools.islice(items, STRIDE)):
        calibrator.collect_data(reader_of(iter(stride)))
    ranges = calibrator.compute_data()
    Path(out).write_text(f"{len(ranges.data)} ranges")


def run_modelopt(model: str, script: str, out: str) -> None:
    """nvidia-modelopt's entropy at its defaults, the rest of the model in float32."""
    from modelopt.onnx.quantization import quantize

    quantize(
        model,
        quantize_mode="int8",
        calibration_method="entropy",
        calibration_data_reader=reader_of(loader_of(script)()),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=out,
    )


if __name__ == "__main__":
    tool, model, script, out = sys.argv[1:]
    if tool == "modelopt":
        run_modelopt(model, script, out)
    else:
        run_onnxruntime(model, script, out, int(tool.partition("-")[2]))
