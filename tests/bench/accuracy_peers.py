# SPDX-License-Identifier: Apache-2.0
"""One peer makes one INT8 model: the part of accuracy.py that runs under the interpreter that has the peers.

Usage: accuracy_peers.py onnxruntime METHOD MODEL SAMPLES.npz OUT. nvidia-modelopt has a command line of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

OPSET = 13  # the first whose Q/DQ take a scale per channel


def lifted(model: Path) -> Path:
    """The model at opset 13, by onnx's own converter, where it is older."""
    import onnx
    from onnx import version_converter

    proto = onnx.load(str(model))
    if max(one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")) >= OPSET:
        return model
    out = model.with_suffix(".lifted.onnx")
    onnx.save(version_converter.convert_version(proto, OPSET), str(out))
    return out


def quantize(method: str, model: Path, samples: Path, out: Path) -> None:
    """Onnxruntime with the options that its documentation gives for TensorRT."""
    import numpy as np
    import onnxruntime as ort
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    start = lifted(model)
    held = np.load(samples)
    name = held.files[0]
    taken = ort.InferenceSession(str(start), providers=["CPUExecutionProvider"]).get_inputs()[0].shape[0]
    step = taken if isinstance(taken, int) else 1

    class PeerReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            values = held[name]
            self.rest = iter([values[k : k + step] for k in range(0, len(values) - step + 1, step)])

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self.rest, None)
            return None if sample is None else {name: sample}

    options = {"ActivationSymmetric": True, "WeightSymmetric": True, "AddQDQPairToWeight": True, "QuantizeBias": False}
    quantize_static(
        start,
        out,
        PeerReader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        calibrate_method=CalibrationMethod[method],
        extra_options=options,
    )


if __name__ == "__main__":
    tool, how, *files = sys.argv[1:]
    if tool != "onnxruntime":
        sys.exit(f"accuracy_peers: {tool} is not one of onnxruntime")
    quantize(how, *map(Path, files))
