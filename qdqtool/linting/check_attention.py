# SPDX-License-Identifier: Apache-2.0
"""Checks of attention: all of its pairs where it is one INT8 kernel then, else none; the number that masks its keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.decisions import Decisions
from qdqtool.formats import FP8
from qdqtool.graph.view import Use
from qdqtool.linting.check_silent_float import severity_of
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.attention import Attention, find_attentions
from qdqtool.match.options import PlanOptions
from qdqtool.passes.mask_values import find_mask_values

_OPERANDS = ("its queries", "its keys", "the output of its Softmax", "its values")
_TODO = "qdqtool insert --requantize{} places all of the pairs of an attention, or none"


@check("Q058", "torn-attention", "warning", targets=("gpu", "rtx"))
def torn_attention(context: LintContext) -> Iterator[CheckFault]:
    """An attention with pairs that is no one INT8 kernel: some are missing, or its form or sizes do not allow it.

    With pairs on queries, keys, what the Softmax gives, values and the output it is one kernel, for heads of 16, 32 or
    64 values and at most 512 tokens (RTX: 512 keys); with fewer it falls apart into more layers than in float. In FP8
    it needs no pair on the output, and 1,024 tokens of 128 values are one kernel. A pair on the output alone is the
    next product's. A warning for RTX and TensorRT 11, a note for 8 to 10.
    """
    rows = {context.format_of(pair) for pairs in context.view.pairs.values() for pair in pairs}
    todo = _TODO.format(" --format fp8" if FP8 in rows else "")
    for one, _, why in torn_attentions(context):
        yield CheckFault(one.name, f"an attention with Q/DQ: {why}", todo, severity=severity_of(context))


def torn_attentions(context: LintContext) -> Iterator[tuple[Attention, list[str], str]]:
    """Each attention with pairs that is no one kernel in INT8 or FP8, what of it has no pair, and why."""
    if not context.view.pairs:
        return
    for one in find_attentions(context.view, context.rules, "int8", Decisions()):
        uses = _uses(one)
        bare = [
            what for what, use in zip(_OPERANDS, uses, strict=False) if not context.carriers(use.node.inputs[use.index])
        ]
        if len(bare) == len(uses):
            continue
        rows = {context.format_of(pair) for use in uses for pair in context.carriers(use.node.inputs[use.index]) or ()}
        missing = bare if _gives_int8(context, one) else [*bare, "its output"]
        if one.weights and rows == {FP8}:  # of any size, and without a pair on its output
            if bare:
                yield one, bare, f"no pair on {', '.join(bare)}: it is not one FP8 kernel"
        elif not one.int8:
            yield one, missing, one.reason
        elif missing:
            yield one, missing, f"no pair on {', '.join(missing)}: it is not one INT8 kernel"


def count_attentions(context: LintContext) -> tuple[int, int]:
    """How many attentions have pairs on all that they read, and how many can: in the format of the model's pairs."""
    rules = PlanOptions(context.target, context.asked, format=context.number_format).rule_book()
    found = find_attentions(context.view, rules, "int8", Decisions())
    whole = [all(context.carriers(use.node.inputs[use.index]) for use in _uses(one)) for one in found if one.int8]
    return sum(whole), len(whole)


def _uses(one: Attention) -> tuple[Use, ...]:
    return one.operands if one.weights else tuple(Use(one.nodes[0], index) for index in range(3))


@check("Q061", "mask-value", "warning", targets=("gpu", "rtx"))
def mask_value(context: LintContext) -> Iterator[CheckFault]:
    """Infinity, or a number that FP16 does not hold, masks the keys of an attention.

    With -inf TensorRT for RTX makes 13 layers of a transformer block, with -30000 6: its attention is one kernel then.
    With -3.4e38 or -1e9 `amp` keeps Where and Softmax in FP32. `--fix Q061` writes -30000, by its code only: the
    Softmax is the same, bit for bit, of each row with an unmasked key whose score is above -29896. A row that is masked
    whole gives 1/n everywhere, where -inf gives NaN.
    """
    for one in find_mask_values(context.file_view):
        why = "TensorRT for RTX makes more layers with it" if np.isinf(one.lowest) else "FP16 does not hold it"
        text = f"masks attention with {one.lowest:g}: {why}"
        yield CheckFault(one.name, text, "qdqtool lint --fix Q061 writes -30000", fixable=True)


def _gives_int8(context: LintContext, one: Attention) -> bool:
    """Whether a pair is on what an attention gives, or after what moves it."""
    return any(name in context.view.pairs for name in context.flow.tensors(one.key))
