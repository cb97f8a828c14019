# SPDX-License-Identifier: Apache-2.0
"""`--loss script.py:function`: terms that the user's own code builds as ONNX nodes. No formula is known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdqtool.data.polygraphy_loader import load_script, split_script
from qdqtool.errors import QdqError
from qdqtool.training.losses import terms
from qdqtool.training.losses.labels import LabelInputs, LabelSpec
from qdqtool.training.losses.nodes import LossValue, Nodes
from qdqtool.training.losses.targets import Targets

_FUNCTION = "loss"
_WANTED = "return a scalar, or {name: scalar} or {name: (scalar, weight)}"

Weighted = tuple[str, LossValue, float]


class LossBuilder:
    """What a loss script is handed: it names tensors and writes nodes; nothing is computed yet.

    Values have `.shape` and take +, -, *, /, `.sum()`, `.mean()`, `.sum_over(axis)`, `.unsqueeze(axis)`,
    `.as_float()`; arrays and numbers beside them become constants.

    Attributes:
        terms: the formulas of `--label` and `--distill` as functions (`terms.cross_entropy(x, y, axis)`, ...).
    """

    terms = terms

    def __init__(self, nodes: Nodes, targets: Targets, inputs: LabelInputs, where: object) -> None:
        """Build on a graph; `where` is the script, for messages."""
        self._nodes, self._targets, self._inputs, self._where = nodes, targets, inputs, where

    def tensor(self, name: str) -> LossValue:
        """A tensor of the model that is trained: an output, or any tensor inside."""
        return self._nodes.tensor(name, self._where)

    def teacher(self, name: str) -> LossValue:
        """A tensor of the teacher."""
        return self._targets.value(name, self._where)

    def label(self, name: str, shape: Sequence[int], *, integers: bool = False) -> LossValue:
        """An array that the data hold, float32 or int64, batch axis first."""
        elem_type = TensorProto.INT64 if integers else TensorProto.FLOAT
        spec = LabelSpec(name, tuple(int(size) for size in shape), elem_type, f"--loss {self._where}")
        return self._inputs.value(spec)

    def constant(self, value: npt.ArrayLike) -> LossValue:
        """A constant array: float32, or int64 where it holds integers."""
        return self._nodes.constant(np.asarray(value))

    def op(self, op_type: str, *inputs: LossValue | npt.ArrayLike, **attributes: Any) -> LossValue:
        """One ONNX operator of the default domain, by its first output."""
        return self._nodes.op(op_type, *inputs, **attributes)


def script_terms(text: str, nodes: Nodes, targets: Targets, inputs: LabelInputs) -> list[Weighted]:
    """The terms that a script builds: name, scalar, weight.

    Raises:
        QdqError: no such script or function, it fails, or what it returns is not a scalar that the model has a part in.
    """
    found = split_script(text)
    if found is None:
        raise QdqError("--loss", f"{text!r} is not a script", "give script.py:function")
    path, function = found[0], _FUNCTION if text.endswith(".py") else found[1]
    if not path.is_file():
        raise QdqError(path, "does not exist", f"give the script that defines {function}(builder)")
    make: Any = load_script(path, function)
    try:
        answer = make(LossBuilder(nodes, targets, inputs, path))
    except QdqError as error:
        where = error.where if error.where.startswith(str(path)) else f"{path}: {error.where}"
        raise QdqError(where, error.reason, error.todo) from error
    except Exception as error:  # the user's code raises what it likes
        reason = f"fails when it builds the loss ({type(error).__name__}: {error})"
        raise QdqError(path, reason, "fix it; -v shows where") from error
    if not isinstance(answer, Mapping):
        answer = {function: answer}
    if not answer:
        raise QdqError(path, "gives no term", _WANTED)
    return [_checked(path, str(name), value) for name, value in answer.items()]


def _checked(path: object, name: str, answer: Any) -> Weighted:
    value, weight = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, 1.0)
    if not isinstance(value, LossValue) or not isinstance(weight, int | float) or not np.isfinite(weight):
        raise QdqError(path, f"gives a {type(answer).__name__} for the term {name}", _WANTED)
    if value.shape or value.elem_type != TensorProto.FLOAT:
        reason = f"gives a tensor of shape {list(value.shape)} for the term {name}, not a float32 scalar"
        raise QdqError(path, reason, "end it with .mean() or .sum()")
    if not value.trained:
        reason = f"the term {name} has no gradient with respect to the model"
        raise QdqError(path, reason, "use builder.tensor(), and no operator that only compares or counts")
    return name, value, float(weight)
