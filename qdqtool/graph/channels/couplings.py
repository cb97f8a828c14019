# SPDX-License-Identifier: Apache-2.0
"""What each operator contributes to the atoms of a graph: which channels of its outputs are which of its inputs.

Operators that move values, that compute in place, that pool; those that make new channels (`Conv` and kin) and what
they couple. An operator that is not in the table pins all that it reads, and what it gives is PINNED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from qdqtool.graph.channels import relayout
from qdqtool.graph.channels.arguments import integers, permutation, slices_of
from qdqtool.graph.channels.atoms import MOST, NONE, PINNED, ChannelAtoms, Int64
from qdqtool.graph.channels.sizes import IN_PLACE
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.view import Node, attribute
from qdqtool.rule_files import operator_set

# One array for each output; None for an operator that is not followed here.
Found = list[Int64] | None
Coupling = Callable[[ChannelAtoms, Node], Found]


def couple(atoms: ChannelAtoms, nodes: Iterable[Node], rules: Mapping[str, Coupling] | None = None) -> None:
    """Let nodes, in an order in which they run, say where channels go. What a tensor was said to hold stays."""
    rules = COUPLINGS if rules is None else rules
    for node in nodes:
        if node.op in ("Shape", "Size", "Constant"):  # they give no values of what they read
            continue
        rule = rules.get(node.op) if not node.proto.domain else None
        found = None if rule is None else rule(atoms, node)
        if found is None:
            for name in filter(None, node.inputs):
                atoms.pin(atoms.of(name), f"{node.op} {node.name} needs all of them")
            found = []
        for name, array in zip(node.outputs, found, strict=False):
            if name and not atoms.has(name):
                atoms.set(name, array)


def couple_graph(atoms: ChannelAtoms, rules: Mapping[str, Coupling] | None = None) -> None:
    """Every node of a graph; what it gives out and what bodies of control flow read stays as it is."""
    view = atoms.view
    couple(atoms, sorted(view.nodes, key=lambda node: (node.level, node.index)), rules)
    for name in (*view.outputs, *sorted(view.captured)):
        atoms.pin(
            atoms.of(name), f"{name} is an output of the model" if name in view.outputs else f"a body reads {name}"
        )


# ---------------------------------------------------------------------- in place


def _together(atoms: ChannelAtoms, node: Node) -> Found:
    """Operators that compute place by place: channels at one place are one. A broadcast channel is pinned."""
    after = atoms.shape(node.outputs[0])
    names = [name for name in node.inputs if name]
    if len(names) == 1:
        return [atoms.of(names[0])] * len(node.outputs)
    if after is None:
        return None
    arrays = [relayout.padded(atoms.of(name), len(after)) for name in names]
    wide = [axis for axis in range(len(after)) if any(array.shape[axis] > 1 for array in arrays)]
    kept: list[Int64] = []
    for name, array in zip(names, arrays, strict=True):
        if array.size == 1 and _is_repeated(atoms.shape(name), after, wide):
            atoms.pin(array)
        else:
            kept.append(array)
    return _united(atoms, kept, len(node.outputs))


def _is_repeated(shape: Shape | None, after: Shape, wide: list[int]) -> bool:
    """Whether a tensor has one place along all axes that channels lie on, and others several."""
    if shape is None:
        return False
    own = (1,) * (len(after) - len(shape)) + tuple(shape)
    if wide:
        return all(own[axis] == 1 and after[axis] != 1 for axis in wide)
    return any(size == 1 and whole != 1 for size, whole in zip(own, after, strict=True))


def _united(atoms: ChannelAtoms, arrays: list[Int64], outputs: int) -> Found:
    result = atoms.united(arrays)
    return None if result is None else [result] * outputs


def _per_channel(atoms: ChannelAtoms, node: Node) -> Found:
    """BatchNormalization and kin: constants of each channel of the second axis."""
    constant = all(atoms.view.is_constant(name) for name in node.inputs[1:] if name)
    return [atoms.of(node.inputs[0])] if constant else None


def _over_others(atoms: ChannelAtoms, node: Node) -> Found:
    """Operators that compute along axes on which no channels lie: pools, Resize, Softmax, reductions."""
    array, axes = atoms.of(node.inputs[0]), _axes_of(atoms, node)
    if axes is None or any(axis >= array.ndim or array.shape[axis] > 1 for axis in axes):
        return None
    dropped = node.op.startswith("Reduce") and not attribute(node, "keepdims", 1)
    moved = array.squeeze(tuple(axes)) if dropped else array
    return [moved, *(np.full((1,) * moved.ndim, PINNED) for _ in node.outputs[1:])]


def _axes_of(atoms: ChannelAtoms, node: Node) -> list[int] | None:
    """The axes that a pool, a Resize, a Softmax or a reduction computes along, from 0."""
    before, after = atoms.shape(node.inputs[0]), atoms.shape(node.outputs[0])
    rank = None if before is None else len(before)
    if rank is None or before is None:
        return None
    if node.op in operator_set("pooling"):
        return list(range(2, rank))
    if node.op in ("Resize", "Upsample"):
        return None if after is None else [axis for axis in range(rank) if before[axis] != after[axis]]
    if node.op in ("Softmax", "LogSoftmax"):
        first = int(str(attribute(node, "axis", 1))) % rank if rank else 0
        return list(range(first, rank))  # before opset 13 all axes from that one on, the second by default
    axes = integers(node, 1, "axes", atoms.values)
    return None if axes is None else [axis % rank for axis in axes or range(rank)]


# ---------------------------------------------------------------------- moves


def _reshaped(atoms: ChannelAtoms, node: Node) -> Found:
    before, after = atoms.shape(node.inputs[0]), atoms.shape(node.outputs[0])
    array = relayout.reshaped(atoms.of(node.inputs[0]), before, after, MOST, exact=True)
    return None if array is None else [array]


def _transposed(atoms: ChannelAtoms, node: Node) -> Found:
    array = atoms.of(node.inputs[0])
    moved = relayout.transposed(array, permutation(node, array.ndim) or [])
    return None if moved is None else [moved]


def _concatenated(atoms: ChannelAtoms, node: Node) -> Found:
    """Behind one another; the values of a constant are no channel's."""
    shapes = [atoms.shape(name) for name in node.inputs]
    rank = max((len(shape) for shape in shapes if shape is not None), default=0)
    axis = int(str(attribute(node, "axis", 1)))
    axis += rank * (axis < 0)
    sizes = [None if shape is None or axis >= len(shape) else shape[axis] for shape in shapes]
    arrays = [relayout.padded(atoms.of(name), rank) for name in node.inputs]
    held = [np.where(a == NONE, PINNED, a) if not atoms.has(n) else a for n, a in zip(node.inputs, arrays, strict=True)]
    kept = [(array, size) for array, size in zip(held, sizes, strict=True) if size != 0]
    if not kept:
        return None
    array = relayout.concatenated([array for array, _ in kept], axis, [size for _, size in kept], MOST)
    return None if array is None else [array]


