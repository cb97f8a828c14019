# SPDX-License-Identifier: Apache-2.0
"""An operator with a constant after a tensor, read by those readers that are to read it."""

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
    tensor: str,
    op: str,
    name: str,
    constant: tuple[str, npt.NDArray[np.generic]],
    rule: str,
    beside: str | None = None,
) -> str:
    """Put an operator of two inputs after a tensor; nobody reads it yet."""
    producer = editor.view.producers.get(tensor if beside is None else beside)
    made = editor.unique_name(name)
    second = editor.add_initializer(editor.unique_name(constant[0]), constant[1])
    trace = (("rule", rule), ("origin", "condition"))
    editor.add_node(op, [tensor, second], made, beside=producer, after=True, trace=trace)
    return made


def let_read(editor: Editor, nodes: Mapping[str, Node], reads: Sequence[Read], name: str) -> None:
    """Let some readers read another tensor; `nodes` has them by their first output."""
    for read in reads:
        editor.reroute(Use(nodes[read.node], read.index), name)
