# SPDX-License-Identifier: Apache-2.0
"""The verb `sensitivity`: a plain model and data to a table of what each operator loses in INT8. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.peel import is_plain
from qdqtool.scales import ScaleTable

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader, DataOptions
    from qdqtool.mixed_precision.policies import SensitivityRanking
    from qdqtool.observers.options import CalibrationOptions


@dataclass(frozen=True)
class SensitivityOptions:
    """How operators are ranked.

    Attributes:
        plan: target, version, heads, rules: what `insert` would be given.
        calibration: method and provider.
        feed: how data is read.
        ends: whether the tenth that loses most by itself is also run end to end.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    calibration: CalibrationOptions | None = None
    feed: DataOptions | None = None
    ends: bool = True


@dataclass(frozen=True)
class SensitivityResult:
    """The ranking, and the scales it holds for."""

    survey: SensitivityRanking
    table: ScaleTable


def sensitivity(
    model: ModelSource, data: Data | DataLoader, options: SensitivityOptions | None = None
) -> SensitivityResult:
    """Rank the operators of a plain model by what they lose in INT8.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: calibration data; see `open_feed`.
        options: see `SensitivityOptions`.

    Raises:
        QdqError: a model with Q/DQ, one without an operator that runs in INT8 or a float32 output, and what
            `calibrate_scales` refuses.
    """
    from qdqtool.calibration.engine import calibrate_scales
    from qdqtool.data.loader import DataLoader, inputs_of, open_feed
    from qdqtool.mixed_precision.policies import Quantized, survey
    from qdqtool.observers.options import default_method, with_method
    from qdqtool.selection.auto import source_of

    options = options or SensitivityOptions()
    opened = open_model(model)
    proto = normalize(opened.proto, opened.folder).proto
    if not is_plain(proto):
        raise QdqError(opened.name, "has Q/DQ, and sensitivity asks what they would do", "qdqtool peel takes them out")
    view = GraphView(proto.graph, opened.folder)
    plan = make_plan(view, options.plan)
    if not plan.weights:
        raise QdqError(opened.name, "has no operator that runs in INT8", "see qdqtool insert --dry-run")
    feed = data if isinstance(data, DataLoader) else open_feed(data, inputs_of(proto.graph), options.feed)
    how = replace(with_method(options.calibration, default_method(proto, once=feed.once)), where=opened.name)
    points = frozenset(point.tensor for point in plan.activations)
    table = calibrate_scales(proto, opened.folder, feed, how, points=points, placing=options.plan)
    source = source_of(proto, opened.folder, feed, {}, how)
    quantized = Quantized(source, options.plan, table.decisions, table.scales, table.all_zero)
    return SensitivityResult(survey(quantized, ends=options.ends), table)
