# SPDX-License-Identifier: Apache-2.0
"""An operator with one constant per channel behind a tensor, read by those readers that are to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import Node, Use
from qdqtool.match.plan import Read


def along(values: npt.NDArray[np.float32], axis: int, rank: int) -> npt.NDArray[np.float32]:
    """Values of channels so that they broadcast with a tensor of `rank` axes that has them along `axis`."""
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


def add_behind(
    editor: Editor,
    nodes: Mapping[str, Node],
    tensor: str,
    reads: Sequence[Read],
    op: str,
    name: str,
    constant: tuple[str, npt.NDArray[np.float32]],
    rule: str,
) -> str:
    """Put an operator behind a tensor; the readers named read what it gives, all others the tensor as it was.

    Args:
        editor: of the graph.
        nodes: first output -> node.
        tensor: what the operator reads first.
        reads: the readers.
        op: the operator's type, of two inputs.
        name: what it gives is called, where that is free.
        constant: what its second input is called, where that is free, and its value.
        rule: the step that asks for it, for the metadata of the node.

    Returns:
        The name of what it gives.
    """
    producer = editor.view.producers.get(tensor)
    made = editor.unique_name(name)
    second = editor.add_initializer(editor.unique_name(constant[0]), constant[1])
    trace = (("rule", rule), ("origin", "condition"))
    editor.add_node(op, [tensor, second], made, beside=producer, after=True, trace=trace)
    for read in reads:
        editor.reroute(Use(nodes[read.node], read.index), made)
    return made
