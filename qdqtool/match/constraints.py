# SPDX-License-Identifier: Apache-2.0
"""Guards that rules name. Each returns whether it lets through; its docstring reads well after "not because ..."."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.einsum import EinsumProduct
from qdqtool.graph.last_layers import is_log_odds
from qdqtool.graph.nodes import is_training
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, attribute
from qdqtool.graph.weighted import is_depthwise, weight_dims, weight_index, weight_rank, weight_type
from qdqtool.match.residual import fused_branch
from qdqtool.match.site import MatchSite
from qdqtool.rule_files import operator_set
from qdqtool.rule_steps import Step

_FAR = 16  # tensors between a gate and the linear layers that make it
Constraint = Callable[[MatchSite], bool]


class WithSets(Protocol):
    """Rules with sets of operators, spelled out: a rule book, or what the DLA runs."""

    @property
    def sets(self) -> Mapping[str, tuple[str, ...]]:
        """Name -> operators."""


_CONSTRAINTS: dict[str, Constraint] = {}


def constraint(function: Constraint) -> Constraint:
    """Make a guard known to rules under its name."""
    _CONSTRAINTS[function.__name__] = function
    return function


def constraint_named(name: str) -> Constraint:
    """The guard of that name; QdqError where a rule names none that exists."""
    try:
        return _CONSTRAINTS[name]
    except KeyError:
        raise QdqError(name, "no such constraint", f"known: {', '.join(sorted(_CONSTRAINTS))}") from None


def operators(step: Step, rules: WithSets) -> list[str]:
    """The operators that a step names, sets spelled out.

    Raises:
        QdqError: a set or a constraint that does not exist.
    """
    if step.constraint:
        constraint_named(step.constraint)
    for name in step.names:
        if name not in rules.sets and not name[:1].isupper():
            raise QdqError(
                name, "is neither an operator nor a set of the rules", f"known sets: {', '.join(sorted(rules.sets))}"
            )
    return [op for name in step.names for op in rules.sets.get(name, (name,))]


def reason_of(name: str) -> str:
    """What a guard that stopped says."""
    return (constraint_named(name).__doc__ or name).strip().splitlines()[0].rstrip(".")


@constraint
def weight(site: MatchSite) -> bool:
    """It has no constant float32 weight."""
    index = weight_index(site.view, site.node)
    return index is not None and weight_type(site.view, site.node.inputs[index]) == onnx.TensorProto.FLOAT


@constraint
def depthwise(site: MatchSite) -> bool:
    """It is no depthwise convolution with a constant float32 weight."""
    return weight(site) and is_depthwise(site.view, site.node)


@constraint
def large_kernel(site: MatchSite) -> bool:
    """Its kernel has 32 values or fewer for a channel."""
    index = weight_index(site.view, site.node)
    return index is not None and math.prod(weight_dims(site.view, site.node.inputs[index])[2:]) > 32


@constraint
def few_channels(site: MatchSite) -> bool:
    """Its weight has more than 16 channels on either side."""
    index = weight_index(site.view, site.node)
    return index is not None and min(weight_dims(site.view, site.node.inputs[index])[:2], default=0) <= 16


@constraint
def narrow_matrix(site: MatchSite) -> bool:
    """Its weight is 16 or more wide and deep."""
    index = weight_index(site.view, site.node)
    return index is not None and min(weight_dims(site.view, site.node.inputs[index])[-2:], default=0) < 16


@constraint
def one_row(site: MatchSite) -> bool:
    """It multiplies more than one row, or a number that is not known."""
    index = weight_index(site.view, site.node)
    shape = () if index is None else known_shapes(site.view).get(site.view.root(site.node.inputs[1 - index]), ())
    rows = shape[-1:] if site.node.op == "Gemm" and attribute(site.node, "transA", 0) else shape[:-1]
    return bool(shape) and None not in rows and math.prod(size or 0 for size in rows) == 1


@constraint
def reads_attention(site: MatchSite) -> bool:
    """It does not read what an attention gives, moved at most."""
    view, index = site.view, weight_index(site.view, site.node)
    maker = None if index is None else view.producer(site.node.inputs[1 - index])
    while maker is not None and maker.op in operator_set("rearranging"):
        maker = view.producer(maker.inputs[0])
    if maker is None or maker.op != "MatMul" or weight_index(view, maker) is not None:
        return False
    shares = view.producer(maker.inputs[0])
    return shares is not None and shares.op == "Softmax"


@constraint
def reads_transposed_rows(site: MatchSite) -> bool:
    """It does not read three axes straight from a Transpose, or only one row of each."""
    index = weight_index(site.view, site.node)
    read = "" if index is None else site.view.root(site.node.inputs[1 - index])
    if known_shapes(site.view).get(read, (None, None))[-2:-1] == (1,):
        return False
    maker = site.view.producer(read)
    while maker is not None and maker.op == "Identity":
        maker = site.view.producer(maker.inputs[0])
    order = attribute(maker, "perm", ()) if maker is not None and maker.op == "Transpose" else ()
    return isinstance(order, Sequence) and len(order) == 3


@constraint
def makes_attention_operands(site: MatchSite) -> bool:
    """Its values are not cut into operands of an attention."""
    view, found = site.view, set[tuple[str, int]]()
    cut = {*operator_set("gathering"), *operator_set("copying")}
    moving = operator_set("rearranging")
    paths = [(use, False) for use in view.consumers(site.node.key)]
    while paths:
        use, parted = paths.pop()
        node, one_operand = use.node, use.node.op in ("Add", "Sub", "Mul", "Div")
        if node.op == "MatMul" and weight_index(view, node) is None and parted:
            found.add((node.key, use.index))
        elif node.op in moving or node.op in cut or (one_operand and view.is_constant(node.inputs[1 - use.index])):
            paths += [(after, parted or node.op in cut) for name in node.outputs for after in view.consumers(name)]
    return len(found) > 1


@constraint
def bias(site: MatchSite) -> bool:
    """The other operand is not a constant with one value per output channel."""
    return per_channel(site)


@constraint
def per_channel(site: MatchSite) -> bool:
    """The other operand is not a constant with one value per channel."""
    others = site.others()
    if len(others) != 1 or not site.view.is_constant(others[0]):
        return False
    shape = site.view.shape(others[0])
    if shape is None or weight_type(site.view, others[0]) != onnx.TensorProto.FLOAT:
        return False
    wide = [axis - len(shape) for axis, size in enumerate(shape) if size > 1]
    return not wide or wide == [_channel_axis(site)]


def _channel_axis(site: MatchSite) -> int:
    """The axis of output channels, counted from the last, of what the chain's first operator makes."""
    start = site.start or site.node
    if start.op in ("Gemm", "MatMul"):
        return -1
    return 1 - (weight_rank(site.view, start.inputs[1]) or 4)


