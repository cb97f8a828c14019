# SPDX-License-Identifier: Apache-2.0
"""The same facts as JSON, for a builder of one's own: layer -> precision, tensor -> scale. Stable, and tested so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from qdqtool.cache.amax import amax_of
from qdqtool.emit.job import EmitJob, Emitted

SCHEMA = 1


def write_precision_json(job: EmitJob) -> Emitted:
    """One document.

    `layers` and `output_types` are keyed by TensorRT's layer name; `float_tensors` says the same by the tensors that
    the layers make, and holds the layers that cannot be named too. `scale` is the float32 pattern, eight hexadecimal
    digits; `amax` is 127 times it, exact.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "tensorrt": job.version.text,
        "header": job.version.header(),
        "target": job.target,
        "model": job.model,
        "cache": job.cache,
        "layers": {layer.name: layer.precision for layer in job.named},
        "output_types": {layer.name: layer.precision for layer in job.named if layer.typed},
        "reasons": {layer.name: layer.why for layer in job.named},
        "float_tensors": {name: layer.precision for layer in job.layers for name in layer.outputs},
        "unnamed": {layer.node: layer.unnamed for layer in job.unnamed},
        "tensors": {name: _entry(scale) for name, scale in job.scales.items()},
    }
    return Emitted(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _entry(scale: np.float32) -> dict[str, Any]:
    bits = np.float32(scale)
    return {"scale": f"{int(bits.view(np.uint32)):08x}", "amax": amax_of(bits)}
