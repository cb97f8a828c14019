# SPDX-License-Identifier: Apache-2.0
"""How the trained models become ONNX files: opset 13, IR version 7, a free batch axis, names that can be read."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import torch

OPSET = 13
IR_VERSION = 7


def write(
    model: torch.nn.Module,
    shape: tuple[int, ...],
    outputs: list[str],
    path: Path,
    *,
    keep_batch_norm: bool,
    opset: int = OPSET,
) -> None:
    """Export `model` for images [N, *shape] with the tracing exporter, which is the one that can leave BatchNorm in."""
    training = torch.onnx.TrainingMode.PRESERVE if keep_batch_norm else torch.onnx.TrainingMode.EVAL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # meant for models in training mode; ours is in eval mode, where folding touches no BatchNorm
        warnings.filterwarnings("ignore", "It is recommended that constant folding")
        torch.onnx.export(
            model.eval(),
            (torch.zeros(2, *shape),),
            path,
            dynamo=False,
            training=training,
            opset_version=opset,
            input_names=["images"],
            output_names=outputs,
            dynamic_axes={name: {0: "batch"} for name in ["images", *outputs]},
        )
    proto = onnx.load(path)
    _state_shapes(proto.graph, model, shape)
    _own_initializers(proto.graph)
    _name_folded_weights(proto.graph)
    proto.ir_version = IR_VERSION
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _state_shapes(graph: onnx.GraphProto, model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    """Say how large the outputs are behind the batch axis; the exporter makes names up behind a Reshape."""
    with torch.no_grad():
        made = model(torch.zeros(2, *shape))
    for value, one in zip(graph.output, made if isinstance(made, tuple) else (made,), strict=True):
        for axis in range(1, one.ndim):
            value.type.tensor_type.shape.dim[axis].dim_value = one.shape[axis]


def _own_initializers(graph: onnx.GraphProto) -> None:
    """Give each reader its own copy of an initializer that the exporter shares through Identity nodes."""
    values = {tensor.name: tensor for tensor in graph.initializer}
    shared = [node for node in graph.node if node.op_type == "Identity" and node.input[0] in values]
    for node in shared:
        copy = graph.initializer.add()
        copy.CopyFrom(values[node.input[0]])
        copy.name = node.output[0]
        graph.node.remove(node)


def _name_folded_weights(graph: onnx.GraphProto) -> None:
    """Name the weights that folding BatchNorm made ("onnx::Conv_131") after the convolution that reads them."""
    names = {}
    for node in graph.node:
        module = node.name.strip("/").rpartition("/")[0].replace("/", ".")
        for port, name in enumerate(node.input):
            if name.startswith("onnx::"):
                node.input[port] = names[name] = f"{module}.{('weight', 'bias')[port - 1]}"
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
