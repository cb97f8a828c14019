# SPDX-License-Identifier: Apache-2.0
"""Shift: a value per channel is subtracted from a tensor, and its readers' biases make up. The float function stays.

What makes the tensor takes the value into its bias where it has one and nobody else reads the tensor; else an Add
behind it does. Enters the main graph only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.plan import Read
from qdqtool.passes.condition.behind import add_behind, along, let_read
from qdqtool.passes.condition.constants import Constants, is_plain_constant
from qdqtool.passes.condition.correct import add_to_vector, bias_sites
from qdqtool.passes.condition.layout import output_channels
from qdqtool.passes.condition.rescale import constant_side, has_plain_bias

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shift:
    """One tensor that is shifted per channel.

    Attributes:
        tensor: its name; `values[c]` is subtracted from every value of channel c.
        values: float32 [channels].
        axis: the channels' axis, counted from the front.
        rank: number of axes.
        reads: who reads the shifted tensor; all others have the tensor as it was.
        pads: zeros that those convolutions put around it, as their attribute says: a Pad does so before the shift, as
            they would put zeros around shifted values.
    """

    tensor: str
    values: npt.NDArray[np.float32]
    axis: int
    rank: int
    reads: tuple[Read, ...]
    pads: tuple[int, ...] = ()


def shift_channels(model: Model, shifts: Sequence[Shift], additions: Mapping[str, Float64]) -> list[str]:
    """Carry shifts out in the main graph, and add float64 [outputs] to the biases of operators, by first output.

    Returns for each shift the output of the Add that does it; "" where a bias does.

    Raises:
        QdqError: a value passes what float32 holds.
    """
    view = model.view
    editor = Editor(view)
    constants = Constants(editor)
    by_key = {node.key: node for node in view.every}
    own, sites = [own_bias(view, one) for one in shifts], bias_sites(view, additions)
    added: list[str] = []
    for one, site in zip(shifts, own, strict=True):
        if site is not None:
            add_to_vector(constants, *site, -one.values.astype(np.float64))
            added.append("")
            continue
        added.append(_subtract(editor, one))
        let_read(editor, by_key, one.reads, added[-1])
        for read in one.reads if one.pads else ():
            editor.drop_attribute(by_key[read.node], "pads")
    for key, addition in additions.items():
        add_to_vector(constants, *sites[key], addition)
    editor.commit()
    return added


def _subtract(editor: Editor, one: Shift) -> str:
    """An Add after the tensor, where its readers pad it after a Pad that does that for them; what it gives."""
    source = one.tensor
    if one.pads:
        half = len(one.pads) // 2
        whole = np.array([0, 0, *one.pads[:half], 0, 0, *one.pads[half:]], np.int64)
        source = add_behind(editor, source, "Pad", f"{source}_pad", (f"{source}_pads", whole), "shift")
    name = f"{one.tensor}_shift"
    constant = (f"{name}_value", along(-one.values, one.axis, one.rank))
    return add_behind(editor, source, "Add", name, constant, "shift", beside=one.tensor)


def own_bias(view: GraphView, one: Shift) -> tuple[Node, int] | None:
    """The node and input that hold a bias of what makes the tensor, or could; None where an Add must do it.

    Zeros that are put around the tensor must stay zeros: then an Add does it.
    """
    node = view.producers.get(one.tensor)
    read = {(use.node.key, use.index) for use in view.consumers(one.tensor)}
    given_out = view.is_output(one.tensor) or one.tensor in view.captured
    if node is None or one.pads or given_out or read - {(each.node, each.index) for each in one.reads}:
        return None
    last = one.axis == one.rank - 1
    if node.op in ("Conv", "ConvTranspose", "Gemm"):
        channels = one.axis == 1 and _outputs(view, node) == one.values.size
        return (node, 2) if channels and has_plain_bias(view, node) else None
    if node.op in ("BatchNormalization", "LayerNormalization"):
        along_channels = one.axis == 1 if node.op == "BatchNormalization" else last
        open_or_plain = len(node.inputs) < 3 or not node.inputs[2] or is_plain_constant(view, node, 2)
        return (node, 2) if along_channels and open_or_plain and _size(view, node, 1) == one.values.size else None
    side = constant_side(view, node) if node.op == "Add" and len(node.inputs) == 2 else None
    return (node, side) if side is not None and last and _size(view, node, side) == one.values.size else None


def _outputs(view: GraphView, node: Node) -> int:
    weight = view.constant_tensor(node.inputs[1])
    return 0 if weight is None else output_channels(node, tuple(weight.dims))


def _size(view: GraphView, node: Node, index: int) -> int:
    """The length of a constant vector; 0 where it is none."""
    value = view.constant_tensor(node.inputs[index])
    return value.dims[0] if value is not None and len(value.dims) == 1 else 0
