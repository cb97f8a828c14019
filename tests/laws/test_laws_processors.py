# SPDX-License-Identifier: Apache-2.0
"""What no processor changes: counts of given values, clipping values of them, models and caches of a given table.

A second process has NumPy and OpenBLAS take the kernels of the oldest processors. Values that a network makes do depend
on the processor (docs/calibrate.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qdqtool
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import parse_method
from qdqtool.amax.methods import choose_amax
from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.cache.text import format_cache
from qdqtool.graph.io import serialize
from tests.amax.test_methods import DISTRIBUTIONS
from tests.laws.law_checks import V8_6, lifted, table_for

PROJECT = Path(__file__).resolve().parents[2]
METHODS = ("max", "mse", "percentile=99.9", "entropy-stable")


def digests(values: Path) -> dict[str, str]:
    """What the code makes of arrays in a file, and of a bundled model with a table."""
    made: dict[str, list[bytes]] = {}
    with np.load(values) as arrays:
        for name, array in arrays.items():
            counts, ordered = Histogram(), EntropyHistogram()
            counts.add(array)
            ordered.add(array)
            chosen = [choose_amax(parse_method(method), counts).tobytes() for method in METHODS]
            made[name] = [counts.state(), ordered.state(), *chosen, np.float32(ordered.search() or 0).tobytes()]
    for target in ("gpu", "dla"):
        options = qdqtool.InsertOptions(plan=qdqtool.PlanOptions(target=target), whole_table=False)
        model = lifted(PROJECT / "models" / "digits_detector.onnx")
        done = qdqtool.insert(model, scales=table_for(qdqtool.plan(model, options.plan)), options=options)
        peeled = qdqtool.peel(done.model, qdqtool.PeelOptions(V8_6))
        made[target] = [serialize(done.model), serialize(peeled.model), format_cache(peeled.cache).encode()]
    return {name: hashlib.sha256(b"".join(parts)).hexdigest() for name, parts in made.items()}


@pytest.mark.slow
def test_older_kernels_of_numpy_make_the_same_bytes(tmp_path: Path) -> None:
    values = tmp_path / "values.npz"
    rng = np.random.default_rng(11)
    np.savez(values, **{name: draw(rng, 20_000).astype(np.float32) for name, draw in DISTRIBUTIONS.items()})
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    older = {"NPY_DISABLE_CPU_FEATURES": " ".join(features), "OPENBLAS_CORETYPE": "Prescott"}
    code = f"import json; from {__name__} import *; print(json.dumps(digests(Path({str(values)!r}))))"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | older, cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == digests(values)