def _sliced(atoms: ChannelAtoms, node: Node) -> Found:
    array, rows = atoms.of(node.inputs[0]), slices_of(node, atoms.values)
    if rows is None:
        before, after = atoms.shape(node.inputs[0]), atoms.shape(node.outputs[0])
        return [array] if before is not None and after is not None and _kept(array, before, after) else None
    for axis, start, end, step in rows:
        moved = relayout.taken(array, axis, slice(start, None if step < 0 and end < -(2**30) else end, step), MOST)
        if moved is None:
            return None
        array = moved
    return [array]


def _kept(array: Int64, before: Shape, after: Shape) -> bool:
    """Whether no axis with channels on it has another length."""
    return len(before) == len(after) == array.ndim and all(
        size == 1 or (one is not None and one == other)
        for size, one, other in zip(array.shape, before, after, strict=True)
    )


def _split(atoms: ChannelAtoms, node: Node) -> Found:
    array, axis = atoms.of(node.inputs[0]), int(str(attribute(node, "axis", 0)))
    if not -array.ndim <= axis < array.ndim:
        return None
    if array.shape[axis] == 1:
        return [array] * len(node.outputs)
    shapes = [atoms.shape(name) for name in node.outputs]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or sum(known) != array.shape[axis]:
        return None
    return list(np.split(array, np.cumsum(known)[:-1], axis))