@constraint
def inference(site: MatchSite) -> bool:
    """Its statistics are computed, as in training."""
    constant = all(site.view.is_constant(name) for name in site.node.inputs[1:])
    return constant and not is_training(site.node)


@constraint
def computed(site: MatchSite) -> bool:
    """An operand is constant."""
    names = [name for name in site.node.inputs if name]
    return len(names) >= 2 and not any(site.view.is_constant(name) for name in names)


@constraint
def computed_from_second(site: MatchSite) -> bool:
    """An operand is constant, or what comes in is not its second one."""
    return computed(site) and site.view.root(site.node.inputs[1]) == site.entry


@constraint
def by_constant(site: MatchSite) -> bool:
    """The other operand is computed."""
    return all(map(site.view.is_constant, site.others()))


@constraint
def of_linears(site: MatchSite) -> bool:
    """An operand does not come out of a linear layer, with nothing but activations and moves between."""
    names = [name for name in site.node.inputs if name]
    return computed(site) and all(_out_of_linear(site.view, name) for name in names)


def _out_of_linear(view: GraphView, name: str) -> bool:
    """Whether the values of a tensor come out of Gemm or MatMul alone, by what works on each value by itself."""
    between = operator_set("act") | operator_set("moving") | {"Mul", "Add", "Div", "Erf", "Pow"}
    waiting, met = [view.root(name)], set[str]()
    while waiting:
        tensor = waiting.pop()
        producer = view.producer(tensor)
        if tensor in met or view.is_constant(tensor):
            continue
        met.add(tensor)
        if producer is None or len(met) > _FAR:
            return False
        if producer.op not in operator_set("gemm"):
            if producer.op not in between:
                return False
            waiting += [view.root(one) for one in producer.inputs if one]
    return True


