# SPDX-License-Identifier: Apache-2.0
"""Which operators of the default domain no gradient passes: one list for the cut, the losses and both back ends."""

from __future__ import annotations

STEPS = frozenset({"Ceil", "Floor", "Round", "Sign"})
"""Constant almost everywhere: the derivative is 0, and a back end may write that down."""

STOPS = STEPS | {
    *("And", "Not", "Or", "Xor"),
    *("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Unique"),
    *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    *("ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Range", "Shape", "Size"),
    *("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"),
    "OneHot",
}
"""Steps, comparisons, sizes, places and answers: nothing is trained through them, and nothing is said."""
