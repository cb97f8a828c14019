# SPDX-License-Identifier: Apache-2.0
"""The teacher: a float model in a session of its own that gives the tensors which the student is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.data.model_inputs import Input, inputs_of
from qdqtool.errors import QdqError
from qdqtool.graph.edit import edits_of
from qdqtool.graph.model import Model
from qdqtool.graph.order import remove_unread_initializers
from qdqtool.graph.types import opset_of
from qdqtool.passes.relu6 import STEP as RELU6
from qdqtool.pruning.kept_channels import KeptChannels
from qdqtool.runtime.installed import load_onnxruntime, one_line
from qdqtool.runtime.providers import provider_names
from qdqtool.runtime.runnable_part import runnable_part
from qdqtool.runtime.session import session_options, start_session, strip_weights
from qdqtool.training.losses.nodes import is_activation
from qdqtool.training.losses.options import nearest

Array = npt.NDArray[Any]

_UNSIGNED = (onnx.TensorProto.UINT8, onnx.TensorProto.UINT16, onnx.TensorProto.UINT4)


def float_twin(form: onnx.ModelProto, edited: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """The training form without its pairs: the student's own float network, every other tensor under its name.

    A pair of unsigned integers that begin at 0 cut off what is negative, so Relu stands in its place (as `peel` does).
    A Relu that `condition` limited to 6 is a Relu again. Call it before training: it holds the weights that the form
    has now.

    Args:
        form: a training form, or a part of one.
        edited: the model whose metadata tell what `condition` did; None for `form` itself.
    """
    limited = {edit["site"] for edit in edits_of(form if edited is None else edited) if edit["step"] == RELU6}
    twin = onnx.ModelProto()
    twin.CopyFrom(form)
    zeros = {tensor.name: tensor for tensor in twin.graph.initializer}
    outputs = {value.name for value in twin.graph.output}
    behind: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in twin.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = behind.get(name, name)
        cuts = node.domain == PAIR_DOMAIN and _begins_at_zero(zeros.get(node.input[2]))
        if node.op_type == "Clip" and node.output[0] in limited:
            kept.append(onnx.helper.make_node("Relu", [node.input[0]], [node.output[0]], node.name))
        elif node.domain != PAIR_DOMAIN:
            kept.append(node)
        elif cuts or node.output[0] in outputs:
            op = "Relu" if cuts else "Identity"
            kept.append(onnx.helper.make_node(op, [node.input[0]], [node.output[0]], node.name))
        else:
            behind[node.output[0]] = node.input[0]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del twin.graph.node[:]
    twin.graph.node.extend(nodes)
    functions = [function for function in twin.functions if function.domain != PAIR_DOMAIN]
    del twin.functions[:]
    twin.functions.extend(functions)
    remove_unread_initializers(twin.graph)
    return twin


def _begins_at_zero(zero: onnx.TensorProto | None) -> bool:
    return zero is not None and zero.data_type in _UNSIGNED and not onnx.numpy_helper.to_array(zero).any()


class Teacher:
    """A frozen model, run beside the student on the same batches: full optimization, one thread, wanted tensors only.

    Attributes:
        names: every tensor that it can give.
        where: what messages call it.
    """

    def __init__(
        self,
        model: Model,
        batch: Mapping[str, Array],
        where: object = "--teacher",
        kept: Mapping[str, KeptChannels] | None = None,
        provider: str = "cpu",
    ) -> None:
        """Look at the model; nothing runs yet."""
        self.where = where
        self._model, self._example = model, dict(batch)
        self._runtime = load_onnxruntime()
        self._providers = provider_names(self._runtime, provider)
        self._view = model.view
        self._part = runnable_part(model, self._runtime, self._providers)
        self._inputs = inputs_of(model.graph)
        self._sources = self._paired(tuple(batch))
        self.names = frozenset(self._view.producers) - self._part.behind.keys()
        self._kept = kept or {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._wanted: tuple[str, ...] = ()
        self._session: Any = None

    def shapes(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Shapes of tensors at the batch size trained with, from one run of the example batch.

        Raises:
            QdqError: no such tensor, or it cannot be computed or is not float32.
        """
        for name in names:
            if name not in self.names:
                lost = f"comes after {self._part.behind[name]}" if name in self._part.behind else "is not in it"
                guess = nearest(name, sorted(self.names))
                raise QdqError(self.where, f"tensor {name} {lost}{guess}", "name a tensor that the teacher computes")
        unknown = tuple(dict.fromkeys(name for name in names if name not in self._shapes))
        if unknown:
            for name, array in self._outcome(self._start(unknown), unknown, self._example).items():
                if array.dtype != np.float32:
                    raise QdqError(self.where, f"tensor {name} is {array.dtype}, not float32", "name another")
                self._shapes[name] = array.shape
        return {name: self._shapes[name] for name in names}

    def before_softmax(self, name: str, axis: int) -> str | None:
        """The tensor before the Softmax along an axis that made one; None where none did, or it is not to be had."""
        node = self._view.producer(name) if name in self.names else None
        while node is not None and node.op == "Identity":
            node = self._view.producer(node.inputs[0])
        if node is None or node.op != "Softmax" or node.inputs[0] not in self.names:
            return None
        rank = len(self.shapes([name])[name])
        fits = axis < rank and is_activation(node.proto, "Softmax", axis, rank, opset_of(self._model.proto) or 13)
        return node.inputs[0] if fits else None

    def comparable(self, shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """The names under which student and teacher have a float tensor of one shape.

        Raises:
            QdqError: the teacher cannot run the batch.
        """
        shared = tuple(name for name in shapes if name in self.names)
        if not shared:
            return frozenset()
        found = self._outcome(self._start(shared), shared, self._example)
        floats = {name: array.shape for name, array in found.items() if array.dtype == np.float32}
        self._shapes.update(floats)
        return frozenset(name for name, shape in floats.items() if shape == tuple(shapes[name]))

    def fetch(self, tensors: Sequence[str]) -> None:
        """Say what `run` is to give from now on."""
        self._wanted = tuple(dict.fromkeys(tensors))
        self._session = self._start(self._wanted) if self._wanted else None

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The wanted tensors of one batch, by name.

        Raises:
            QdqError: the teacher cannot run it, or gives what is not finite.
        """
        if self._session is None:
            return {}
        found = self._outcome(self._session, self._wanted, batch)
        for name, array in found.items():
            # The sum is four times cheaper to take, and is not finite where a value is not, or where they are large.
            with np.errstate(over="ignore", invalid="ignore"):
                total = array.sum()
            if not np.isfinite(total) and not np.isfinite(array).all():
                raise QdqError(
                    self.where, f"tensor {name} holds NaN or Inf for a batch", "check the data and the model"
                )
        return found

    def _paired(self, given: tuple[str, ...]) -> dict[str, str]:
        """Teacher's input -> the student's that feeds it: by name, or the only one of each."""
        wanted = tuple(one.name for one in self._inputs)
        if len(wanted) == 1 == len(given):
            return {wanted[0]: given[0]}
        for name in wanted:
            if name not in given:
                reason = f"its input {name!r} is none of the student's{nearest(name, list(given))}"
                raise QdqError(self.where, reason, f"the student's inputs are {', '.join(given)}")
        return {name: name for name in wanted}

    def _start(self, tensors: Sequence[str]) -> Any:
        options = session_options(self._runtime, "ORT_ENABLE_ALL")
        parts = strip_weights(self._model, [node.proto for node in self._part.nodes])
        return start_session(self._runtime, (*parts, tensors), options, self._providers, self.where)

    def _outcome(self, session: Any, tensors: Sequence[str], batch: Mapping[str, Array]) -> dict[str, Array]:
        feeds = {one.name: batch[self._sources[one.name]] for one in self._inputs}
        pieces = [self._run_once(session, tensors, feed) for feed in _pieces(self._inputs, feeds)]
        arrays = pieces[0] if len(pieces) == 1 else [np.concatenate(each) for each in zip(*pieces, strict=True)]
        return {name: self._without_gone(name, array) for name, array in zip(tensors, arrays, strict=True)}

    def _without_gone(self, name: str, array: Array) -> Array:
        """A tensor's channels that a pruned student has; the tensor where it is none of those the note is about."""
        kept = self._kept.get(name)
        if kept is None or array.ndim <= kept.axis or array.shape[kept.axis] != kept.total:
            return array
        return np.take(array, kept.places, kept.axis)

    def _run_once(self, session: Any, tensors: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        try:
            return list(session.run(list(tensors), feed))
        except Exception as error:  # onnxruntime's exceptions share no base class but this
            reason = f"onnxruntime cannot run it on the student's batch ({one_line(error)})"
            raise QdqError(self.where, reason, "does it take the same inputs as the student?") from error


def _pieces(inputs: Sequence[Input], feeds: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The batch cut into what a teacher with a fixed, smaller batch takes; whole where it fits."""
    one = inputs[0] if inputs else None
    if one is None or not one.first or feeds[one.name].ndim == 0:
        return [dict(feeds)]
    samples, at_once = feeds[one.name].shape[0], one.first
    if samples <= at_once or any(array.shape[:1] != (samples,) for array in feeds.values()):
        return [dict(feeds)]
    return [{name: array[i : i + at_once] for name, array in feeds.items()} for i in range(0, samples, at_once)]
