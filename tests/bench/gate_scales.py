# SPDX-License-Identifier: Apache-2.0
"""How far the scales of what the Sigmoids of SiLUs make are from those of the fetched tensors. Not a test.

A script: python -m tests.bench.gate_scales MODEL.onnx ... calibrates each model with `mse` on three seeded random
samples twice: once as `calibrate` does, once with every tensor fetched. Free sides are 320, a free batch is 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.calibration.engine import calibrate_scales
from qdqtool.data.model_inputs import inputs_of
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.observers.options import CalibrationOptions

SAMPLES, FREE_SIDE = 3, 320


def samples(opened: Model) -> list[dict[str, npt.NDArray[Any]]]:
    """Seeded values from 0 to 1 for every input."""
    rng = np.random.default_rng(0)
    graph, names = opened.proto.graph, {one.name for one in inputs_of(opened.proto.graph)}
    shapes = {
        value.name: [
            dim.dim_value or (FREE_SIDE if at else 1) for at, dim in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in graph.input
        if value.name in names
    }
    return [{name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(SAMPLES)]


def differences(model: Path) -> list[float]:
    """Of each derived gate, how much its scale differs from that of the fetched one, as a share of it."""
    opened = open_model(model)
    feeds = samples(opened)
    derived, fetched = (
        calibrate_scales(opened, feeds, CalibrationOptions("mse", inner=True, progress=False, derive=derive)).scales
        for derive in (True, False)
    )
    gates = [name for name, scale in derived.items() if "of the Sigmoid of" in scale.method]
    return [abs(float(derived[name].bits) / float(fetched[name].bits) - 1.0) for name in gates]


def main() -> int:
    """Print a line for each model that has such a tensor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    for model in parser.parse_args().models:
        found = differences(model)
        if found:
            print(
                f"{model.stem}: {len(found)}, median {statistics.median(found):.4%}, largest {max(found):.2%}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
