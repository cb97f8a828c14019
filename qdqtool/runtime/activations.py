# SPDX-License-Identifier: Apache-2.0
"""A model as onnxruntime runs it to show its activations: one session, its weights mapped from a file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.order import read_names
from qdqtool.graph.shapes import known_numbers
from qdqtool.graph.types import known_types, wrong_type
from qdqtool.graph.view import QUANTIZE, GraphView, Node
from qdqtool.runtime.array_file import ArrayFile
from qdqtool.runtime.emulated_formats import emulated
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.providers import provider_names
from qdqtool.runtime.runnable_part import computable_part, runnable_part
from qdqtool.runtime.session import MERGING, run_session, session_options, start_session, strip_weights

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
RoundedWeight = tuple[str, bytes, int | None]  # name, bytes of its float32 scales, their axis from the front
_FLOAT = "tensor(float)"  # float32 in onnxruntime's words
_SIZES = frozenset({"Shape", "Size"})


class ObservableModel:
    """A model made ready for onnxruntime: what of it can be observed. No session yet.

    Initializers, Constant nodes and what only moves or casts them are no activations; tensors inside bodies of control
    flow and local functions are not observed. Initializers listed as inputs are constants here, so that they fold.

    Attributes:
        names: the tensors that can be observed, in graph order: float32 inputs, then what nodes make, without what type
            inference knows not to be float32.
        behind: tensor -> operator that onnxruntime lacks, for those that cannot be computed because of it.
        ends: those of `names` that the model is judged by: outputs of the graph, and what an operator that onnxruntime
            lacks reads (a detector's boxes and scores in front of an NMS plugin); inputs are not among them.
        types: element type, as in onnx.TensorProto, of the tensors whose type inference knows; 0 for what is no tensor.
        untyped: those of `names` whose type inference does not know.
        model: what was made ready.
        provider: execution provider of onnxruntime.
        where: what messages call the model.
        view: the main graph.
        sizes: the graph by which sizes are known: the same, or another with the same tensors and sizes, known already.
        stripped: what `strip_weights` made of it.
        rounded: weights after INT8; who rounds one first leaves it for the others.
        disabled: optimizers of onnxruntime that its sessions leave out.
    """

    def __init__(
        self,
        model: Model,
        provider: str = "cpu",
        where: object = "model",
        lent: Mapping[str, Array] | None = None,
        *,
        as_written: bool = False,
        sizes: GraphView | None = None,
    ) -> None:
        """Look at a model; see the attributes."""
        model = emulated(model)
        self.model, self.provider, self.where = model, provider, where
        self.disabled = MERGING if as_written else ()
        self._as_written = as_written
        self.runtime = load_onnxruntime()
        self.providers = provider_names(self.runtime, provider)
        self.view = model.view
        self.sizes = sizes or self.view
        proto = model.proto
        part = runnable_part(model, self.runtime, self.providers)
        self.behind = part.behind
        self.types = kinds = known_types(model)
        if (wrong := wrong_type(proto, kinds)) is not None:
            name, said, found = wrong
            raise QdqError(where, f"declares {name} as {said}, its operator outputs {found}", "export the model again")
        float32 = onnx.TensorProto.FLOAT
        others = {name for name, kind in kinds.items() if kind != float32}
        made = [name for node in part.nodes for name in node.outputs if name and not self.view.is_constant(name)]
        floats = {value.name for value in proto.graph.input if value.type.tensor_type.elem_type == float32}
        inputs = [name for name in self.view.inputs if name in floats]
        self._fed = frozenset(inputs)
        self.names = (*inputs, *(name for name in made if name not in others))
        last = {*self.view.outputs, *part.feeding}
        self.ends = tuple(name for name in self.names[len(inputs) :] if name in last)
        self.untyped = tuple(name for name in self.names[len(inputs) :] if name not in kinds)
        own = [node.proto for node in part.nodes]
        nodes = own if as_written else with_known_numbers(part.nodes, self.view, self.names, sizes)
        self.stripped = strip_weights(model, nodes, lent, ArrayFile())
        self.rounded: dict[RoundedWeight, Array] = {}

    def chosen(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Of `names` those that are wanted.

        Raises:
            QdqError: a wanted tensor is not in the graph.
        """
        names = frozenset(wanted)
        every = {*self.view.inputs, *self.view.producers, *self.view.initializers}
        for name in sorted(names - every):
            raise QdqError(name, "is not a tensor of the model's main graph", "name one that is")
        return tuple(name for name in self.names if name in names)

    def is_input(self, name: str) -> bool:
        """Whether a tensor is fed, and needs no session to be seen."""
        return name in self._fed

    def floats(self, names: Iterable[str]) -> tuple[str, ...]:
        """Of some of `names` those that hold float32: onnxruntime is asked about types that inference does not know.

        Raises:
            QdqError: onnxruntime refuses the model.
        """
        asked = tuple(names)
        open_ones = [name for name in asked if name in frozenset(self.untyped)]
        if not open_ones:
            return asked
        kinds = {output.name: output.type for output in self.session(open_ones).get_outputs()}
        return tuple(name for name in asked if kinds.get(name, _FLOAT) == _FLOAT)

    @cached_property
    def optimization(self) -> str:
        """The level of onnxruntime's optimizations, in every session that runs a part of it: basic for Q/DQ."""
        return "ORT_ENABLE_BASIC" if self._as_written else optimization_of(self.stripped[0])

    def session(self, outputs: Sequence[str], *, few_runs: bool = False) -> Any:
        """A session with these outputs; Q/DQ is computed as written, in float, never fused into integer kernels.

        Raises:
            QdqError: onnxruntime refuses the model.
        """
        model, external_initializers = self.stripped
        options = session_options(self.runtime, self.optimization)
        parts = (model, external_initializers, outputs)
        return start_session(self.runtime, parts, options, self.providers, self.where, self.disabled, few_runs=few_runs)


def observable(model: Model | ObservableModel, provider: str, where: object) -> ObservableModel:
    """A model made ready for onnxruntime, where that was not done before.

    Raises:
        QdqError: what `ObservableModel` refuses.
    """
    return model if isinstance(model, ObservableModel) else ObservableModel(model, provider, where)


def nothing_to_observe(where: object) -> QdqError:
    """The error of a model in which nothing can be observed; `where` is what messages call it."""
    return QdqError(where, "has no float32 activation that can be observed", "is it a float32 model?")


def optimization_of(model: onnx.ModelProto) -> str:
    """The level of onnxruntime's optimizations for a model: basic where it has Q/DQ, which is computed as written."""
    quantized = any(node.op_type == QUANTIZE for node in model.graph.node)
    return "ORT_ENABLE_BASIC" if quantized else "ORT_ENABLE_ALL"


class OrtActivations:
    """Runs batches and gives the float32 tensors of the main graph; several threads may do so at once.

    One onnxruntime thread per run, so that results do not depend on the machine (facts/performance.md 0 and 3).

    Attributes:
        names: what `run` gives, in graph order: inputs, then nodes as the file has them.
        lengths: how many of `names` come together: all of them.
        behind: see `ObservableModel`.
    """

    def __init__(
        self,
        model: Model,
        wanted: Iterable[str] | None = None,
        provider: str = "cpu",
        where: object = "model",
        lent: Mapping[str, Array] | None = None,
        *,
        few_runs: bool = False,
    ) -> None:
        """Make the session for tensors of a model; see `ObservableModel`."""
        ready = ObservableModel(model, provider, where, lent)
        self._open(ready, ready.names if wanted is None else ready.chosen(wanted), few_runs=few_runs)

    @classmethod
    def of(cls, model: ObservableModel, names: Sequence[str], *, few_runs: bool = False) -> OrtActivations:
        """The session for `names`, in graph order, of a model that has been looked at."""
        made = cls.__new__(cls)
        made._open(model, names, few_runs=few_runs)
        return made

    def _open(self, model: ObservableModel, names: Sequence[str], *, few_runs: bool) -> None:
        self._where = model.where
        self._model = model  # the session reads its arrays and copies none
        self.behind = model.behind
        self._fed = [name for name in names if model.is_input(name)]
        self._outputs = [name for name in names if not model.is_input(name)]
        self._session = self._start(model, few_runs=few_runs) if self._outputs else None
        self.names = (*self._fed, *self._outputs)
        self.lengths = (len(self.names),)
        if not self.names:
            raise nothing_to_observe(self._where)

    def run(self, batch: Mapping[str, Array]) -> Iterable[tuple[str, Float32]]:
        """The observed tensors of one batch.

        Raises:
            QdqError: onnxruntime cannot run it (shapes that do not go together, memory).
        """
        outputs: Sequence[Float32] = []
        if self._session is not None:
            outputs = run_session(self._session, self._outputs, batch, self._where)
        yield from ((name, batch[name]) for name in self._fed)
        yield from zip(self._outputs, outputs, strict=True)

    def _start(self, model: ObservableModel, *, few_runs: bool) -> Any:
        """A session whose outputs are the wanted tensors; a second one without those that prove not to be float32."""
        session = model.session(self._outputs, few_runs=few_runs)
        kinds = {output.name: output.type for output in session.get_outputs()}
        floats = [name for name in self._outputs if kinds[name] == _FLOAT]
        if len(floats) != len(self._outputs):
            self._outputs = floats
            session = model.session(floats, few_runs=few_runs) if floats else None
        return session


def runtime_types(model: Model, names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The types that onnxruntime infers for tensors that nodes make; no data is needed.

    Raises:
        QdqError: onnxruntime refuses the model.
        MissingPackageError: no onnxruntime, or several.
    """
    runtime, model = load_onnxruntime(), emulated(model)
    part = computable_part(model, runtime)
    asked = list(dict.fromkeys(names))
    made = [name for name in asked if name in model.view.producers and name not in part.behind]
    kinds: dict[str, str] = {}
    if made:
        parts = strip_weights(model, [node.proto for node in part.nodes])
        options = session_options(runtime, "ORT_DISABLE_ALL")
        session = start_session(runtime, (*parts, made), options, provider_names(runtime, "cpu"), "model")
        kinds = {output.name: output.type for output in session.get_outputs()}
    return kinds, {name: part.behind[name] for name in asked if name in part.behind}


def with_known_numbers(
    nodes: Sequence[Node], view: GraphView, wanted: Collection[str], sizes: GraphView | None = None
) -> list[onnx.NodeProto]:
    """The nodes, with what they compute from sizes as constants: exports of transformers hold thousands of such nodes.

    Each session of a run would work them out again. Their values are the same in every run: sizes of inputs are
    declared, and onnxruntime refuses others. Only what `known_shapes` had to follow is known; the rest stays as it is.
    From `sizes`, another graph with the same sizes, integers are taken.
    """
    if not any(node.op in _SIZES for node in nodes):
        return [node.proto for node in nodes]
    numbers = known_numbers(sizes or view)
    if sizes is not None:
        numbers = {name: value for name, value in numbers.items() if value.dtype.kind != "f"}
    last = {*view.outputs, *wanted}
    read = last.union(*(read_names(node) for node in nodes if node.key not in numbers))
    kept = []
    for node in nodes:
        value = numbers.get(node.key)
        if value is not None and node.key in read:
            kept.append(onnx.helper.make_node("Constant", [], [node.key], value=onnx.numpy_helper.from_array(value)))
        elif value is None and (node.op != "Constant" or node.key in read):
            kept.append(node.proto)
    return kept