def _gathered(atoms: ChannelAtoms, node: Node) -> Found:
    index = atoms.values(node.inputs[1])
    if index is None:
        return None
    array = relayout.taken(atoms.of(node.inputs[0]), int(str(attribute(node, "axis", 0))), index, MOST)
    return None if array is None else [array]


def _pad(atoms: ChannelAtoms, node: Node) -> Found:
    """Places that are filled in have the atom NONE; axes on which all is alike stay so."""
    array, pads = atoms.of(node.inputs[0]), integers(node, 1, "pads", atoms.values)
    before, after = atoms.shape(node.inputs[0]), atoms.shape(node.outputs[0])
    if array.size == 1 or (before is not None and after is not None and _kept(array, before, after)):
        return [array]
    axes = integers(node, 3, "axes", atoms.values)
    if pads is None or axes is None or str(attribute(node, "mode", "constant")) != "constant":
        return None
    widths = np.zeros((array.ndim, 2), np.int64)
    for place, axis in enumerate(axes or range(array.ndim)):
        if array.shape[axis] > 1:
            widths[axis] = pads[place], pads[place + len(pads) // 2]
    if (widths < 0).any():
        return None
    filled = np.pad(array, widths, constant_values=NONE)
    if atoms.removal:
        empty = np.pad(np.zeros_like(array, bool), widths, constant_values=True)
        filled[empty] = atoms.fresh(int(empty.sum()))
    return [filled]


def _repeated(atoms: ChannelAtoms, node: Node) -> Found:
    """Expand and Tile: the same channels again, along axes as often as the sizes say."""
    before, after = atoms.shape(node.inputs[0]), atoms.shape(node.outputs[0])
    if before is None or after is None:
        return None
    array = relayout.padded(atoms.of(node.inputs[0]), len(after))
    sizes = (1,) * (len(after) - len(before)) + tuple(before)
    times = [1] * len(after)
    for axis, (size, whole) in enumerate(zip(sizes, after, strict=True)):
        if array.shape[axis] > 1:
            if not size or whole is None:
                return None
            times[axis] = whole // size
    return [np.tile(array, times)] if array.size * np.prod(times) <= MOST else None


def _between_depth_and_space(atoms: ChannelAtoms, node: Node) -> Found:
    """DepthToSpace and SpaceToDepth, as the Reshape and the Transpose by which ONNX defines them."""
    shape, block = atoms.shape(node.inputs[0]), int(str(attribute(node, "blocksize", 1)))
    if shape is None or None in shape or len(shape) != 4:
        return None
    n, c, h, w = (size or 0 for size in shape)
    after: tuple[int, ...] = (n, c * block * block, h // block, w // block)
    apart: tuple[int, ...] = (n, c, h // block, block, w // block, block)
    order = [0, 3, 5, 1, 2, 4]
    if node.op == "DepthToSpace":
        rest = c // (block * block)
        after = (n, rest, h * block, w * block)
        by_rows = str(attribute(node, "mode", "DCR")) == "DCR"
        apart = (n, block, block, rest, h, w) if by_rows else (n, rest, block, block, h, w)
        order = [0, 3, 4, 1, 5, 2] if by_rows else [0, 1, 4, 2, 5, 3]
    array = relayout.reshaped(atoms.of(node.inputs[0]), shape, apart, MOST)
    turned = None if array is None else relayout.transposed(array, order)
    between = [apart[axis] for axis in order]
    made = None if turned is None else relayout.reshaped(turned, tuple(between), after, MOST)
    if made is not None and atoms.removal and made.shape[1] > 1:
        rows = np.moveaxis(made, 1, 0).reshape(made.shape[1], -1)
        atoms.union(rows[:, :1], rows)
    return None if made is None else [made]


def _instance_norm(atoms: ChannelAtoms, node: Node) -> Found:
    """As `_per_channel`; channels that a Reshape put beside one another, as in a GroupNormalization, go together."""
    found = _per_channel(atoms, node)
    array = atoms.of(node.inputs[0])
    if found is not None and array.ndim > 2 and array.shape[2:] != (1,) * (array.ndim - 2):
        rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
        atoms.union(rows[:, :1], rows)
    return found


# ---------------------------------------------------------------------- weights


def _conv(atoms: ChannelAtoms, node: Node) -> Found:
    """New channels; a group of one input makes its own, and what several groups hold at one place goes together."""
    row = atoms.row(node.inputs[0], 1) if atoms.view.is_constant(node.inputs[1]) else None
    made = None if row is None else atoms.mark(node.outputs[0], 1)
    if row is None or made is None:
        return None
    if row.mixed.size:
        atoms.pin(row.mixed)
    atoms.share(node.inputs[1], row.atoms, made)
    groups = int(str(attribute(node, "group", 1)))
    if groups > 1 and len(row.atoms) % groups == len(made) % groups == 0:
        read, given = row.atoms.reshape(groups, -1), made.reshape(groups, -1)
        if read.shape[1] == 1:
            atoms.union(read, given)
        else:
            atoms.union(read[:1], read)
            atoms.union(given[:1], given)
    return [atoms.of(node.outputs[0])]


def _product(atoms: ChannelAtoms, node: Node) -> Found:
    """Gemm and MatMul with a constant matrix on the right: new channels on the last axis."""
    if node.op == "MatMul" and not any(map(atoms.view.is_constant, node.inputs)):
        return _product_of_two(atoms, node)
    shape, matrix = atoms.shape(node.inputs[0]), atoms.view.shape(node.inputs[1])
    plain = matrix is not None and len(matrix) == 2 and not attribute(node, "transA", 0)
    constant = all(atoms.view.is_constant(name) for name in node.inputs[1:] if name)
    row = None if shape is None else atoms.row(node.inputs[0], len(shape) - 1)
    if shape is None or row is None or not plain or not constant:
        return None
    if row.mixed.size:
        atoms.pin(row.mixed)
    made = atoms.mark(node.outputs[0], len(shape) - 1)
    if made is None:
        return None
    atoms.share(node.inputs[1], row.atoms, made)
    return [atoms.of(node.outputs[0])]


def _product_of_two(atoms: ChannelAtoms, node: Node) -> Found:
    """MatMul of two activations, as in attention: what is summed over goes together, so that whole heads can go."""
    shapes = [atoms.shape(name) for name in node.inputs]
    rank = max((len(shape) for shape in shapes if shape is not None), default=0)
    if None in shapes or any(len(shape or ()) < 2 for shape in shapes):
        return None
    left, right = (relayout.padded(atoms.of(name), rank) for name in node.inputs)
    first, second = left[..., :1], right[..., :1, :]
    atoms.union(first, left)
    atoms.union(second, right)
    kept = [array for array in (first, second) if array.size > 1]
    for array in (first, second):
        if array.size == 1:
            atoms.pin(array, f"{node.op} {node.name} sums over all of them")
    return _united(atoms, kept, 1) if kept else [np.full((1,) * rank, PINNED)]


def _rules(rule: Coupling, *ops: str) -> dict[str, Coupling]:
    return dict.fromkeys(ops, rule)


COUPLINGS: dict[str, Coupling] = {
    **_rules(_together, *sorted(IN_PLACE), "Gelu", "Mish", "Selu", "Celu", "ThresholdedRelu", "Softsign", "CastLike"),
    "BatchNormalization": _per_channel,
    "InstanceNormalization": _instance_norm,
    **_rules(
        _over_others,
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Resize",
        "Upsample",
        "Softmax",
        "LogSoftmax",
    ),
    **_rules(_over_others, "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    **_rules(_reshaped, "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    **_rules(_repeated, "Expand", "Tile"),
    **_rules(_between_depth_and_space, "DepthToSpace", "SpaceToDepth"),
    **_rules(_conv, "Conv", "ConvTranspose"),
    **_rules(_product, "Gemm", "MatMul"),
    "Transpose": _transposed,
    "Concat": _concatenated,
    "Slice": _sliced,
    "Split": _split,
    "Gather": _gathered,
    "Pad": _pad,
}
