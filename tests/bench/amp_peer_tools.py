# SPDX-License-Identifier: Apache-2.0
"""One peer's FP16 model of a file: run by amp_peers.py with the Python of an environment that has the peer.

`python amp_peer_tools.py TOOL MODEL SAMPLES OUT`: TOOL is modelopt (AutoCast) or onnxconverter. Prints the CPU seconds
of the conversion itself, without imports.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import onnx


def modelopt(model: str, samples: str) -> Any:
    """AutoCast with its defaults, decided by the samples; inputs and outputs keep their types."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

    begin = time.process_time()
    made = convert_to_mixed_precision(model, low_precision_type="fp16", keep_io_types=True, calibration_data=samples)
    return made, time.process_time() - begin


def onnxconverter(model: str, samples: str) -> Any:
    """convert_float_to_float16 with its defaults, which looks at no data; inputs and outputs keep their types."""
    from onnxconverter_common import float16

    begin = time.process_time()
    made = float16.convert_float_to_float16(onnx.load(model), keep_io_types=True)
    return made, time.process_time() - begin


def main(words: list[str]) -> int:
    """Convert, save, print the seconds."""
    tool, model, samples, out = words
    made, seconds = {"modelopt": modelopt, "onnxconverter": onnxconverter}[tool](model, samples)
    onnx.save(made, out)
    sys.stdout.write(f"seconds {seconds:.3f}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
