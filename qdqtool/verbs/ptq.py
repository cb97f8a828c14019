# SPDX-License-Identifier: Apache-2.0
"""The verb `ptq`: a plain model and data to a cache over all tensors, what TensorRT's own calibrator gives. No Q/DQ."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.cache.sidecar import check_place, tensor_facts, write_sidecar
from qdqtool.cache.text import Cache, write_cache
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, Opened, open_model
from qdqtool.graph.view import GraphView
from qdqtool.match.ties import tie_scales
from qdqtool.rulebook import load_rules
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import TrtVersion, require_caches, require_dla
from qdqtool.verbs.opening import check_target, files_of, output_path

if TYPE_CHECKING:
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.calibration.feed import Data, Feed, FeedOptions


@dataclass(frozen=True)
class PtqOptions:
    """How a cache is made from a plain model.

    Attributes:
        trt_version: whose cache is written, and whose ties hold.
        target: "gpu" or "dla".
        calibration: method (default `entropy`, TensorRT's) and provider.
        feed: how data is read.
        ties: whether tensors that the target gives one range take the largest of theirs.
    """

    trt_version: TrtVersion
    target: str = "gpu"
    calibration: CalibrationOptions | None = None
    feed: FeedOptions | None = None
    ties: bool = True


@dataclass(frozen=True)
class PtqResult:
    """A cache over every float tensor, and where each scale comes from.

    Attributes:
        cache: what TensorRT reads.
        table: the same scales with origin; tensors without one and why; facts of the run.
        ties: tensor -> the one whose scale it took.
        path: the file written, if one was.
    """

    cache: Cache
    table: ScaleTable
    ties: dict[str, str]
    path: Path | None

    def predicted(self) -> dict[str, Any] | None:
        """Medians over the tensors of the predicted signal to noise in dB, with the chosen method and the other."""
        facts = self.table.facts.get("predicted")
        if not facts or not facts["decibel"]:
            return None
        chosen, other = zip(*facts["decibel"].values(), strict=True)
        worse = sorted(facts["decibel"], key=lambda name: facts["decibel"][name][0] - facts["decibel"][name][1])
        return {
            "method": self.table.facts["method"],
            "beside": facts["beside"],
            "chosen_db": statistics.median(chosen),
            "beside_db": statistics.median(other),
            "largest_loss": worse[0],
            "largest_loss_db": facts["decibel"][worse[0]],
        }


def ptq(model: ModelSource, data: Data | Feed, options: PtqOptions, *, cache: str | Path | None = None) -> PtqResult:
    """Calibrate every float tensor of a plain model into a cache.

    Args:
        model: any opset; a path, ModelProto, gs.Graph or a callable returning one; never changed, never lifted.
        data: what to feed, batch by batch in order; see `open_feed`.
        options: see `PtqOptions`.
        cache: file to write; for a path the default is `<name>.cache` beside it.

    Raises:
        QdqError: a version without caches or INT8 DLA, a model with Q/DQ, and what `calibrate_scales` refuses.
    """
    from qdqtool.calibration.engine import CalibrationOptions, calibrate_scales
    from qdqtool.calibration.feed import Feed, inputs_of, open_feed

    require_caches(options.trt_version)
    if options.target == "dla":
        require_dla(options.trt_version)
    opened = open_model(model)
    view = GraphView(opened.proto.graph, opened.folder)
    if view.pairs:
        raise QdqError(opened.name, "has Q/DQ, which calibration does not go with", "qdqtool peel takes their scales")
    target = output_path(opened, cache, ".cache")
    if target is not None:
        check_target(target, [opened.path, *files_of(data)])
        check_place(target, files_of(data))
    feed = data if isinstance(data, Feed) else open_feed(data, inputs_of(opened.proto.graph), options.feed)
    how = options.calibration or CalibrationOptions(method="entropy")
    how = replace(how, where=opened.name, beside="" if how.method == "mse" else "mse")
    table = calibrate_scales(opened.proto, opened.folder, feed, how)
    rules = load_rules(options.target, options.trt_version)
    scales, taken = tie_scales(view, rules, table.scales) if options.ties else (table.scales, {})
    made = Cache.of(options.trt_version, {name: np.float32(scale.bits) for name, scale in scales.items()})
    if target is not None:
        write_cache(made, target)
        write_sidecar(target, _facts(opened, table, options, made, tensor_facts(scales, _before(table, taken))))
    return PtqResult(made, ScaleTable(scales, table.unscaled, table.facts), taken, target)


def _before(table: ScaleTable, taken: Iterable[str]) -> dict[str, np.float32]:
    """What tied tensors had by themselves."""
    return {name: np.float32(table[name].bits) for name in taken}


def _facts(
    opened: Opened, table: ScaleTable, options: PtqOptions, cache: Cache, tensors: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What stands beside the cache."""
    asked: dict[str, Any] = {"target": options.target, "trt_version": options.trt_version.text, "ties": options.ties}
    return {
        "verb": "ptq",
        "header": cache.header,
        "model": {"sha256": opened.sha256},
        "data": table.facts.get("data"),
        "options": {**asked, "method": table.facts["method"], "samples": table.facts["samples"]},
        "tensors": tensors,
    }
