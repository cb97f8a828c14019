# SPDX-License-Identifier: Apache-2.0
"""What a gradient back end takes and gives. The loop knows no more of one than this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx

PAIR_DOMAIN = "qdqtool.pairs"
"""Domain of the functions that stand for Q/DQ pairs in a forward graph, see `pairs.py`."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Forward:
    """A graph with one scalar loss, in a form that every back end differentiates.

    Attributes:
        proto: opset 13 to 21 and IR 10 at most; the main graph is flat (no bodies), its only local functions are pairs
            of `PAIR_DOMAIN`. Every parameter is a float32 initializer that stands for itself alone. It runs as it is.
        parameters: names of the float32 initializers that gradients are wanted of, each of which the loss depends on.
        loss: name of the scalar float32 tensor, a graph output.
        auxiliary: other graph outputs that are handed out beside the loss (parts of it, outputs to measure on).
        shapes: every tensor of the main graph -> its shape at the batch size that is trained with, from a real run.
        types: every tensor of the main graph -> ONNX element type, from a real run.
    """

    proto: onnx.ModelProto
    parameters: tuple[str, ...]
    loss: str
    auxiliary: tuple[str, ...]
    shapes: Shapes
    types: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class GradientGraph:
    """A graph that computes a loss and its gradients.

    Attributes:
        proto: inputs are the forward's own (labels and teacher's tensors among them) and then every parameter, under
            its name; outputs are the loss, the auxiliaries and one float32 gradient per parameter, of its shape.
        gradients: parameter -> output.
    """

    proto: onnx.ModelProto
    gradients: Mapping[str, str]


class GradientBackend(Protocol):
    """Makes gradient graphs. Both back ends are checked by one contract test."""

    name: str

    def build(self, forward: Forward) -> GradientGraph:
        """The gradient of the loss by every parameter.

        Raises:
            QdqError: an operator between a parameter and the loss has no gradient here; it is named.
            MissingPackageError: what the back end runs on is not installed.
        """
        ...

    def operators(self) -> Sequence[str]:
        """Every operator that it differentiates, `domain::Type` outside the default domain, sorted."""
        ...
