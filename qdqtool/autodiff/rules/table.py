# SPDX-License-Identifier: Apache-2.0
"""The table: which operator is differentiated by which rule. Both gradient back ends read it.

Operators that ONNX defines by a function body need no rule: their names are in `DECOMPOSED`.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.rules import (
    arithmetic,
    convolution,
    elementwise,
    fusion,
    indexing,
    layout,
    matrix,
    normalization,
    pairs,
    pooling,
    reductions,
    resizing,
)
from qdqtool.autodiff.rules.vjp_context import Rule

_FAMILIES = (
    arithmetic.RULES,
    convolution.RULES,
    elementwise.RULES,
    fusion.RULES,
    indexing.RULES,
    layout.RULES,
    matrix.RULES,
    normalization.RULES,
    pairs.RULES,
    pooling.RULES,
    reductions.RULES,
    resizing.RULES,
)

RULES: Mapping[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.items()}
"""Operator, as `key_of` writes it -> its derivative. Both back ends read it.

Not in here: what stops (`activity.py`).
"""

DECOMPOSED = frozenset(
    {
        *("CastLike", "Celu", "Gelu", "HardSwish", "MeanVarianceNormalization", "Mish", "PRelu"),
        *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
    }
)
"""Operators that ONNX defines by a function body, and whose gradient is that of the body.

Others with a body have a rule, each for one of these reasons. The body overflows or divides 0 by 0 where the gradient
does not (Elu, Selu, Softplus, ReduceL2, ReduceLogSumExp); it subtracts numbers that are almost equal
(GroupNormalization, LayerNormalization, Softsign); it shares a kink between two branches (Clip, HardSigmoid, Relu); it
takes more passes over a large tensor (LeakyRelu, LogSoftmax, Softmax); ONNX has it from opset 18 on only (other
reductions, ThresholdedRelu).
"""


def key_of(node: onnx.NodeProto) -> str:
    """What the table calls an operator: its type, with the domain before it outside the default one; pairs are one."""
    if node.domain in ("", "ai.onnx"):
        return node.op_type
    return pairs.PAIR if node.domain == PAIR_DOMAIN else f"{node.domain}::{node.op_type}"


def operators(rules: Mapping[str, Rule]) -> list[str]:
    """What can be differentiated by a table, sorted; joints are in no file."""
    return sorted([*(rules.keys() - fusion.RULES.keys()), *DECOMPOSED])
