# SPDX-License-Identifier: Apache-2.0
"""The verb `compare`: two models and data to how far their tensors lie apart, and where the error is born."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.display import Cells, Displayed, counted, figure, table
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.groups import find_groups
from qdqtool.measures import Measure
from qdqtool.precision.rounded import as_run
from qdqtool.precision.widen import as_fp32
from qdqtool.rulebook import load_rules
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.runtime.executor import out_of_reach
from qdqtool.runtime.staged_activations import run_in_parts
from qdqtool.simulation import side_by_side
from qdqtool.simulation.divided_tensors import divided_tensors, divisions_of
from qdqtool.simulation.error_attribution import ErrorSource, find_sites, rank
from qdqtool.simulation.measure_table import measure_rows, output_cells
from qdqtool.simulation.picked_rows import picked_rows
from qdqtool.simulation.row_order import RowOrder, places_of

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader

NO_TASK_METRIC = "SQNR is not an accuracy; qdqtool evaluate measures boxes and classes"

DIVIDED = "whose channels condition or finetune scaled in only one of the models"
_NO_RUN = "after {}, which onnxruntime cannot run"
_AS_A_SET = "outputs of a TopK are compared as sets of rows, each with the nearest one: {}"
_BY_TOKEN = "inside the decoder, rows are matched by the token that TopK selected: both models selected {} of {}"
_READ = "\0read"
_PICKED = "\0picked"
_NAMED = 3  # tensors that a line names


@dataclass(frozen=True)
class CompareOptions(ExecutionOptions):
    """What is compared.

    Attributes:
        tensors: all, outputs (no ranking of error sources then), or a regular expression that is searched in names.
    """

    tensors: str = "all"


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """A model against a reference.

    Attributes:
        outputs: measures of the outputs that both have, in graph order.
        tensors: measures of all that was compared, in graph order, outputs among them.
        error_sources: where error arises, most first; none for outputs alone.
        uncompared: tensor of both -> why it has no measure.
        only: tensors that only the reference has, and those that only the other has.
        samples: how many were run.
        notes: sentences on the data.
    """

    outputs: tuple[Measure, ...]
    tensors: tuple[Measure, ...]
    error_sources: tuple[ErrorSource, ...]
    uncompared: dict[str, str]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    samples: int
    notes: tuple[str, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """Tensors with NaN or Inf in only one of the models, in graph order."""
        return tuple(one.tensor for one in self.tensors if one.broken)

    def headline(self) -> str:
        """How much was compared, and the output that lies farthest from the reference."""
        counts = f"{counted(len(self.tensors), 'tensor')}, {counted(self.samples, 'sample')}"
        if not self.outputs:
            return counts
        worst = min(self.outputs, key=lambda one: one.sqnr if one.sqnr == one.sqnr else -math.inf)
        return f"{counts}; worst output {worst.tensor}: SQNR {figure(worst.sqnr)} dB, cosine {figure(worst.cosine, 6)}"

    def summary(
        self, names: tuple[str, str] = ("the reference", "the other model"), *, top: int = 10, every: bool = False
    ) -> list[str]:
        """What `qdqtool compare` prints.

        Args:
            names: what the reference and the other model are called.
            top: how many places where error is born are shown.
            every: whether tensors that are no outputs are shown too.
        """
        counts = f"{counted(len(self.tensors), 'tensor')}, {counted(self.samples, 'sample')}"
        lines = [f"{names[1]} against {names[0]}: {counts}", *measure_rows("output", self.outputs)]
        lines += measure_rows("tensor", self.tensors) if every else []
        return [*lines, *self._sources(top), *self._left_out(names), *self.notes, NO_TASK_METRIC]

    def rows(self) -> Cells:
        """One row for each output: how far it lies from the reference."""
        return output_cells(self.outputs)

    def _sources(self, top: int) -> list[str]:
        rows = [
            (
                one.site.operator,
                one.site.kind,
                one.site.output,
                *map(figure, (one.sqnr_in, one.sqnr_read, one.sqnr_out)),
            )
            for one in self.error_sources[: max(0, top)]
        ]
        head = ("where SQNR drops, largest drop first", "operators", "tensor", "dB in", "dB read", "dB out")
        return table(head, rows) if rows else []

    def _left_out(self, models: tuple[str, str]) -> list[str]:
        """What has no measure: by reason, and by the model that alone has it."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.uncompared.items():
            reasons.setdefault(reason, []).append(name)
        lines = [
            f"not compared, {reason}: {counted(len(names), 'tensor')}, {_named(names)}"
            for reason, names in reasons.items()
        ]
        return lines + [f"only in {model}: {_named(one)}" for model, one in zip(models, self.only, strict=True) if one]

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """What `qdqtool compare --json` prints."""
        return {
            "schema": 1,
            "samples": self.samples,
            "outputs": [one.to_json() for one in self.outputs],
            "tensors": [one.to_json() for one in self.tensors],
            "culprits": [one.to_json() for one in self.error_sources[:top]],
            "broken": list(self.broken),
            "uncompared": self.uncompared,
            "only_reference": list(self.only[0]),
            "only_other": list(self.only[1]),
            "task_metric": None,
            "notes": [*self.notes, NO_TASK_METRIC],
        }


