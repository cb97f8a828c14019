# SPDX-License-Identifier: Apache-2.0
"""A forward graph from ONNX text with a random linear loss after it, and its gradients by central differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from qdqtool.autodiff.backend import PAIR_DOMAIN, Forward
from qdqtool.autodiff.pairs import PairFunction
from tests.ort_session import PLAIN, session_of

Arrays = dict[str, np.ndarray[Any, Any]]
STEP = 1e-2


@dataclass(frozen=True)
class RuleCase:
    """One graph: nodes that make y (and more outputs), what is differentiated by, and the rest of what they read."""

    nodes: str
    params: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    low: float = -2.0
    high: float = 2.0
    outputs: tuple[str, ...] = ("y",)
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.nodes.split("\n")[-1].strip()


def distinct(rng: np.random.Generator, shape: Sequence[int], low: float, high: float) -> np.ndarray[Any, Any]:
    """Numbers evenly apart in random order, so that no maximum is a tie and none lies on a kink at 0 or 1."""
    count = int(np.prod(shape, dtype=int))
    return rng.permutation(np.linspace(low, high, count + 2)[1:-1] + 0.0137).reshape(shape).astype(np.float32)


def model_of_case(case: RuleCase, values: Arrays) -> onnx.ModelProto:
    """The nodes as a model whose initializers are the parameters and the constants."""
    text = f'<ir_version: 8, opset_import: ["" : {case.opset}, "{PAIR_DOMAIN}" : 1]> g () => () {{ {case.nodes} }}'
    model = onnx.parser.parse_model(text)
    given = {**values, **{name: np.asarray(value) for name, value in case.constants.items()}}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in given.items())
    kinds = {node.op_type for node in model.graph.node if node.domain == PAIR_DOMAIN}
    pairs = [pair for kind in sorted(kinds) if (pair := PairFunction.parse(kind)) is not None]
    model.functions.extend(pair.function(case.opset) for pair in pairs)
    return model


def run_whole(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Every tensor that a node makes, by name."""
    names = [name for node in model.graph.node for name in node.output if name]
    open_model = onnx.ModelProto()
    open_model.CopyFrom(model)
    del open_model.graph.output[:]
    open_model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    return dict(zip(names, session_of(open_model, PLAIN).run(names, feeds), strict=True))


def forward_of(
    model: onnx.ModelProto,
    parameters: Sequence[str],
    loss: str = "loss",
    auxiliary: Sequence[str] = (),
    feeds: Arrays | None = None,
) -> Forward:
    """The model as what a back end takes; it has a scalar of the name `loss`."""
    made = run_whole(model, feeds or {})
    made.update((tensor.name, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer)
    made.update(feeds or {})
    del model.graph.output[:]
    for name in (loss, *auxiliary):
        kind = helper.np_dtype_to_tensor_dtype(made[name].dtype)
        model.graph.output.append(helper.make_tensor_value_info(name, kind, made[name].shape))
    shapes = {name: array.shape for name, array in made.items()}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in made.items()}
    return Forward(model, tuple(parameters), loss, tuple(auxiliary), shapes, types)


def with_loss(model: onnx.ModelProto, outputs: Sequence[str], made: Arrays, rng: np.random.Generator) -> Arrays:
    """Adds loss = the sum of every number times a random one; returns those numbers by output."""
    weights = {name: rng.uniform(0.5, 1.5, made[name].shape).astype(np.float32) for name in outputs}
    terms = []
    for name, weight in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(weight, f"{name}_weight"))
        model.graph.node.append(helper.make_node("Mul", [name, f"{name}_weight"], [f"{name}_weighted"]))
        model.graph.node.append(helper.make_node("ReduceSum", [f"{name}_weighted"], [f"{name}_sum"], keepdims=0))
        terms.append(f"{name}_sum")
    model.graph.node.append(helper.make_node("Sum", terms, ["loss"]))
    return weights


def differences(f: Callable[[Arrays], float], at: Arrays, name: str, step: float = STEP) -> np.ndarray[Any, Any]:
    """The gradient of f by one array, number by number, central differences of fourth order."""
    gradient = np.zeros(at[name].shape, np.float64)
    for place in np.ndindex(at[name].shape):

        def moved(by: float, place: tuple[int, ...] = place) -> float:
            array = at[name].copy()
            array[place] += np.float32(by)
            return f({**at, name: array})

        gradient[place] = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step)
    return gradient


def loss_function(model: onnx.ModelProto, weights: Arrays, params: Sequence[str]) -> Callable[[Arrays], float]:
    """The loss as a function of the parameters, summed in float64."""
    open_model = onnx.ModelProto()
    open_model.CopyFrom(model)
    graph = open_model.graph
    kept = [tensor for tensor in graph.initializer if tensor.name not in params]
    graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer if t.name in params
    )
    del graph.initializer[:], graph.output[:]
    graph.initializer.extend(kept)
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in weights)
    session = session_of(open_model, PLAIN)

    def loss(values: Arrays) -> float:
        answers = session.run(list(weights), values)
        return float(sum(np.vdot(a.astype(np.float64), w) for a, w in zip(answers, weights.values(), strict=True)))

    return loss
