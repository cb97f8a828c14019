# SPDX-License-Identifier: Apache-2.0
"""The verbs as Polygraphy loaders, by its own rules. No step of any verb is here.

A loader is called with `()`. Each model, cache, table, data and path is the value or a callable that returns it, as
another loader is. Models are an `onnx.ModelProto` or a `gs.Graph`, never changed, and come back as the same kind. For
every loader there is a function that runs it at once: `insert_qdq(model)` is `InsertQdq(model)()`. Faults come as
`PolygraphyException`.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from qdqtool.polygraphy.file_loaders import (
    CacheFromPath,
    SaveCache,
    SaveScales,
    ScalesFromPath,
    cache_from_path,
    save_cache,
    save_scales,
    scales_from_path,
)
from qdqtool.polygraphy.int8_runner import Int8SimRunner
from qdqtool.polygraphy.verb_loaders import (
    AmpTypes,
    CacheFromData,
    CacheFromQdq,
    CalibrateScales,
    EngineBytesFromModel,
    GraftCache,
    InsertQdq,
    PeelQdq,
    PruneChannels,
    amp_types,
    cache_from_data,
    cache_from_qdq,
    calibrate_scales,
    engine_bytes_from_model,
    graft_cache,
    insert_qdq,
    peel_qdq,
    prune_channels,
)

__all__ = [
    "AmpTypes",
    "CacheFromData",
    "CacheFromPath",
    "CacheFromQdq",
    "CalibrateScales",
    "EngineBytesFromModel",
    "GraftCache",
    "InsertQdq",
    "Int8SimRunner",
    "PeelQdq",
    "PruneChannels",
    "SaveCache",
    "SaveScales",
    "ScalesFromPath",
    "amp_types",
    "cache_from_data",
    "cache_from_path",
    "cache_from_qdq",
    "calibrate_scales",
    "engine_bytes_from_model",
    "graft_cache",
    "insert_qdq",
    "peel_qdq",
    "prune_channels",
    "save_cache",
    "save_scales",
    "scales_from_path",
]