def compare(
    reference: ModelSource,
    other: ModelSource,
    data: Data | DataLoader,
    options: CompareOptions | None = None,
    data_options: DataOptions | None = None,
) -> Comparison:
    """Run two models over the same data with the reference executor, and measure each tensor that both have.

    Tensors are matched by name; a Q/DQ model keeps those of its plain one. Rows that a TopK picked are matched first,
    as their order is that of a score: of outputs the nearest, of tensors before these by token. Those whose channels
    `condition` or `finetune` divided in one of the models are left out. Tensors in FP16 and BF16 are rounded to these.
    Batch by batch; nothing is kept per sample. Images are preprocessed as metadata say where `data_options` do not.

    Args:
        reference: what counts as right; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        other: what is judged.
        data: what to feed; see `open_loader`.
        options: see `CompareOptions`.
        data_options: batch, limit, preprocessing.

    Raises:
        QdqError: the models' inputs differ, they share no tensor, onnxruntime refuses one, the data does not fit, or
            the preprocessing feeds other values than `other` was made for.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    options, first, second = options or CompareOptions(), open_model(reference), open_model(other)
    known = [known_preprocess(second.proto), known_preprocess(first.proto)]
    reading, said = apply_known(second.name, data, data_options or DataOptions(), known)
    run_of = as_run(first), as_run(second)
    first, second = map(as_fp32, (first, second))
    inputs, others = inputs_of(first.proto.graph), inputs_of(second.proto.graph)
    names = _distinct_titles(first.name, second.name)
    side_by_side.check_same_inputs(inputs, others, names)
    views = first.view, second.view
    shared = side_by_side.shared_tensors(*views, options.tensors)
    shared, left_out = side_by_side.without(shared, _incomparable(first, second, views))
    behind = {} if options.tensors == "outputs" else _behind(*views, shared.both)
    wanted = {**{name: (name, name) for name in shared.both}, **behind}
    runs = (
        run_in_parts(run_of[0], [one for one, _ in wanted.values()], names[0], options.provider),
        run_in_parts(run_of[1], [one for _, one in wanted.values()], names[1], options.provider),
    )
    loader = open_loader(data, side_by_side.stricter(inputs, others), reading)
    picked, batches = picked_rows(views[0]), side_by_side.counted_batches(loader, "compare", options.progress)
    inside = RowOrder(views[0], wanted, {views[0].root(name) for group in picked for name in group.outputs})
    found = side_by_side.measure(runs, wanted, batches, picked=picked, inside=inside)
    left_out |= {name: reason for name, reason in found.uncompared.items() if name not in behind}
    notes = (*said, *loader.notes, *(_AS_A_SET.format(_named(group.outputs)) for group in picked))
    if inside.rows:
        notes = (*notes, _BY_TOKEN.format(inside.same, inside.rows))
    culprits = () if options.tensors == "outputs" else _culprits(views[0], found.measures, behind)
    measures = {name: one for name, one in found.measures.items() if name not in behind}
    outputs = tuple(measures[name] for name in dict.fromkeys(views[0].outputs) if name in measures)
    return Comparison(
        outputs, tuple(measures.values()), culprits, left_out, (shared.first, shared.second), found.samples, notes
    )


def _incomparable(first: Model, second: Model, views: tuple[GraphView, GraphView]) -> dict[str, str]:
    """Tensors that have no measure whatever the data are -> why: out of onnxruntime's reach, or divided by design."""
    lacking = {**out_of_reach(first), **out_of_reach(second)}
    ours, theirs = divisions_of(first.proto), divisions_of(second.proto)  # in one alone they differ by no error
    divided = divided_tensors(views[0], ours - theirs) | divided_tensors(views[1], theirs - ours)
    return {**dict.fromkeys(divided, DIVIDED), **{name: _NO_RUN.format(op) for name, op in lacking.items()}}


def _behind(view: GraphView, other: GraphView, names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """What is measured under a name that no tensor has.

    It is what consumers see of each tensor with Q/DQ, inputs included, and which tokens each TopK of both picks.
    """
    inputs = [name for name in view.inputs if name in other.inputs]
    read = {f"{name}{_READ}": pair for name, pair in side_by_side.read_tensors(view, other, (*inputs, *names)).items()}
    picked = [name for node in view.nodes if (name := places_of(node)) and other.producer(name) is not None]
    return {**read, **{f"{name}{_PICKED}": (name, name) for name in picked}}


def _culprits(view: GraphView, found: dict[str, Measure], behind: Collection[str]) -> tuple[ErrorSource, ...]:
    """Groups by the error that they add; tensors measured under names of their own tell what consumers see."""
    measures = {name: one for name, one in found.items() if name not in behind}
    read = {name.removesuffix(_READ): one for name, one in found.items() if name.endswith(_READ)}
    groups = find_groups(view, load_rules("gpu"))
    return tuple(rank(find_sites(view, groups, measures), measures, read))


def _distinct_titles(first: str, second: str) -> tuple[str, str]:
    """What messages call the models; two without a file may have one name."""
    return (first, second) if first != second else (f"{first} (reference)", f"{second} (other)")


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more (--json has them)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
