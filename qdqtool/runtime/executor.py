# SPDX-License-Identifier: Apache-2.0
"""The reference executor: a model as written, Q/DQ in float and unfused, on one thread of onnxruntime's CPU.

Every accuracy figure of a Q/DQ model comes from here. What INT8 kernels of a target do is not asked in this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.output_rows import OutputRows, output_rows
from qdqtool.graph.view import GraphView
from qdqtool.runtime.array_file import ArrayFile
from qdqtool.runtime.emulated_formats import emulated
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.providers import provider_names
from qdqtool.runtime.runnable_part import runnable_part
from qdqtool.runtime.session import MERGING, run_session, session_options, start_session, strip_weights

Array = npt.NDArray[Any]


class RunsBatches(Protocol):
    """A model that takes batches, whoever runs it."""

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The wanted tensors of one batch, by name."""
        ...


class RunsInParts(Protocol):
    """A model that gives the tensors of a batch one part after the other."""

    def parts(self, feed: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """The wanted tensors of one batch, by name, each in one part."""
        ...


def rows_of_run(run: RunsBatches) -> Mapping[str, OutputRows]:
    """What the graph says of a model's rows, see `output_rows`; nothing for an engine, whose graph is not known."""
    return run.rows if isinstance(run, Executor) else {}


class Executor:
    """One model, ready to run batches; the session reads its weights without a copy.

    Attributes:
        names: what `run` gives, in order.
        rows: what the rows of its outputs are, see `output_rows`.
    """

    def __init__(
        self,
        model: Model,
        outputs: Sequence[str] | None = None,
        where: object = "model",
        provider: str = "cpu",
    ) -> None:
        """Make the session."""
        self._where = where
        model = emulated(model)
        runtime = load_onnxruntime()
        providers = provider_names(runtime, provider)
        view = model.view
        part = runnable_part(model, runtime, providers)
        self.rows = output_rows(view)
        self.names = tuple(dict.fromkeys(tensor_outputs(model.graph) if outputs is None else outputs))
        if not self.names:
            raise QdqError(where, "has no output to compute that is a tensor", "is the model complete?")
        for name in self.names:
            _check_can_be_had(view, name, part.behind, where)
        self._fixed: dict[str, Array] = {name: _value(view, name) for name in self.names if name in view.initializers}
        self._fed = frozenset(view.inputs)
        self._made = [name for name in self.names if name not in self._fed and name not in self._fixed]
        parts = strip_weights(model, [node.proto for node in part.nodes], file=ArrayFile())
        options = session_options(runtime, "ORT_ENABLE_BASIC")
        self._session = None
        if self._made:
            self._session = start_session(runtime, (*parts, self._made), options, providers, where, MERGING)

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The wanted tensors of one batch, by name, in the order of `names`.

        Raises:
            QdqError: onnxruntime cannot run it (shapes that do not go together, memory).
        """
        made: Sequence[Array] = []
        if self._session is not None:
            given = {name: array for name, array in feed.items() if name in self._fed}
            made = run_session(self._session, self._made, given, self._where)
        found = dict(zip(self._made, made, strict=True))
        found.update(self._fixed)
        return {name: found[name] if name in found else feed[name] for name in self.names}

    def parts(self, feed: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """What `run` gives, in one part."""
        yield self.run(feed)


def tensor_outputs(graph: onnx.GraphProto) -> tuple[str, ...]:
    """The outputs of a graph but sequences, maps and optionals, which nothing is measured by."""
    return tuple(one.name for one in graph.output if one.type.WhichOneof("value") in (None, "tensor_type"))


def out_of_reach(model: Model) -> dict[str, str]:
    """The tensors of the main graph that cannot be computed, each with the operator that onnxruntime lacks.

    Raises:
        QdqError: a weighted operator lies after one that is lacking.
    """
    return runnable_part(emulated(model), load_onnxruntime()).behind


def last_in_reach(model: Model) -> tuple[str, ...]:
    """The outputs of a model; where one lies after an operator that onnxruntime lacks, the others and what that reads.

    Raises:
        QdqError: a weighted operator lies after one that is lacking.
    """
    view = model.view
    part = runnable_part(emulated(model), load_onnxruntime())
    given = tensor_outputs(model.graph)
    if not any(name in part.behind for name in given):
        return tuple(dict.fromkeys(given))
    fed = (name for node in part.nodes for name in node.outputs if name in part.feeding and not view.is_constant(name))
    return tuple(dict.fromkeys((*(name for name in given if name not in part.behind), *fed)))


def _check_can_be_had(view: GraphView, name: str, behind: Mapping[str, str], where: object) -> None:
    if name in behind:
        reason = f"{name} comes after {behind[name]}, which onnxruntime cannot run"
        raise QdqError(where, reason, "name tensors before it, or give the model without that operator")
    if name not in view.producers and name not in view.initializers and name not in view.inputs:
        raise QdqError(where, f"has no tensor {name} in its main graph", "name one that is there")


def _value(view: GraphView, name: str) -> Array:
    value = view.array(name)
    if value is None:
        raise QdqError(name, "is a constant whose value cannot be read", "fold constants first")
    return np.asarray(value)
