# SPDX-License-Identifier: Apache-2.0
"""What a rule sees of the node that it differentiates: values in and out, cotangents, attributes, what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.rules.tape import GraphValue, Shape, Tape
from qdqtool.errors import QdqError

TODO = "freeze the weights before it, cut the graph there, or train with the other back end"


@dataclass(frozen=True, eq=False)
class VjpContext:
    """One node of the forward graph on the way back.

    Attributes:
        node: the copy that the gradient graph has; `extra_output` may name an optional output of it.
        tape: where the rule writes.
        inputs: None where an optional input is left out.
        outputs: None where an optional output is left out.
        cotangents: the gradient of the loss by each output; None where the loss does not depend on it.
        wanted: for each input, whether its gradient is used. A rule may give others, at a cost.
        attributes: of the node, by name.
        known: a tensor's value where it does not depend on data, else None.
    """

    node: onnx.NodeProto
    tape: Tape
    inputs: tuple[GraphValue | None, ...]
    outputs: tuple[GraphValue | None, ...]
    cotangents: tuple[GraphValue | None, ...]
    wanted: tuple[bool, ...]
    attributes: Mapping[str, Any]
    known: Callable[[str], npt.NDArray[Any] | None]

    @property
    def x(self) -> GraphValue:
        """The first input."""
        return self.given(0)

    @property
    def y(self) -> GraphValue:
        """The first output."""
        value = self.outputs[0]
        if value is None:
            raise self.refusal("leaves out its first output")
        return value

    @property
    def g(self) -> GraphValue:
        """The gradient by the first output, of an operator whose further outputs have none.

        Raises:
            QdqError: the loss depends on a further output.
        """
        if any(value is not None for value in self.cotangents[1:]):
            raise self.refusal("is differentiated by its first output only, and the loss depends on another one")
        return cast(GraphValue, self.cotangents[0])

    def given(self, index: int) -> GraphValue:
        """An input that the operator cannot be without.

        Raises:
            QdqError: it is left out.
        """
        value = self.optional(index)
        if value is None:
            raise self.refusal(f"has no input {index}")
        return value

    def optional(self, index: int) -> GraphValue | None:
        """An input, or None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def wants(self, index: int) -> bool:
        """Whether the gradient by an input is used."""
        return index < len(self.wanted) and self.wanted[index]

    def get(self, name: str, default: Any) -> Any:
        """An attribute, text as str; the default where it is not set."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute `axis`, not negative."""
        return int(self.get("axis", default)) % (len(self.x.shape) if rank is None else rank)

    def constant(self, index: int, what: str) -> npt.NDArray[Any]:
        """The value of an input that must not depend on data.

        Raises:
            QdqError: it does; `what` names it in the message.
        """
        value = self.known(self.given(index).name)
        if value is None:
            raise self.refusal(f"has {what} that depend on the data")
        return value

    def integers(self, index: int, what: str) -> tuple[int, ...] | None:
        """The numbers of a constant integer input; None where it is left out or empty by name."""
        if self.optional(index) is None:
            return None
        return tuple(int(number) for number in np.ravel(self.constant(index, what)))

    def axes(self, index: int = 1) -> tuple[int, ...] | None:
        """Axes from the attribute `axes` or the input at `index`, not negative and sorted; None where not given."""
        given = self.attributes.get("axes")
        if given is None:
            given = self.integers(index, "axes")
        return None if given is None else tuple(sorted(int(axis) % len(self.x.shape) for axis in given))

    def extra_output(self, index: int, shape: Shape, kind: int) -> GraphValue:
        """An optional output of the forward node, named now where the graph did not ask for it."""
        while len(self.node.output) <= index:
            self.node.output.append("")
        if not self.node.output[index]:
            self.node.output[index] = self.tape.fresh(f"backward/{self.node.op_type}_output")
        return GraphValue(self.node.output[index], shape, kind, self.tape)

    def refusal(self, reason: str) -> QdqError:
        """The error that this node has no gradient for a reason."""
        return QdqError(self.node.name or self.node.output[0], f"{self.node.op_type} {reason}", TODO)


Gradients: TypeAlias = Sequence[GraphValue | None]
"""One gradient per input, of its shape and type; None or a shorter list where there is none."""
Rule: TypeAlias = Callable[[VjpContext], Gradients]
