# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of every tensor, from a run on one batch and not from shape inference, and the Forward made so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import onnx
from onnx import helper

from qdqtool.autodiff.backend import Forward
from qdqtool.errors import QdqError
from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.model import Model
from qdqtool.graph.order import remove_dead
from qdqtool.measures import largest_difference
from qdqtool.runtime.executor import Executor
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.session import run_session, session_options, start_session, strip_weights
from qdqtool.training.batchnorm import lower_batch_norms
from qdqtool.training.losses.gradient_paths import reached_parameters
from qdqtool.training.start_checks import TOLERANCE

Array = npt.NDArray[Any]
_CPU = ["CPUExecutionProvider"]
_WHERE = "the training graph"


class SeenTensor(NamedTuple):
    """What a run showed of a tensor: its shape, and its ONNX element type."""

    shape: tuple[int, ...]
    elem_type: int


def run_once(model: Model, batch: Mapping[str, Array]) -> dict[str, SeenTensor]:
    """Shape and type of every tensor of the main graph: inputs, initializers, what nodes make.

    The graph runs once, with a Shape node after every tensor, so that no more of it is in memory at a time than in any
    run. Types are what onnxruntime resolves; sequences and what is left out are not listed.

    Raises:
        QdqError: an input without an array, or onnxruntime refuses or cannot run it.
    """
    inputs = model.view.inputs
    lacking = [name for name in inputs if name not in batch]
    if lacking:
        raise QdqError(lacking[0], "is an input of the training graph that the data do not hold", "add it to the data")
    runtime = load_onnxruntime()
    seen = {tensor.name: SeenTensor(tuple(tensor.dims), tensor.data_type) for tensor in model.graph.initializer}
    for name in inputs:
        seen[name] = SeenTensor(batch[name].shape, int(helper.np_dtype_to_tensor_dtype(batch[name].dtype)))
    made = [name for node in model.graph.node for name in node.output if name]
    types = _types(runtime, model, made)
    shapes = _shapes(runtime, model, [name for name in made if name in types], batch)
    seen.update((name, SeenTensor(shapes[name], types[name])) for name in made if name in types)
    return seen


def _types(runtime: Any, model: Model, names: Sequence[str]) -> dict[str, int]:
    """Element types as onnxruntime resolves them, without a run."""
    if not names:
        return {}
    options = session_options(runtime, "ORT_DISABLE_ALL")
    stripped = (*strip_weights(model, model.graph.node), names)
    session = start_session(runtime, stripped, options, _CPU, _WHERE)
    known = {f"tensor({_word(code)})": code for code in onnx.TensorProto.DataType.values()}
    return {one.name: known[one.type] for one in session.get_outputs() if one.type in known}


def _word(code: int) -> str:
    return str(onnx.TensorProto.DataType.Name(code)).lower()


def _shapes(runtime: Any, model: Model, names: Sequence[str], batch: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    if not names:
        return {}
    stripped, external_initializers = strip_weights(model, model.graph.node)
    draft = GraphBuilder(stripped)
    asked = {name: draft.append("Shape", [name], f"{name}_shape") for name in names}
    options = session_options(runtime, "ORT_DISABLE_ALL")
    options.execution_order = (
        runtime.ExecutionOrder.PRIORITY_BASED
    )  # Shape before what is larger: nothing is kept for it
    session = start_session(runtime, (stripped, external_initializers, list(asked.values())), options, _CPU, _WHERE)
    feed = {one.name: batch[one.name] for one in session.get_inputs()}
    found = run_session(session, list(asked.values()), feed, _WHERE)
    return {name: tuple(int(length) for length in shape) for name, shape in zip(asked, found, strict=True)}


def make_forward(
    proto: onnx.ModelProto,
    parameters: Sequence[str],
    loss: str,
    auxiliary: Sequence[str],
    batch: Mapping[str, Array],
) -> Forward:
    """What a gradient back end is given.

    Raises:
        QdqError: the loss is not one float32 number, depends on no parameter, or the graph does not run on the batch.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    draft = GraphBuilder(copy)
    draft.set_nodes(list(copy.graph.node))
    seen = run_once(Model(copy), batch)
    _set_outputs(copy, (loss, *dict.fromkeys(name for name in auxiliary if name != loss)), seen)
    remove_dead(copy.graph)
    before = onnx.ModelProto()
    before.CopyFrom(copy)
    if lower_batch_norms(draft, {name: one.shape for name, one in seen.items()}):
        remove_dead(copy.graph)
        _check_same(before, copy, batch)
        seen = run_once(Model(copy), batch)
    if seen[loss].shape not in ((), (1,)) or seen[loss].elem_type != onnx.TensorProto.FLOAT:
        raise QdqError(loss, f"is the loss and has the shape {list(seen[loss].shape)}", "give one float32 number")
    _fix_inputs(copy, seen)
    wanted = reached_parameters(copy, loss, parameters)
    if not wanted:
        raise QdqError(loss, "is the loss and depends on nothing that is trained", "give another loss, or train more")
    names = {tensor.name for tensor in copy.graph.initializer}
    names.update(name for node in copy.graph.node for name in (*node.input, *node.output))
    names.update(value.name for value in copy.graph.input)
    kept = {name: one for name, one in seen.items() if name in names}
    shapes, types = {n: one.shape for n, one in kept.items()}, {n: one.elem_type for n, one in kept.items()}
    others = tuple(value.name for value in copy.graph.output if value.name != loss)
    return Forward(copy, wanted, loss, others, shapes, types)


def _check_same(before: onnx.ModelProto, after: onnx.ModelProto, batch: Mapping[str, Array]) -> None:
    """Refuse a graph that computes something else after BatchNormalization was rewritten as an affine map."""
    ours, theirs = (Executor(Model(proto), None, _WHERE).run(batch) for proto in (after, before))
    worst, name = largest_difference(ours, theirs)
    if worst > TOLERANCE:
        reason = f"differs by {worst:.1e} of its size after BatchNormalization was rewritten as an affine map"
        raise QdqError(name, reason, "please report it with the model: nothing was trained")


def _set_outputs(proto: onnx.ModelProto, names: Sequence[str], seen: Mapping[str, SeenTensor]) -> None:
    fresh = onnx.GraphProto()
    for name in names:
        if name not in seen:
            raise QdqError(name, "is not a tensor of the training graph", "name one that is there")
        fresh.output.append(helper.make_tensor_value_info(name, seen[name].elem_type, list(seen[name].shape)))
    proto.graph.ClearField("output")
    proto.graph.output.extend(fresh.output)


def _fix_inputs(proto: onnx.ModelProto, seen: Mapping[str, SeenTensor]) -> None:
    """Inputs of the shapes that are trained with."""
    fixed = [
        helper.make_tensor_value_info(v.name, seen[v.name].elem_type, list(seen[v.name].shape))
        for v in proto.graph.input
    ]
    fresh = onnx.GraphProto(input=fixed)
    proto.graph.ClearField("input")
    proto.graph.ClearField("value_info")
    proto.graph.input.extend(fresh.input)
