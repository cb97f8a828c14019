# SPDX-License-Identifier: Apache-2.0
"""Checks of sizes against what tensor cores take. What a kernel really costs is known only to TensorRT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdqtool.graph.view import Node
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.lint_context import LintContext, number_of

# Elements that fill a vector of each format: CHW32 (INT8), 16 bytes of INT8, CHW4 (INT8), 16 bytes of FP16.
_WIDE, _VECTOR, _LEAST, _HALF = 32, 16, 4, 8


@check("Q016", "odd-sizes", "note", targets=("gpu",))
def odd_sizes(context: LintContext) -> Iterator[CheckFault]:
    """Channels of a convolution, or M, N, K of a matrix product, that leave tensor cores part idle.

    INT8 kernels on tensor cores work on 32 channels at a time (CHW32), smaller ones on 16 or 4; FP16 kernels on 8.
    What is missing is padded with zeros that are multiplied all the same, and a tensor of another width than CHW32 is
    reformatted on its way (C32 to C4). For a matrix product M is the rows of all samples: with one row it is limited
    by memory. Depthwise convolutions do not use tensor cores and are left out; of grouped ones each group counts.
    Two ways out change no value that is computed, or few: zero channels up to the next multiple (a filter of zeros that
    the next weights read with zeros), and whole channels taken away down to the last one, which `qdqtool prune
    --latency` does where its forecast says that it pays (NVIDIA, Train With Mixed Precision, Tensor Core shapes).
    """
    for node, index in context.weighted:
        sizes = _sizes(context, node, index)
        if not sizes:
            continue
        int8 = node.key in context.int8_nodes
        unit = _WIDE if int8 else _HALF
        odd = [(label, size) for label, size in sizes if size % unit]
        if odd:
            said = ", ".join(f"{label} {size} {_verdict(size, int8=int8)}" for label, size in odd)
            yield CheckFault(node.name, f"{node.op} in {'INT8' if int8 else 'float'}: {said}", _todo(odd, unit))


def _todo(odd: Sequence[tuple[str, int]], unit: int) -> str:
    """What to pad, and what may be pruned; rows are the batch, of which neither is said."""
    sizes = sorted({size for label, size in odd if label != "M"})
    if not sizes:
        return f"where speed matters, use batches whose number of rows is a multiple of {unit}"
    padded = ", ".join(f"{size} to {-(-size // unit) * unit}" for size in sizes)
    pruned = ", ".join(f"{size} to {size // unit * unit}" for size in sizes if size > unit)
    cut = f", or prune {pruned}: qdqtool prune --latency removes whole blocks of {unit}" if pruned else ""
    return f"where speed matters, pad {padded} with zero channels{cut}"


def _verdict(size: int, *, int8: bool) -> str:
    """What a size is not a multiple of, and how much of the padded work is on zeros."""
    wanted = _HALF if not int8 else next(unit for unit in (_LEAST, _VECTOR, _WIDE) if size % unit)
    unit = _WIDE if int8 else _HALF
    padded = -(-size // unit) * unit
    return f"is not a multiple of {wanted} ({100 * (padded - size) // padded} % padding to {padded})"


def _sizes(context: LintContext, node: Node, index: int) -> list[tuple[str, int]]:
    """Label and size of what is multiplied; empty for depthwise convolutions and weights of unknown shape."""
    tensor = context.view.constant_tensor(node.inputs[index])
    dims = list(tensor.dims) if tensor is not None else list(_shape(context, node.inputs[index]))
    if len(dims) < 2:
        return []
    if node.op in ("Conv", "ConvTranspose"):
        groups = number_of(node, "group", 1)
        into, out = (dims[1], dims[0] // max(groups, 1)) if node.op == "Conv" else (dims[0] // max(groups, 1), dims[1])
        if groups > 1 and into == 1:
            return []
        each = " of a group" if groups > 1 else ""
        return [(f"input channels{each}", into), (f"output channels{each}", out)]
    turned = index == 0 or bool(number_of(node, "transB", 0))
    deep, wide = (dims[-1], dims[-2]) if turned else (dims[-2], dims[-1])
    rows = _rows(context, node.inputs[1 - index])
    return [*([("M", rows)] if rows and rows > 1 else []), ("N", wide), ("K", deep)]


def _shape(context: LintContext, name: str) -> tuple[int, ...]:
    value = context.constant(name)
    return () if value is None else value.shape


def _rows(context: LintContext, name: str) -> int | None:
    """Rows of a product's activation over all samples, None where a size is open."""
    kind = context.types.get(context.view.root(name))
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    rows = 1
    for dim in list(kind.tensor_type.shape.dim)[:-1]:
        if not dim.HasField("dim_value"):
            return None
        rows *= dim.dim_value
    return rows
