# SPDX-License-Identifier: Apache-2.0
"""Runs of the cases: their batch and Forward, a back end's gradients, the slope by differences in float64. No tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward
from qdqtool.autodiff.pairs import PairFunction
from tests.autodiff.cases import Array, GradientCase
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of


def feed_of(model: onnx.ModelProto, given: Mapping[str, Array] | None = None, seed: int = 7) -> dict[str, Array]:
    """Random float inputs, and the given ones."""
    values, feed = np.random.default_rng(seed), dict(given or {})
    for one in model.graph.input:
        shape = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        feed.setdefault(one.name, values.normal(0, 1, shape).astype(np.float32))
    return feed


def with_loss(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with one more output `loss`: the sum of every output, each number with a weight of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, terms = made.graph, []
    for at, output in enumerate(model.graph.output):
        shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        weights = np.random.default_rng(at).uniform(-1, 1, shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(np.asarray(weights), f"weights{at}"))
        graph.node.append(helper.make_node("Mul", [output.name, f"weights{at}"], [f"weighted{at}"]))
        graph.node.append(helper.make_node("ReduceSum", [f"weighted{at}"], [f"term{at}"], keepdims=0))
        terms.append(f"term{at}")
    graph.node.append(helper.make_node("Sum" if len(terms) > 1 else "Identity", terms, ["loss"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return made


def parameters_of(text: str, model: onnx.ModelProto) -> tuple[str, ...]:
    """The initializers that the text gives no value."""
    valued = {part.split("=")[0].split()[-1] for part in _declared(text) if "=" in part}
    names = [one.name for one in model.graph.initializer if not one.name.startswith("weights")]
    return tuple(name for name in names if name not in valued)


def _declared(text: str) -> list[str]:
    """What stands between < and > before the nodes, cut at the commas outside brackets."""
    head = text.partition("{ ")[0] if "<" not in text else text[text.index("<") + 1 :]
    inside, parts, depth = head, [""], 0
    for letter in inside:
        if letter == ">" and depth == 0:
            return parts
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def run_all(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of the main graph, from onnxruntime without optimization."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = session_of(whole, PLAIN)
    found = dict(zip(names, session.run(names, dict(feed)), strict=True))
    found.update({one.name: numpy_helper.to_array(one) for one in model.graph.initializer})
    return {**feed, **found}


def forward_of(
    model: onnx.ModelProto, parameters: Sequence[str], feed: Mapping[str, Array], auxiliary: Sequence[str] = ()
) -> Forward:
    """A Forward of a model that makes `loss`; shapes and types come from a run."""
    model.ir_version = min(model.ir_version, 10)
    seen = run_all(model, feed)
    shapes = {name: tuple(np.shape(value)) for name, value in seen.items()}
    types = {name: helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype) for name, value in seen.items()}
    return Forward(model, tuple(parameters), "loss", tuple(auxiliary), shapes, types)


def oracle_of(case: GradientCase, forward: Forward) -> onnx.ModelProto:
    """The model whose slopes are right: the case's own, or the one spelled otherwise, with the same parameters."""
    if not case.oracle:
        return forward.proto
    model = with_loss(model_of(case.oracle, case.opset))
    stored = {one.name: one for one in forward.proto.graph.initializer}
    for one in model.graph.initializer:
        if one.name in forward.parameters:
            one.CopyFrom(stored[one.name])
    return model


def prepared(case: GradientCase) -> tuple[Forward, dict[str, Array]]:
    """A case's Forward and the batch that it was made with."""
    model = with_loss(model_of(case.text, case.opset))
    feed = feed_of(model, case.feed)
    return forward_of(model, parameters_of(case.text, model), feed), feed


def gradients_of(backend: Any, forward: Forward, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The loss under `""`, and the gradient by each parameter, as a back end's graph gives them."""
    graph = backend.build(forward)
    session = session_of(graph.proto)
    stored = {one.name: numpy_helper.to_array(one) for one in forward.proto.graph.initializer}
    values = {**feed, **{name: stored[name] for name in forward.parameters}}
    answers = session.run([forward.loss, *graph.gradients.values()], values)
    return dict(zip(("", *graph.gradients), answers, strict=True))


class Erf(OpRun):
    """The reference evaluator's own computes in float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype),)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float32 as float64, for the reference evaluator."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for one in made.graph.initializer:
        if one.data_type == TensorProto.FLOAT:
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one).astype(np.float64), one.name))
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in made.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
        if node.op_type == "GroupNormalization":
            node.attribute.append(helper.make_attribute("stash_type", TensorProto.DOUBLE))
    del made.graph.value_info[:]
    return made


def slopes(
    model: onnx.ModelProto, feed: Mapping[str, Array], directions: Mapping[str, Sequence[Array]], step: float = 1e-6
) -> dict[str, list[float]]:
    """The loss's slope along directions of each parameter, by central differences in float64."""
    model = in_float64(model)
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    kept = [one for one in model.graph.initializer if one.name not in directions]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for name in directions:
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, stored[name].shape))
    run = ReferenceEvaluator(model, new_ops=[Erf])
    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feed.items()}
    wide.update({name: stored[name] for name in directions})

    def loss(name: str, move: Array) -> float:
        return float(np.asarray(run.run(["loss"], {**wide, name: stored[name] + move})[0]).reshape(()))

    return {
        name: [(loss(name, step * way) - loss(name, -step * way)) / (2 * step) for way in ways]
        for name, ways in directions.items()
    }


def with_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the functions that its calls of PAIR_DOMAIN need; the text writes `qdqtool.pairs.Pair(...)`."""
    opset = next(one.version for one in model.opset_import if one.domain == "")
    kinds = sorted({node.op_type for node in model.graph.node if node.domain == PAIR_DOMAIN})
    pairs = [pair for kind in kinds if (pair := PairFunction.parse(kind)) is not None]
    model.functions.extend(pair.function(opset) for pair in pairs)
    if kinds and not any(one.domain == PAIR_DOMAIN for one in model.opset_import):
        model.opset_import.append(helper.make_opsetid(PAIR_DOMAIN, 1))
    return model
