# SPDX-License-Identifier: Apache-2.0
"""A training form run by PyTorch: each node as the call that a PyTorch user writes, pairs as fake quantization.

Needs torch and onnx, and nothing of qdqtool: it is the oracle of the gradient back ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812 - as all of PyTorch has it
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

PAIRS = "qdqtool.pairs"
Call = Callable[..., Any]
_AXIS = re.compile(r"PairAxis(\d+)")
_LEVELS = {"INT8": (-128, 127), "UINT8": (0, 255), "INT4": (-8, 7), "UINT4": (0, 15), "INT16": (-32768, 32767)}


class Interpreter(torch.nn.Module):  # type: ignore[misc]
    """One graph with a loss; its parameters are trained, all else is constant."""

    def __init__(self, model: onnx.ModelProto, parameters: Sequence[str], loss: str, shapes: Mapping[str, Any]) -> None:
        super().__init__()
        self.loss = loss
        self._tensors = {one.name: one for one in model.graph.initializer}
        self._arrays = {name: numpy_helper.to_array(one) for name, one in self._tensors.items()}
        nodes = with_silu(self._computed(model, frozenset(parameters), shapes))
        self.trained = {name: torch.nn.Parameter(torch.tensor(self._arrays[name])) for name in parameters}
        for at, value in enumerate(self.trained.values()):
            self.register_parameter(f"p{at}", value)
        self._fixed = {
            name: torch.tensor(array.copy())
            for name, array in self._arrays.items()
            if array.dtype in (np.float32, np.int64, np.bool_)
        }
        self._steps = [(self._call(node), _reads(node), [name for name in node.output if name]) for node in nodes]

    def _computed(
        self, model: onnx.ModelProto, trained: frozenset[str], shapes: Mapping[str, Any]
    ) -> list[onnx.NodeProto]:
        """Nodes without those that constants alone lead to, whose values become constants, as in a PyTorch model."""
        kept = []
        for node in model.graph.node:
            if node.op_type == "Shape" and node.input[0] in shapes:
                self._arrays[node.output[0]] = np.array(shapes[node.input[0]], np.int64)
            elif node.domain == PAIRS or any(
                name in trained or name not in self._arrays for name in node.input if name
            ):
                kept.append(node)
            else:
                run = ReferenceEvaluator(_alone(node, model))
                made = run.run(None, {name: self._arrays[name] for name in node.input if name})
                self._arrays.update(zip(node.output, made, strict=True))
        return kept

    def forward(self, feed: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        known = {**self._fixed, **self.trained, **feed}
        for call, reads, writes in self._steps:
            made = call(*[known.get(name) for name in reads])
            known.update(zip(writes, made if isinstance(made, (tuple, list)) else (made,), strict=False))
        return known[self.loss].reshape(())

    def _call(self, node: onnx.NodeProto) -> Call:
        how = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.domain == PAIRS:
            return self._pair(node)
        maker = _MAKERS.get(node.op_type)
        if maker is None:
            raise NotImplementedError(f"{node.op_type} is not among what the bench runs in PyTorch")
        constants = [self._arrays.get(name) for name in node.input]
        return maker(how, constants, len(node.output))

    def _pair(self, node: onnx.NodeProto) -> Call:
        kind = onnx.TensorProto.DataType.Name(self._tensors[node.input[2]].data_type)
        low, high = _LEVELS[kind]
        scale, zero = self._arrays[node.input[1]], self._arrays[node.input[2]].astype(np.int32)
        along = _AXIS.match(node.op_type)
        if along is None:
            step, middle = float(scale.reshape(())), int(zero.reshape(()))
            return lambda x, *_: torch.fake_quantize_per_tensor_affine(x, step, middle, low, high)
        axis, steps, middles = int(along[1]), torch.tensor(scale), torch.tensor(zero)
        return lambda x, *_: torch.fake_quantize_per_channel_affine(x, steps, middles, axis, low, high)


def _alone(node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of one node."""
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = onnx.GraphProto(name="alone", node=[node], input=inputs, output=outputs)
    return onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)


def _reads(node: onnx.NodeProto) -> list[str]:
    return list(node.input)


