# SPDX-License-Identifier: Apache-2.0
"""What nodes that move values say about axes, as attributes (older opsets) or as inputs. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qdqtool.graph.view import Node, attribute

# The value of a tensor by its name, None where it is not known.
Values = Callable[[str], npt.NDArray[np.generic] | None]


def integers(node: Node, index: int, name: str, values: Values) -> list[int] | None:
    """A list that newer opsets have as an input and older ones as an attribute; [] without, None where not known."""
    if len(node.inputs) > index and node.inputs[index]:
        value = values(node.inputs[index])
        return None if value is None else [int(v) for v in value.reshape(-1)]
    stored = attribute(node, name, [])
    return [int(v) for v in stored] if isinstance(stored, list | tuple) else []


def slices_of(node: Node, values: Values) -> list[tuple[int, int, int, int]] | None:
    """(axis, start, end, step) of a Slice, each as the node says it; None where not known, or not as many of each."""
    lists = [integers(node, i + 1, n, values) for i, n in enumerate(("starts", "ends", "axes", "steps"))]
    starts, ends, axes, steps = lists
    if starts is None or ends is None or axes is None or steps is None:
        return None
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    return list(zip(axes, starts, ends, steps, strict=True))


def permutation(node: Node, rank: int | None) -> list[int] | None:
    """The order of axes of a Transpose; None where it is the default and the rank is not known."""
    order = attribute(node, "perm")
    if isinstance(order, list | tuple):
        return list(order)
    return None if rank is None else list(range(rank))[::-1]
