# SPDX-License-Identifier: Apache-2.0
"""Operators that pick or place numbers by an index tensor: what was picked gets its gradient back by adding there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext


def _gather(site: VjpContext) -> Gradients:
    """Adds each picked piece to its place; one constant index needs no more than a pad with zeros."""
    axis, indices = site.axis(0), site.given(1)
    shape = site.x.shape
    before, after = shape[:axis], shape[axis + 1 :]
    known = site.known(indices.name)
    if known is not None and known.size == 1:
        place = int(known.item()) % shape[axis]
        begins, ends = [0] * len(shape), [0] * len(shape)
        begins[axis], ends[axis] = place, shape[axis] - 1 - place
        return [site.g.reshape((*before, 1, *after)).pad(begins, ends)]
    count = math.prod(indices.shape)
    pieces = site.g.reshape((math.prod(before), count, math.prod(after))).transpose((1, 0, 2))
    rows = (shape[axis], math.prod(before), math.prod(after))
    added = _scatter_nd(site.tape.zeros(rows, site.x.kind), indices.reshape((count, 1)), pieces)
    return [added.transpose((1, 0, 2)).reshape(shape)]


def _scatter_nd(target: GraphValue, indices: GraphValue, updates: GraphValue) -> GraphValue:
    indices = indices.cast(TensorProto.INT64)
    return target.tape.emit("ScatterND", [target, indices, updates], target.shape, reduction="add")


def _scatter_elements(
    target: GraphValue, indices: GraphValue, updates: GraphValue, axis: int, reduction: str = "add"
) -> GraphValue:
    how: dict[str, Any] = {"axis": axis, "reduction": reduction}
    return target.tape.emit("ScatterElements", [target, indices, updates], target.shape, **how)


def _gather_elements(site: VjpContext) -> Gradients:
    zeros = site.tape.zeros(site.x.shape, site.x.kind)
    return [_scatter_elements(zeros, site.given(1), site.g, site.axis(0))]


def _gather_nd(site: VjpContext) -> Gradients:
    """Adds to where the index tuples point; batch axes become leading indices first."""
    indices, batch = site.given(1), int(site.get("batch_dims", 0))
    if batch:
        indices = _with_batch(site, indices.cast(TensorProto.INT64), batch)
    return [_scatter_nd(site.tape.zeros(site.x.shape, site.x.kind), indices, site.g)]


def _with_batch(site: VjpContext, indices: GraphValue, batch: int) -> GraphValue:
    """Index tuples with the batch's own indices before them."""
    places = np.indices(indices.shape[:batch], dtype=np.int64).transpose((*range(1, batch + 1), 0))
    middle = len(indices.shape) - batch - 1
    places = places.reshape((*places.shape[:batch], *(1,) * middle, batch))
    lead = site.tape.constant(places).expand((*indices.shape[:-1], batch))
    return site.tape.concat([lead, indices], len(indices.shape) - 1)


def _reduction(site: VjpContext) -> str:
    reduction = str(site.get("reduction", "none"))
    if reduction not in ("none", "add"):
        raise site.refusal(f"with reduction={reduction} has no gradient here")
    return reduction


def _scattered(site: VjpContext) -> Gradients:
    """ScatterElements: what is overwritten gets no gradient, what is written gets that of its place."""
    axis, indices = site.axis(0), site.given(1)
    kept = site.g
    if _reduction(site) == "none" and site.wants(0):
        zeros = site.tape.zeros(indices.shape, site.g.kind)
        kept = _scatter_elements(site.g, indices, zeros, axis, "none")
    written = None
    if site.wants(2):
        written = site.tape.emit("GatherElements", [site.g, indices], indices.shape, axis=axis)
    return [kept, None, written]


def _scattered_nd(site: VjpContext) -> Gradients:
    """ScatterND: as ScatterElements, with whole pieces."""
    indices, shape = site.given(1), site.given(2).shape
    kept = site.g
    if _reduction(site) == "none" and site.wants(0):
        zeros = site.tape.zeros(shape, site.g.kind)
        kept = site.tape.emit("ScatterND", [site.g, indices, zeros], site.g.shape)
    written = site.tape.emit("GatherND", [site.g, indices], shape) if site.wants(2) else None
    return [kept, None, written]


def _top_k(site: VjpContext) -> Gradients:
    indices = site.extra_output(1, site.y.shape, TensorProto.INT64)
    zeros = site.tape.zeros(site.x.shape, site.x.kind)
    return [_scatter_elements(zeros, indices, site.g, site.axis(-1))]


RULES: Mapping[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scattered,
    "ScatterND": _scattered_nd,
    "TopK": _top_k,
}
