# SPDX-License-Identifier: Apache-2.0
"""Q/DQ models that are hard on purpose: one scale per weight behind rescaled channels, and four bits everywhere.

`insert` makes neither, and no engine wants them; they show how much fine-tuning brings back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qdqtool.graph.model import Model

SPREAD = 8.0  # channels are scaled by 1/8 to 8
_GRID = 40  # ranges that are tried, down to a quarter of the largest
_OPSET = 21  # the first with INT4


def rescaled(plain: Path, out: Path, seed: int = 0) -> int:
    """Scale channels between a convolution with Relu and the next one, by factors that leave the function as it is.

    relu(k x) = k relu(x) for k > 0, so what one convolution (or its BatchNormalization) multiplies, the next divides.

    Returns:
        how many tensors were rescaled.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(plain))
    graph, draw = model.graph, np.random.default_rng(seed)
    stored = {one.name: one for one in graph.initializer}
    readers = {name: [n for n in graph.node if name in n.input] for node in graph.node for name in node.output}
    makers = {name: node for node in graph.node for name in node.output}

    def scale(name: str, factors: Any, shape: tuple[int, ...]) -> None:
        value = numpy_helper.to_array(stored[name]) * factors.reshape(shape)
        stored[name].CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))

    done = 0
    for relu in [node for node in graph.node if node.op_type == "Relu"]:
        after, norm = readers[relu.output[0]], makers[relu.input[0]]
        conv = makers[norm.input[0]] if norm.op_type == "BatchNormalization" else norm
        if conv.op_type != "Conv" or len(after) != 1 or after[0].op_type != "Conv":
            continue
        factors = SPREAD ** draw.uniform(-1, 1, stored[conv.input[1]].dims[0])
        scale(conv.input[1], factors, (-1, 1, 1, 1))
        for name in (*conv.input[2:], *([norm.input[2], norm.input[3]] if norm is not conv else [])):
            scale(name, factors, (-1,))  # the convolution's bias; beta and mean, while gamma and variance stay
        scale(after[0].input[1], 1 / factors, (1, -1, 1, 1))
        done += 1
    onnx.save(model, str(out))
    return done


def opset_21(plain: Path, out: Path) -> None:
    """The same model in the first opset with four bits."""
    import onnx
    from onnx import version_converter

    onnx.save(version_converter.convert_version(onnx.load(str(plain)), _OPSET), str(out))


def per_tensor(quantized: Path, out: Path) -> None:
    """One scale for each weight, by least squares."""

    def changed(weight: Any, _: Any) -> tuple[Any, int] | None:
        return (least_squares(weight, -127, 127), 8) if weight is not None else None

    _regrid(quantized, out, changed)


def four_bits(quantized: Path, out: Path, samples: Path) -> None:
    """INT4 weights per channel, activations in INT4, or UINT4 where none is negative; by least squares on samples.

    The network's input keeps its 8 bits: it is an image.
    """
    import numpy as np
    import onnx

    model = onnx.load(str(quantized))
    constants = {one.name for one in model.graph.initializer}
    inputs = {one.name for one in model.graph.input}
    seen = _float_values(model, [n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"], samples)

    def changed(weight: Any, name: str) -> tuple[Any, int] | None:
        if weight is not None:
            rows = weight.reshape(weight.shape[0], -1)
            return np.array([least_squares(row, -7, 7) for row in rows], np.float32), 4
        if name in inputs or name in constants:
            return None
        low = 0 if seen[name].min() >= 0 else -8
        return least_squares(seen[name], low, low + 15), -4 if low == 0 else 4

    _regrid(quantized, out, changed)


def least_squares(values: Any, low: int, high: int) -> Any:
    """The scale of these integers with the least squared error, zero point 0; of float32, shape ()."""
    import numpy as np

    values = np.asarray(values, np.float32).reshape(-1)
    if values.size > 200_000:
        values = values[:: values.size // 200_000]
    most = max(float(values.max()) / high, float(values.min()) / low if low else 0.0, 1e-8)
    steps = most * np.linspace(0.25, 1, _GRID)
    errors = [
        float(np.square(np.clip(np.rint(values / s), low, high) * s - values).sum(dtype=np.float64)) for s in steps
    ]
    return np.asarray(steps[int(np.argmin(errors))], np.float32)


def _float_values(model: Any, names: list[str], samples: Path) -> dict[str, Any]:
    """Tensors of the model in float, on a part of the samples."""
    import numpy as np
    import onnx
    from onnx import helper

    from qdqtool.runtime.executor import Executor

    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    sources = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    for node in plain.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in sources:
            node.CopyFrom(helper.make_node("Identity", [sources[node.input[0]]], node.output[:1]))
    constants = {one.name for one in model.graph.initializer} | {one.name for one in model.graph.input}
    wanted = sorted({name for name in names if name not in constants})
    feed = {name: array[:64] for name, array in np.load(samples).items()}
    return Executor(Model(plain), wanted).run(feed)


def _regrid(quantized: Path, out: Path, changed: Callable[[Any, str], tuple[Any, int] | None]) -> None:
    """Give pairs other scales and types.

    Args:
        quantized: as `insert` writes it.
        out: where to.
        changed: the weight's values (None for an activation) and the tensor's name -> scale and bits, negative for
            unsigned; None to leave a pair as it is.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(str(quantized))
    graph = model.graph
    stored = {one.name: one for one in graph.initializer}
    kinds = {8: TensorProto.INT8, 4: TensorProto.INT4, -4: TensorProto.UINT4}
    readers = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in [one for one in graph.node if one.op_type == "QuantizeLinear"]:
        source = node.input[0]
        weight = numpy_helper.to_array(stored[source]) if source in stored else None
        found = changed(weight, source)
        if found is None:
            continue
        scale, bits = np.asarray(found[0], np.float32), found[1]
        names = f"{source}_grid_scale", f"{source}_grid_zero"
        if names[0] not in stored:
            stored[names[0]] = numpy_helper.from_array(scale, names[0])
            zeros = [0] * max(scale.size, 1)
            graph.initializer.extend([stored[names[0]], helper.make_tensor(names[1], kinds[bits], scale.shape, zeros)])
        for one in (node, readers[node.output[0]]):
            one.input[1:] = names
            if scale.ndim == 0:
                one.ClearField("attribute")
    used = Counter(name for node in graph.node for name in node.input)
    kept = [one for one in graph.initializer if used[one.name]]
    del graph.initializer[:], graph.value_info[:], model.metadata_props[:]
    graph.initializer.extend(kept)
    onnx.save(model, str(out))
