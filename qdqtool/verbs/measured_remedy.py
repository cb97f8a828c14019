# SPDX-License-Identifier: Apache-2.0
"""What the printed command against a cause brings: it is run in memory, and its model measured on held-out samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import onnx

from qdqtool.diagnosis.cause import LEAST_GAIN, WITH_CACHES, Cause, LossCauses
from qdqtool.diagnosis.diagnose import TRAIT_LOSS
from qdqtool.diagnosis.evidence import Evidence
from qdqtool.diagnosis.suspects import traits_for_edited_weights
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.match.options import PlanOptions, keep_float
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.rounded import as_run
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions

_EDITS = 0.2  # of the loss, that edited weights win


def with_brought(causes: LossCauses, found: Evidence) -> LossCauses:
    """The causes, the first of which has a figure of what its command takes off the loss.

    Where there is no cause, the command that edits the weights of a network with depthwise convolutions, SiLUs or few
    channels is run, and its trait is the cause if that takes enough off. A command calibrates on the half of the data
    that the evidence takes ranges from. Where it fails, there is no figure: it says why when it is run. Nor is there
    one where nothing is lost, or weights lie in files of their own.
    """
    if found.loss < LEAST_GAIN:
        return causes
    try:
        if not causes.causes:
            return replace(causes, causes=tuple(_edited_weights(found)))
        first, *others = causes.causes
        brought = found.loss - _loss_after(first, found)
    except QdqError:
        return causes
    return replace(causes, causes=(replace(first, brought=brought), *others))


def _edited_weights(found: Evidence) -> Iterator[Cause]:
    """The trait that edited weights are against, where they win enough beside the same command without them."""
    cause = next(traits_for_edited_weights(found), None) if found.loss >= TRAIT_LOSS else None
    if cause is None:
        return
    as_made = {name: value for name, value in cause.remedy.options.items() if name != "condition"}
    left = _loss_after(cause, found)
    before = min(found.loss, _loss_after(replace(cause, remedy=replace(cause.remedy, options=as_made)), found))
    if before - left >= _EDITS * found.loss:
        said = f"{cause.evidence}; the gain is that of edited weights"
        yield replace(cause, evidence=said, gain=before - left, brought=found.loss - left)


def _loss_after(cause: Cause, found: Evidence) -> float:
    """The loss at the outputs of what the commands of a cause write."""
    return found.reference.loss(as_run(open_model(_remedied(cause, found))))


def _remedied(cause: Cause, found: Evidence) -> onnx.ModelProto:
    """What the commands of a cause write."""
    target, version = found.context.target, found.context.asked
    words: dict[str, Any] = {name.replace("-", "_"): value for name, value in cause.remedy.options.items()}
    if cause.remedy.verb == "graft":
        peeled = peel(found.context.model.proto, PeelOptions(target="gpu", trt_version=WITH_CACHES))
        assert peeled.cache is not None
        placing = PlanOptions(target, version, **{"float_heads": "none", **words})
        return graft(found.plain.proto, peeled.cache, GraftOptions(placing)).model
    kept = keep_float(str(words.pop("keep_float"))) if "keep_float" in words else None
    placed = {name: words.pop(name) for name in ("float_heads", "weights", "attention", "format") if name in words}
    placing = PlanOptions(target, version, **placed, keep_float=() if kept is None else kept.names)
    how = CalibrationOptions(method=words.pop("method", ""), provider=found.observed.provider, progress=False)
    options = InsertOptions(placing, how, keep_float=None if kept is None else kept.count, advise=False, **words)
    return insert(found.plain.proto, data=found.calibrating, options=options).model
