# SPDX-License-Identifier: Apache-2.0
"""The table: which operator is differentiated by which rule, and which ones have the gradient zero by definition."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.autodiff.rules import (
    arithmetic,
    convolution,
    elementwise,
    indexing,
    layout,
    losses,
    matrix,
    normalization,
    pooling,
    reductions,
    resizing,
)
from qdqtool.autodiff.rules.vjp_context import Rule

_FAMILIES = (
    arithmetic.RULES,
    convolution.RULES,
    elementwise.RULES,
    indexing.RULES,
    layout.RULES,
    losses.RULES,
    matrix.RULES,
    normalization.RULES,
    pooling.RULES,
    reductions.RULES,
    resizing.RULES,
)

RULES: Mapping[str, Rule] = {op: rule for family in _FAMILIES for op, rule in family.items()}
"""Operators of the default domain."""
