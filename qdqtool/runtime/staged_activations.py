# SPDX-License-Identifier: Apache-2.0
"""Activations of a model whose tensors are too many to be held at once: a session for each stage, one after the other.

A cut lies only where every float tensor that passes it is given out anyway, or holds the values of others in another
order, so that onnxruntime fuses what it would fuse in one session. The values are the same to the bit where Q/DQ is
computed as written; elsewhere onnxruntime keeps the layout of a convolution for what follows, and last bits differ
behind a cut (a residual that it adds within the convolution, a BatchNormalization). Where the cuts lie depends on the
model alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.model import Model
from qdqtool.graph.shapes import known_lengths, sample_lengths
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.rule_files import operator_set
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.executor import Executor, RunsInParts
from qdqtool.runtime.session import run_session, session_options, start_session
from qdqtool.runtime.stage_models import ARRAY_TYPES, EXACT_TYPES, StageModels, Values
from qdqtool.runtime.stages import CutOptions

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
# Bytes of activations of one batch that are held at once; where there are more, the model runs in stages.
_HELD_BYTES = 64 << 20
_FLOAT_BYTES = 4


class StagedActivations:
    """Runs batches and gives tensors stage by stage, float32 ones for calibration; several threads may do so at once.

    Attributes:
        names: what `run` gives: inputs, then what each stage gives.
        lengths: how many of `names` come together: inputs, then those of each stage.
    """

    def __init__(self, parts: StageModels, wanted: Sequence[str], *, free: bool = False) -> None:
        """Take stages; their sessions start with the first batch, which tells the types of what passes."""
        self._parts, self._free, given = parts, free, frozenset(wanted)
        fed = [name for name in wanted if parts.model.is_input(name)]
        groups = [[n for node in stage.nodes for n in node.outputs if n in given] for stage in parts.stages]
        self._groups = groups
        self._fed = fed
        self.lengths = (len(fed), *map(len, groups))
        self.names = (*fed, *(name for group in groups for name in group))
        self._sessions: list[Any] = [None] * len(groups)
        self._starting = threading.Lock()

    @classmethod
    def of(
        cls, model: ObservableModel, wanted: Sequence[str], lengths: Mapping[str, int] | None = None
    ) -> StagedActivations | None:
        """The stages of a model; None where its tensors can be held at once, or nobody knows their sizes, or no cut is.

        Args:
            model: the model.
            wanted: tensors to give; to calibrate, float32 as far as inference tells.
            lengths: how many values tensors have in some batch, where batches may differ in their shapes; None where
                all have the shapes that the graph declares.
        """
        made = [name for name in wanted if not model.is_input(name)]
        sizes = tensor_bytes(model, made, lengths)
        if sizes is None or sum(sizes.values()) <= _HELD_BYTES:
            return None
        view = model.view
        moved = (name for node in view.nodes if node.op in operator_set("moving") for name in node.outputs)
        passing = {*made, *moved, *(name for name, kind in model.types.items() if kind in EXACT_TYPES)}
        passing -= {name for name, kind in model.types.items() if kind not in ARRAY_TYPES}
        operators = frozenset(node.key for node in view.nodes if weight_index(view, node) is not None)
        add_weights(sizes, view, operators)
        parts = StageModels(model, made, operators, CutOptions(passing, sizes, hold=False))
        return cls(parts, wanted, free=lengths is not None) if len(parts.stages) > 1 else None

    def run(self, batch: Mapping[str, Array]) -> Iterator[tuple[str, Float32]]:
        """The tensors of one batch; a stage runs once those of the stage before it are taken.

        Raises:
            QdqError: onnxruntime cannot run it (shapes that do not go together, memory).
        """
        values: Values = dict(batch)
        yield from ((name, values[name]) for name in self._fed)
        for at, group in enumerate(self._groups):
            session, wanted = self._session(at, values), self._wanted(at)
            feed = {one.name: values[one.name] for one in session.get_inputs()}
            got = dict(zip(wanted, run_session(session, wanted, feed, self._parts.model.where), strict=True))
            values = self._parts.behind(at, values, {name: got[name] for name in self._parts.stages[at].gives})
            yield from ((name, got.pop(name)) for name in group)

    def parts(self, feed: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """The tensors of one batch, those of one stage in a part; see `run`."""
        made = self.run(feed)
        for count in self.lengths:
            yield dict(islice(made, count))

    def _wanted(self, at: int) -> list[str]:
        return list(dict.fromkeys((*self._parts.stages[at].gives, *self._groups[at])))

    def _session(self, at: int, values: Values) -> Any:
        with self._starting:
            if self._sessions[at] is None:
                self._sessions[at] = self._start(at, values)
        return self._sessions[at]

    def _start(self, at: int, values: Values) -> Any:
        model, nodes = self._parts.model, [node.proto for node in self._parts.stages[at].nodes]
        options = session_options(model.runtime, model.optimization)
        options.enable_cpu_mem_arena = False  # each would keep the memory of its stage: they share one
        parts = (*self._parts.proto(nodes, [values], free=self._free), self._wanted(at))
        return start_session(model.runtime, parts, options, model.providers, model.where, model.disabled)


def add_weights(sizes: dict[str, int], view: GraphView, operators: Iterable[str]) -> None:
    """Add the bytes of weights to those of tensors: a session copies them when it starts."""
    for key in operators:
        sizes[key] = sizes.get(key, 0) + _weight_bytes(view, view.producers[key])


def _weight_bytes(view: GraphView, node: Node) -> int:
    index = weight_index(view, node)
    shape = None if index is None else view.shape(node.inputs[index])
    return _FLOAT_BYTES * math.prod(shape or (0,))


def tensor_bytes(
    model: ObservableModel, names: Sequence[str], lengths: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Bytes of float32 tensors of one batch; None where inference does not tell the type of one, or most sizes.

    A size that is unknown counts as the largest known: what a class token is expanded to is no reason to hold all.
    """
    lengths = known_lengths(model.sizes) if lengths is None else lengths
    found = {name: _FLOAT_BYTES * lengths[name] for name in names if name in lengths}
    if 2 * len(found) < len(names) or not frozenset(model.untyped).isdisjoint(names):
        return None
    largest = max(found.values(), default=0)
    return {name: found.get(name, largest) for name in names}


def run_in_parts(model: Model, outputs: Sequence[str], where: object, provider: str = "cpu") -> RunsInParts:
    """A model that gives tensors stage by stage where they are too many to be held at once, else all together.

    Raises:
        QdqError, MissingPackageError: see `Executor`.
    """
    view = model.view
    wanted = tuple(dict.fromkeys(outputs))
    if all(name in view.inputs or (name in view.producers and not view.is_constant(name)) for name in wanted):
        ready = ObservableModel(model, provider, where, as_written=True)
        at_hand = (ready.is_input(name) if name in view.inputs else name not in ready.behind for name in wanted)
        fixed = known_lengths(view)  # elsewhere batches may have other shapes: of one sample
        lengths = None if all(name in fixed for name in view.inputs) else sample_lengths(view)
        staged = StagedActivations.of(ready, wanted, lengths) if all(at_hand) else None
        if staged is not None and frozenset(staged.names) == frozenset(wanted):
            return staged
    return Executor(model, outputs, where, provider)
