# SPDX-License-Identifier: Apache-2.0
"""The verb `sensitivity`: a plain model and data to a table of what each operator loses in INT8. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qdqtool.calibration.engine import WantedScales, calibrate_scales, default_method
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.display import Cells, Displayed, counted
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.io import ModelSource
from qdqtool.graph.normalize import normalize
from qdqtool.measuring.auto_scales import source_of
from qdqtool.measuring.keep_float import samples_of
from qdqtool.measuring.policies import AUTO_FLOOR, AUTO_GAIN, AUTO_MACS, Quantized, rank_operators
from qdqtool.observers.options import with_method
from qdqtool.passes.peel import is_plain
from qdqtool.precision.widen import open_fp32
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.scales import ScaleTable
from qdqtool.verbs.sensitivity_options import SensitivityOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.measuring.policies import OperatorLoss, SensitivityRanking

_BLAMED = 3


@dataclass(frozen=True, repr=False)
class SensitivityResult(Displayed):
    """The ranking, and the scales it holds for."""

    ranking: SensitivityRanking
    table: ScaleTable

    def headline(self) -> str:
        """The loss with everything in INT8, and the operator whose loss is the largest."""
        found = self.ranking.findings
        text = f"loss {self.ranking.loss:.4g} with {counted(len(found), 'operator')} in INT8"
        return text + (f"; most sensitive {found[0].name} ({found[0].op})" if found else "")

    def summary(self, top: int = 10) -> list[str]:
        """What `qdqtool sensitivity` prints, of the first `top` operators."""
        found = self.ranking.findings
        lines = [f"{'operator':<40} {'own loss':>9} {'in float':>9} {'only INT8':>9} {'MACs':>7}"]
        lines += [_row(one) for one in found[:top]]
        if found[top:]:
            lines.append(f"and {len(found) - top} more")
        lines += _groups(self, top)
        text = f"loss at the outputs with all of {counted(len(found), 'operator')} in INT8: {self.ranking.loss:.4g}"
        how = f"(0: none, 1: all signal lost; method {self.table.provenance.method}, calibration images)"
        return [*lines, f"{text} {how}", *_candidates(self)]

    def to_blame(self) -> list[str]:
        """Names of the operators worth keeping in float: alone, each takes a fifth or more of the loss away.

        At most three, the worst first; none where the loss is small or spread over many.
        """
        loss = self.ranking.loss
        if loss < AUTO_FLOOR:
            return []
        run = [one for one in self.ranking.findings if one.without is not None]
        worst = sorted(run, key=lambda one: one.without if one.without is not None else loss)
        return [one.name or one.node for one in worst if (one.without or 0.0) <= (1 - AUTO_GAIN) * loss][:_BLAMED]

    def kept_by_insert(self, names: Sequence[str]) -> bool:
        """Whether `insert` keeps these operators in float by itself: they have few of the multiply-adds."""
        shares = {one.name or one.node: one.share for one in self.ranking.findings}
        return sum(shares[name] for name in names) <= AUTO_MACS

    def rows(self) -> Cells:
        """One row for each operator, the most sensitive first."""
        head = ("operator", "type", "own loss", "in float", "only INT8", "MACs")
        return [head, *((one.name, one.op, *one.cells(), f"{one.share:.2%}") for one in self.ranking.findings)]


def _row(one: OperatorLoss) -> str:
    local, without, only = one.cells()
    return f"{one.name + ' ' + one.op:<40} {local:>9} {without:>9} {only:>9} {one.share:>7.2%}"


def _groups(result: SensitivityResult, top: int) -> list[str]:
    groups = result.ranking.groups[:top]
    if not groups:
        return []
    rows = [f"{one.label:<60} {one.after:>9.4g} {one.share:>7.2%}" for one in groups]
    return [f"{'loss with all of these in float':<60} {'loss':>9} {'MACs':>7}", *rows]


def _candidates(result: SensitivityResult) -> list[str]:
    lines = []
    for name, tried in (result.table.provenance.candidates or {}).items():
        lines.append(f"{name}: {result.table[name].method}")
        lines += [f"  {method:<20} amax {amax:<12.6g} loss {loss:.4g}" for method, (amax, loss) in tried.items()]
    return lines


def sensitivity(
    model: ModelSource, data: Data | DataLoader, options: SensitivityOptions | None = None
) -> SensitivityResult:
    """Rank the operators of a plain model by what they lose in INT8.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: calibration data; see `open_loader`.
        options: see `SensitivityOptions`.

    Raises:
        QdqError: a model with Q/DQ, one without an operator that runs in INT8 or a float32 output, and what
            `calibrate_scales` refuses.
    """
    options = options or SensitivityOptions()
    opened = open_fp32(model)
    options, said = with_known(options, opened, data, anew=True)
    for note in said:
        options.say(note)
    normalize(opened)
    if not is_plain(opened.proto):
        raise QdqError(opened.name, "has Q/DQ, and sensitivity needs the model without", "qdqtool peel removes them")
    plan = plan_pairs(opened, options.plan, everywhere=False)
    if not plan.weights:
        raise QdqError(opened.name, "has no operator that runs in INT8", "see qdqtool insert --dry-run")
    loader = open_loader(data, inputs_of(opened.graph), options.data_options)
    how = replace(with_method(options.calibration, default_method(opened.proto, once=loader.once)), where=opened.name)
    points = frozenset(point.tensor for point in plan.activations)
    observable = ObservableModel(opened, how.provider, how.where)
    source = samples_of(observable, loader)
    wanted = WantedScales(points=points, placing=options.plan, picked=source)
    table = calibrate_scales(observable, loader, how, wanted)
    counts = counted(len(table.scales), "tensor"), counted(table.provenance.samples, "sample")
    options.say(f"scales: {counts[0]}, method {table.provenance.method}, {counts[1]}")
    source = source or source_of(observable, loader)
    quantized = Quantized(source, options.plan, table.decisions, table.scales, table.all_zero)
    ranking = rank_operators(quantized, ends=options.ends, say=options.say)
    release_freed_memory()
    return SensitivityResult(ranking, table)
