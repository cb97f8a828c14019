# SPDX-License-Identifier: Apache-2.0
"""Outputs of a model by plain onnxruntime with one choice of CUDA's settings; run by cuda_provider.py. Not qdqtool's.

    python tests/bench/cuda_settings.py MODEL SAMPLES.npz PROVIDER SETTINGS REFERENCE.npz

Two sessions one after the other; prints a line of JSON: digests of their outputs, the largest difference from the CPU's
outputs in parts of the largest value, milliseconds of a run. With the settings `cpu` it writes the reference.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS: dict[str, dict[str, str]] = {
    "onnxruntime's own": {},
    "float32, EXHAUSTIVE": {"use_tf32": "0"},
    "float32, HEURISTIC": {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"},
    "float32, DEFAULT": {"use_tf32": "0", "cudnn_conv_algo_search": "DEFAULT"},
}
RUNS = 20


def write_samples(model: Path, data: Sequence[str], file: Path, count: int) -> None:
    """Batches as qdqtool reads them, one sample each, as arrays of all."""
    import onnx

    from qdqtool.data.loader import DataOptions, open_loader
    from qdqtool.data.model_inputs import inputs_of

    words = dict(zip(data[::2], data[1::2], strict=True))
    options = DataOptions(limit=count, preprocess=words.get("--preprocess"))
    loader = open_loader(words["--data"], inputs_of(onnx.load(model, load_external_data=False).graph), options)
    batches = list(loader)
    np.savez(file, **{name: np.stack([batch[name] for batch in batches]) for name in batches[0]})


def outputs(model: Path, feeds: Sequence[dict[str, Any]], provider: str, name: str) -> tuple[list[Any], float]:
    """Outputs of each sample in one list, and milliseconds of a run after the first ones."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    asked: list[Any] = ["CPUExecutionProvider"]
    if provider == "cuda":
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()
        asked.insert(0, ("CUDAExecutionProvider", SETTINGS[name]))
    session = onnxruntime.InferenceSession(str(model), options, providers=asked)
    if provider == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise SystemExit("CUDA does not start")
    found = [array for feed in feeds for array in session.run(None, feed)]
    begun = time.perf_counter()
    for _ in range(RUNS):
        session.run(None, feeds[0])
    return found, (time.perf_counter() - begun) / RUNS * 1000


def main() -> None:
    """Print the line."""
    model, samples, provider, name, reference = Path(sys.argv[1]), *sys.argv[2:6]
    with np.load(samples) as held:
        arrays = {key: held[key] for key in held}
    feeds = [{key: array[at] for key, array in arrays.items()} for at in range(len(next(iter(arrays.values()))))]
    digests, apart, spent = [], 0.0, 0.0
    for _ in range(2):
        found, spent = outputs(model, feeds, provider, name)
        digests.append(hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest())
    if name == "cpu":
        np.savez(reference, *found)
    with np.load(reference) as held:
        for one, other in zip((held[key] for key in held.files), found, strict=True):
            if one.dtype.kind == "f":
                apart = max(apart, float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-30)))
    print(json.dumps({"digests": digests, "from the cpu": float(f"{apart:.2g}"), "ms": round(spent, 3)}))


if __name__ == "__main__":
    main()
