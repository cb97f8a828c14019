# SPDX-License-Identifier: Apache-2.0
"""Smooth: one tensor divided per channel by a Mul after it, its readers' weights multiplied. The float function stays.

Enters the main graph only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import Node
from qdqtool.match.plan import Read
from qdqtool.passes.condition.behind import add_behind, along, let_read
from qdqtool.passes.condition.constants import Constants
from qdqtool.passes.condition.rescale import scale_weight


@dataclass(frozen=True, eq=False)
class Division:
    """One tensor that is divided per channel.

    Attributes:
        tensor: its name; every value of channel c is divided by `factors[c]`.
        factors: float32 values, > 0.
        axis: the channels' axis, counted from the front.
        rank: number of axes.
        reads: who reads the divided tensor; all others have the tensor as it was.
    """

    tensor: str
    factors: npt.NDArray[np.float32]
    axis: int
    rank: int
    reads: tuple[Read, ...]


def divide(
    model: Model, divisions: Sequence[Division], inverse: Mapping[str, npt.NDArray[np.floating]]
) -> dict[str, str]:
    """Carry divisions out in the main graph; `inverse` multiplies the input channels of operators, by first output.

    Returns the output of the Mul after each tensor.

    Raises:
        QdqError: a weight is not a plain float32 constant, or passes what float32 holds.
    """
    view = model.view
    editor = Editor(view)
    constants = Constants(editor)
    by_key = {node.key: node for node in view.every}
    muls = {one.tensor: _add_mul(editor, by_key, one) for one in divisions}
    for key, factors in inverse.items():
        scale_weight(view, constants, by_key[key], np.asarray(factors, np.float64))
    editor.commit()
    return muls


def _add_mul(editor: Editor, nodes: Mapping[str, Node], one: Division) -> str:
    """A Mul after the tensor, read by the readers named; its constant is 1 / factor, rounded once."""
    with np.errstate(divide="raise"):
        value = (1.0 / one.factors.astype(np.float64)).astype(np.float32)
    if not np.isfinite(value).all():
        raise QdqError(one.tensor, "its factors cannot be inverted in float32", "leave smoothing out with --steps")
    name = f"{one.tensor}_smooth"
    constant = (f"{name}_factor", along(value, one.axis, one.rank))
    made = add_behind(editor, one.tensor, "Mul", name, constant, "smooth")
    let_read(editor, nodes, one.reads, made)
    return made