def with_silu(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes with x * sigmoid(x) as the one call that a PyTorch model makes of it."""
    readers = Counter(name for node in nodes for name in node.input)
    sigmoids = {n.output[0]: n for n in nodes if n.op_type == "Sigmoid" and readers[n.output[0]] == 1}
    found, gone = [], set()
    for node in nodes:
        gate = next((name for name in node.input if name in sigmoids), None) if node.op_type == "Mul" else None
        if gate and sigmoids[gate].input[0] in node.input:
            gone.add(gate)
            node = helper.make_node("Silu", [sigmoids[gate].input[0]], list(node.output))
        found.append(node)
    return [node for node in found if node.output[0] not in gone]


# ------------------------------------------------------------------------------------------ operators by themselves


def _symmetric(pads: Sequence[int]) -> tuple[list[int], list[int] | None]:
    """What a call takes as padding, and what F.pad has to do first where the sides differ."""
    half = len(pads) // 2
    before, after = list(pads[:half]), list(pads[half:])
    if before == after:
        return before, None
    sides = zip(reversed(before), reversed(after), strict=True)
    return [0] * half, [pad for side in sides for pad in side]


def _conv(how: dict[str, Any], constants: Sequence[Any], _: int) -> Call:
    pads, first = _symmetric(how.get("pads", [0, 0, 0, 0]))
    stride, dilation, groups = how.get("strides", [1, 1]), how.get("dilations", [1, 1]), how.get("group", 1)

    def call(x: Any, w: Any, b: Any = None) -> Any:
        return F.conv2d(x if first is None else F.pad(x, first), w, b, stride, pads, dilation, groups)

    return call


def _conv_transpose(how: dict[str, Any], *_: Any) -> Call:
    pads, first = _symmetric(how.get("pads", [0, 0, 0, 0]))
    if first is not None:
        raise NotImplementedError("ConvTranspose with sides that differ")
    more, stride = how.get("output_padding", [0, 0]), how.get("strides", [1, 1])
    groups, dilation = how.get("group", 1), how.get("dilations", [1, 1])
    return lambda x, w, b=None: F.conv_transpose2d(x, w, b, stride, pads, more, groups, dilation)


def _norm(how: dict[str, Any], *_: Any) -> Call:
    epsilon = how.get("epsilon", 1e-5)
    return lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, False, 0.0, epsilon)


def _max_pool(how: dict[str, Any], *_: Any) -> Call:
    pads, first = _symmetric(how.get("pads", [0, 0, 0, 0]))
    kernel, ceil = how["kernel_shape"], bool(how.get("ceil_mode", 0))
    stride = how.get("strides", [1, 1])

    def call(x: Any) -> Any:
        x = x if first is None else F.pad(x, first, value=-torch.inf)
        return F.max_pool2d(x, kernel, stride, pads, ceil_mode=ceil)

    return call


def _average_pool(how: dict[str, Any], *_: Any) -> Call:
    pads, first = _symmetric(how.get("pads", [0, 0, 0, 0]))
    if first is not None:
        raise NotImplementedError("AveragePool with sides that differ")
    stride, whole = how.get("strides", [1, 1]), bool(how.get("count_include_pad", 0))
    ceil = bool(how.get("ceil_mode", 0))
    return lambda x: F.avg_pool2d(x, how["kernel_shape"], stride, pads, ceil, whole)


def _resize(how: dict[str, Any], constants: Sequence[Any], _: int) -> Call:
    scales = constants[2] if len(constants) > 2 and constants[2] is not None and constants[2].size else None
    size = None if scales is not None else [int(one) for one in constants[3][2:]]
    factors = None if scales is None else [float(one) for one in scales[2:]]
    if how.get("mode", b"nearest") == b"nearest":
        return lambda x, *_: F.interpolate(x, size, factors, mode="nearest")
    corners = how.get("coordinate_transformation_mode", b"half_pixel") == b"align_corners"
    return lambda x, *_: F.interpolate(
        x, size, factors, mode="bilinear", align_corners=corners, recompute_scale_factor=None
    )


def _gemm(how: dict[str, Any], *_: Any) -> Call:
    if how.get("alpha", 1.0) != 1.0 or how.get("beta", 1.0) != 1.0 or how.get("transA", 0):
        raise NotImplementedError("Gemm with factors")
    flip = bool(how.get("transB", 0))
    return lambda x, w, b=None: F.linear(x, w if flip else w.t(), b)


def _slice(how: dict[str, Any], constants: Sequence[Any], _: int) -> Call:
    starts, ends = constants[1], constants[2]
    axes = constants[3] if len(constants) > 3 and constants[3] is not None else np.arange(len(starts))
    steps = constants[4] if len(constants) > 4 and constants[4] is not None else np.ones(len(starts), int)
    if any(step < 1 for step in steps):
        raise NotImplementedError("Slice backwards")
    parts = {int(a): slice(int(s), int(e), int(t)) for a, s, e, t in zip(axes, starts, ends, steps, strict=True)}

    def call(x: Any, *_: Any) -> Any:
        return x[tuple(parts.get(axis, parts.get(axis - x.ndim, slice(None))) for axis in range(x.ndim))]

    return call


def _reshape(how: dict[str, Any], constants: Sequence[Any], _: int) -> Call:
    wanted = [int(one) for one in constants[1]]

    def call(x: Any, *_: Any) -> Any:
        return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)])

    return call


def _pad(how: dict[str, Any], constants: Sequence[Any], _: int) -> Call:
    half = len(constants[1]) // 2
    sides = zip(reversed(constants[1][:half]), reversed(constants[1][half:]), strict=True)
    pads = [int(pad) for side in sides for pad in side]
    value = float(constants[2].reshape(())) if len(constants) > 2 and constants[2] is not None else 0.0
    return lambda x, *_: F.pad(x, pads, value=value)


def _reduced(call: Call) -> Call:
    def maker(how: dict[str, Any], constants: Sequence[Any], _: int) -> Call:
        given = constants[1] if len(constants) > 1 and constants[1] is not None else how.get("axes")
        keep = bool(how.get("keepdims", 1))

        def reduce(x: Any, *_: Any) -> Any:
            axes = tuple(range(x.ndim)) if given is None else tuple(int(one) for one in given)
            return call(x, dim=axes, keepdim=keep) if axes else x

        return reduce

    return maker


def _moved(call: Callable[[Any, Any], Any], argument: str, default: Any) -> Call:
    """A call with one attribute."""
    return lambda how, *_: lambda x, *rest: call(x, how.get(argument, default))


def _axes(constants: Sequence[Any], how: dict[str, Any]) -> list[int]:
    given = constants[1] if len(constants) > 1 else how["axes"]
    return [int(one) for one in given]


def _unsqueezed(x: Any, axes: Sequence[int]) -> Any:
    rank = x.ndim + len(axes)
    for axis in sorted(one % rank for one in axes):
        x = x.unsqueeze(axis)
    return x


def _plain(call: Call) -> Call:
    return lambda how, constants, _: call


def _clip(how: dict[str, Any], *_: Any) -> Call:
    return lambda x, low=None, high=None: torch.clamp(x, low, high)


def _hard_sigmoid(how: dict[str, Any], *_: Any) -> Call:
    alpha, beta = how.get("alpha", 0.2), how.get("beta", 0.5)
    return lambda x: torch.clamp(x * alpha + beta, 0, 1)


_MAKERS: dict[str, Call] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _norm,
    "Clip": _clip,
    "Concat": lambda how, *_: lambda *xs: torch.cat(xs, how["axis"]),
    "Constant": lambda how, *_: lambda: torch.tensor(numpy_helper.to_array(how["value"])),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": _plain(torch.div),
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Flatten": _moved(lambda x, axis: x.flatten(axis), "axis", 1),
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(lambda x: x.mean((2, 3), keepdim=True)),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(F.hardswish),
    "Identity": _plain(lambda x: x),
    "LeakyRelu": _moved(F.leaky_relu, "alpha", 0.01),
    "Log": _plain(torch.log),
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Pad": _pad,
    "Pow": _plain(torch.pow),
    "ReduceMean": _reduced(torch.mean),
    "ReduceSum": _reduced(torch.sum),
    "ReduceSumSquare": _reduced(lambda x, dim, keepdim: (x * x).sum(dim, keepdim)),
    "Relu": _plain(F.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": _plain(torch.sigmoid),
    "Silu": _plain(F.silu),
    "Slice": _slice,
    "Softmax": _moved(torch.softmax, "axis", -1),
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": lambda how, constants, _: lambda x, *_: x.squeeze(tuple(_axes(constants, how))),
    "Sub": _plain(torch.sub),
    "Sum": _plain(lambda *xs: sum(xs[1:], xs[0])),
    "Tanh": _plain(torch.tanh),
    "Transpose": _moved(lambda x, axes: x.permute(*axes), "perm", None),
    "Unsqueeze": lambda how, constants, _: lambda x, *_: _unsqueezed(x, _axes(constants, how)),
}