@constraint
def spatial(site: MatchSite) -> bool:
    """It does not average over two or more axes after the batch."""
    axes = attribute(site.node, "axes")
    if axes is None and len(site.node.inputs) > 1 and site.node.inputs[1]:
        value = site.view.array(site.node.inputs[1])
        axes = None if value is None else value.reshape(-1).tolist()
    return isinstance(axes, list) and len(axes) >= 2 and 0 not in axes


@constraint
def nearest(site: MatchSite) -> bool:
    """It interpolates between values."""
    return attribute(site.node, "mode", "nearest") == "nearest"


@constraint
def interpolating(site: MatchSite) -> bool:
    """It copies the nearest value."""
    return not nearest(site)


@constraint
def selects(site: MatchSite) -> bool:
    """What it takes, or the places it takes it from, is not of the needed kind."""
    return not site.view.is_constant(site.node.inputs[0]) and site.view.is_constant(site.node.inputs[1])


@constraint
def zero_or_copy(site: MatchSite) -> bool:
    """It pads with a value that is not zero."""
    if attribute(site.node, "mode", "constant") != "constant":
        return True
    if len(site.node.inputs) > 2 and site.node.inputs[2]:
        value = site.view.array(site.node.inputs[2])
        return value is not None and not np.any(value)
    return not attribute(site.node, "value", 0.0)


@constraint
def pads_window(site: MatchSite) -> bool:
    """It pads with a value that is not zero, or neither a convolution nor a pool reads it."""
    return zero_or_copy(site) and _read_by_window(site)


def _read_by_window(site: MatchSite) -> bool:
    """Whether a convolution or a pool reads what the node makes, across what rearranges or copies."""
    stack, seen = [name for name in site.node.outputs if name], set[str]()
    while stack:
        name = stack.pop()
        for use in site.view.consumers(name) if name not in seen else ():
            if use.node.op in ("Conv", "ConvTranspose") or use.node.op in operator_set("pooling"):
                return True
            if use.node.op in operator_set("rearranging") | operator_set("copying"):
                stack.extend(one for one in use.node.outputs if one)
        seen.add(name)
    return False


@constraint
def joins_pools(site: MatchSite) -> bool:
    """None of its inputs comes straight out of a MaxPool."""
    producers = (site.view.producer(site.view.root(name)) for name in site.node.inputs if name)
    return any(producer is not None and producer.op == "MaxPool" for producer in producers)


@constraint
def joins_tokens(site: MatchSite) -> bool:
    """An input of it does not come straight out of a Transpose."""
    producers = [site.view.producer(site.view.root(name)) for name in site.node.inputs if name]
    return len(producers) > 1 and all(one is not None and one.op == "Transpose" for one in producers)


@constraint
def transposed_weight(site: MatchSite) -> bool:
    """Its weight is not transposed."""
    return bool(attribute(site.node, "transB", 0))


@constraint
def plain_weight(site: MatchSite) -> bool:
    """Its weight is transposed."""
    return not transposed_weight(site)


@constraint
def right_matrix(site: MatchSite) -> bool:
    """Its weight is no matrix on the right."""
    return weight_index(site.view, site.node) == 1 and weight_rank(site.view, site.node.inputs[1]) == 2


@constraint
def channels_first(site: MatchSite) -> bool:
    """The first axis of its weight does not alone hold the channels of the output."""
    return _einsum_channel_axis(site) == 0


@constraint
def channels_last(site: MatchSite) -> bool:
    """The last axis of its weight does not alone hold the channels of the output."""
    axis, index = _einsum_channel_axis(site), weight_index(site.view, site.node)
    return axis is not None and index is not None and axis + 1 == weight_rank(site.view, site.node.inputs[index])


def _einsum_channel_axis(site: MatchSite) -> int | None:
    product, index = EinsumProduct.of(site.node), weight_index(site.view, site.node)
    return None if product is None or index is None else product.channel_axis(index)


@constraint
def residual(site: MatchSite) -> bool:
    """The Add fuses with its other branch, or has none that is computed."""
    others = site.others()
    refines = len(others) == 1 and is_log_odds(site.view, others[0])  # a box and its reference, not a residual
    return computed(site) and not refines and fused_branch(site) == site.entry
