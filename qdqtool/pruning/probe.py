# SPDX-License-Identifier: Apache-2.0
"""What a run says of a graph's tensors: shapes, types, and the integers that are the same for every input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.data.model_inputs import Input, inputs_of
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.runtime.executor import Executor, out_of_reach

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]

_SEED = 20
_FREE = 64  # what a free axis of a seeded input is long
_SHORT = 64  # elements of a tensor that may be a shape, sizes or indices


@dataclass(frozen=True, eq=False)
class ProbeRun:
    """How a model and its edited copies are run.

    Attributes:
        model: as it is before the edit.
        feeds: the inputs, one or more.
        where: what messages call the model.
        provider: execution provider of onnxruntime (default cpu).
    """

    model: Model
    feeds: Sequence[Feed]
    where: object = "model"
    provider: str = "cpu"

    def executor(self, model: Model, names: Sequence[str]) -> Executor:
        """A session of the model, or of a copy, that gives the named tensors."""
        return Executor(model, names, self.where, self.provider)


@dataclass(frozen=True, eq=False)
class TensorFacts:
    """What was seen of a graph's tensors.

    Attributes:
        shapes: tensor -> its shape in the first run.
        types: tensor -> its type.
        fixed: short integer tensors whose values did not depend on the input.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    fixed: Mapping[str, Array]


def seeded_input(graph: onnx.GraphProto, free: int = _FREE, batch: int = 1) -> dict[str, Array]:
    """An input for each run of a check: normal values, integers 0 and 1; the same for the same graph.

    Free axes are `free` long, a free first axis is `batch` long.

    Raises:
        QdqError: an input of unknown rank; what `Input.made_up` refuses.
    """
    random = np.random.default_rng(_SEED)
    return {one.name: one.made_up(_shape(one, free, batch), random) for one in inputs_of(graph)}


def _shape(one: Input, free: int, batch: int) -> tuple[int, ...]:
    if one.shape is None:
        raise QdqError(one.name, "is an input of unknown rank, so that none can be made", "give --data")
    return tuple(size if isinstance(size, int) else batch if axis == 0 else free for axis, size in enumerate(one.shape))


def look(run: ProbeRun) -> TensorFacts:
    """Run a model for the shapes of its tensors.

    Raises:
        QdqError: onnxruntime cannot run the model on the first input.
    """
    view, lacking = run.model.view, out_of_reach(run.model)
    names = [name for node in view.nodes for name in node.outputs if name and name not in lacking]
    names = list(dict.fromkeys([*view.inputs, *(name for name in names if not view.is_constant(name))]))
    executor = run.executor(run.model, names)
    made = executor.run(run.feeds[0])
    found = {name: one for name, one in made.items() if isinstance(one, np.ndarray)}  # the others are sequences
    short = {name: array for name, array in found.items() if array.dtype.kind == "i" and array.size <= _SHORT}
    for feed in run.feeds[1:]:
        try:
            again = executor.run(feed)
        except QdqError:  # an axis that is declared free may not be free; what the constants say is known anyway
            again = {}
        short = {name: array for name, array in short.items() if name in again and np.array_equal(array, again[name])}
    if len(run.feeds) < 2:
        short = {name: short[name] for name in _apart_from_inputs(view, short)}
    shapes = {name: array.shape for name, array in found.items()}
    return TensorFacts(shapes, {name: array.dtype for name, array in found.items()}, short)


def _apart_from_inputs(view: GraphView, names: Iterable[str]) -> list[str]:
    """Those of some tensors that no input of the graph reaches, but through its shape."""
    fed = set(view.inputs)
    for node in sorted(view.every, key=lambda node: (node.level, node.index)):
        if node.op not in ("Shape", "Size") and any(name in fed for name in node.inputs):
            fed.update(node.outputs)
    return [name for name in names if name not in fed]
