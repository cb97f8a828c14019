# SPDX-License-Identifier: Apache-2.0
"""What TensorRT's calibrator wrote, held against the model and the version before anyone trusts it. Nothing is kept."""

from __future__ import annotations

import numpy as np

from qdqtool.cache.check import check
from qdqtool.cache.text import Cache, parse_cache
from qdqtool.calibration.tensorrt.backend import Request
from qdqtool.calibration.tensorrt.installed import Installed
from qdqtool.errors import QdqError
from qdqtool.graph.types import float_tensors
from qdqtool.scales import Scale, ScaleTable

_BUG = "TensorRT wrote an unexpected cache: keep the model and report it"


def verified(written: bytes, request: Request, installed: Installed) -> Cache:
    """The cache in TensorRT's bytes, if it is one of this TensorRT, of this calibrator and of this model.

    Raises:
        QdqError: no text of a cache; another version or algorithm in its header; none of its names is a tensor of the
            model.
    """
    where = f"cache of TensorRT {installed.text}"
    try:
        cache = parse_cache(written.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise QdqError(where, "is not UTF-8 text", _BUG) from None
    if cache.version != installed.version or cache.algorithm != installed.algorithm:
        raise QdqError(
            where, f"has the header {cache.header}, not {installed.version.header(installed.algorithm)}", _BUG
        )
    floats, others = names_of(request)
    if not check(cache, floats, others).matched:
        raise QdqError(where, f"names none of the {len(floats)} float tensors of {request.where}", "rename its tensors")
    return cache


def table_of(cache: Cache, request: Request, samples: int) -> ScaleTable:
    """The scales of the model's float tensors in graph order, and those that TensorRT gave none.

    Scales of constants and of names that TensorRT makes up stay in the cache alone.
    """
    floats, _ = names_of(request)
    dropped = {name: reason for name, _, reason in cache.dropped}
    entries = cache.entries
    scales = {
        name: Scale.of(np.float32(entries[name]), origin="ptq", method=request.method, samples=samples)
        for name in floats
        if name in entries
    }
    unscaled = {
        name: f"TensorRT's scale is {dropped[name]}" if name in dropped else "TensorRT gives it no scale"
        for name in floats
        if name not in entries
    }
    return ScaleTable(scales, unscaled)


def names_of(request: Request) -> tuple[list[str], list[str]]:
    """The float tensors of the main graph that are computed or fed, and every other name in it."""
    view = request.model.view
    floats = [name for name in float_tensors(request.model) if name and not view.is_constant(name)]
    known = set(floats)
    every = [*view.initializers, *view.inputs, *(name for node in view.every for name in node.outputs if name)]
    return floats, [name for name in dict.fromkeys(every) if name not in known]
