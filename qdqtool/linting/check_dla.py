# SPDX-License-Identifier: Apache-2.0
"""Checks of what the DLA leaves to the GPU, and how often it is left and entered. The rules are in rules/dla.toml."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.dla.assignment import DlaAssignment, DlaReport
from qdqtool.emit.trtexec_flags import has_flag
from qdqtool.graph.view import DEQUANTIZE
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.rule_index import RuleIndex

_NAMED = 4  # nodes of one place that a message names
_BEFORE_PAIRS = "qdqtool lint --fix Q030 of the FP32 model, before insert, writes it as what the DLA runs"
_WITHOUT_PAIRS = "leave one of its inputs without Q/DQ, so that it computes in float"
_IN_FP16 = "compute it in FP16: qdqtool {} --target dla --emit {} writes a script that sets that"


@check("Q030", "dla-fallback", "warning", targets=("dla",))
def fallbacks(context: LintContext) -> Iterable[CheckFault]:
    """A node that the DLA cannot run, so that it falls back to the GPU.

    The limits of each layer (kernels, strides, padding, groups, the convolution buffer, the axis of a Concat, shapes)
    are rules of rules/dla.toml, by platform and version; each names the document or log that it is from. Where GPU
    fallback is not allowed, or a standalone loadable is built, the build fails at such a node. `--fix Q030` writes
    channel shuffles (Reshape, Transpose, Reshape, and Gathers after them) as 1x1 convolutions with a constant 0/1
    weight, which the DLA runs: the same values come out, but for the sign of zero. So are Slices and Splits of channels
    where they fall back. Resizes that make a map smaller by
    a power of two (nearest), or half as large (bilinear, half pixels), it writes as the poolings that they are.
    """
    report = context.dla
    if report is None:
        return
    fixes = _fixes(context)
    for verdict in report.fallbacks:
        reasons = "; ".join(one.cited() for one in verdict.reasons)
        instead = next((one.instead for one in verdict.reasons if one.instead), "")
        chosen = context.float32_reasons.get(verdict.node)
        if chosen and all(one.rule == "dla-fp32" for one in verdict.reasons):
            reasons, instead = f"{reasons}; {chosen}", ""
        todo = fixes.get(verdict.node, _BEFORE_PAIRS if verdict.node in report.rewritable else instead)
        text = f"{verdict.op} falls back to the GPU because {reasons}"
        yield CheckFault(verdict.name, text, todo, fixable=verdict.node in fixes)


def _fixes(context: LintContext) -> dict[str, str]:
    """What `--fix Q030` makes of nodes that fall back, by their first outputs."""
    if context.dla is None or not context.dla.fallbacks:
        return {}
    shuffle = "qdqtool lint --fix Q030 makes a 1x1 convolution of the channel shuffle"
    taken = "qdqtool lint --fix Q030 takes the channels by 1x1 convolutions"
    pooled = {one.node.key: one.op for one in context.pooled_resizes}
    return {
        **{node.key: shuffle for one in context.channel_selections for node in one.nodes},
        **{one.nodes[0].key: taken for one in context.channel_slices},
        **{key: f"qdqtool lint --fix Q030 writes it as the {op} that it is" for key, op in pooled.items()},
    }


@check("Q031", "dla-cut", "note", targets=("dla",))
def cuts(context: LintContext) -> Iterable[CheckFault]:
    """Nodes on the GPU that cut the DLA's part of the graph in two.

    Each contiguous part is a loadable of its own, and at each cut tensors travel between the DLA and the GPU and change
    their format. The nodes named together are those that would have to run on the DLA, at once, to save a part.
    """
    report = context.dla
    if report is None:
        return
    name = {one.node: one.name for one in report.verdicts}
    fixes = _fixes(context)
    parts = len(report.subgraphs.members)
    for saving in report.subgraphs.savings:
        shown = ", ".join(name[key] for key in saving.nodes[1:_NAMED])
        more = len(saving.nodes) - _NAMED
        beside = f" with {shown}{f' and {more} more' if more > 0 else ''}" if shown else ""
        text = f"splits the DLA's part{beside}: on the DLA they would leave {saving.left} of {parts} subgraphs"
        fix = next((fixes[key] for key in saving.nodes if key in fixes), "")
        yield CheckFault(name[saving.nodes[0]], text, fix or _instead(report, saving.nodes))


@check("Q032", "dla-loadables", "warning", targets=("dla",))
def loadables(context: LintContext) -> Iterable[CheckFault]:
    """More DLA subgraphs than a core can hold at a time.

    Each subgraph is a loadable. Beyond the number that the guide of the version tells the build stops, or leaves the
    rest to the GPU.
    """
    report = context.dla
    if report is not None and report.too_many and report.most is not None:
        parts = len(report.subgraphs.members)
        text = f"{parts} DLA subgraphs, where a core holds {report.most.most} at a time (rule {report.most.name})"
        yield CheckFault("graph", text, "see the cuts of Q031")


@check("Q034", "dla-two-ranges", "warning", targets=("dla",))
def two_ranges(context: LintContext) -> Iterable[CheckFault]:
    """A product or quotient of two computed tensors on the DLA, whose ranges differ or are not known yet.

    NvInfer.h needs one range for both inputs of an elementwise layer. Those of an Add are given one (Q020); a gate such
    as SiLU's Sigmoid would lose its levels by that, so products keep theirs and are better computed in FP16. Where the
    DLA takes Q/DQ, that is an input without a pair, as `insert` writes it.
    """
    report = context.dla
    on_dla = {one.node for one in report.on_dla} if report is not None else set()
    typed = report is not None and report.version.has_typed_dla
    named = report is None or has_flag("--layerPrecisions", report.version)
    in_fp16 = _IN_FP16.format("peel" if context.view.pairs else "ptq", "trtexec" if named else "polygraphy-script")
    for node, rule in RuleIndex(context.rules.shared_scales, context.rules).nodes(context.view):
        if rule.members != "none" or node.key not in on_dla:
            continue
        makers = [context.view.producers.get(name) for name in node.inputs]
        if typed and any(maker is None or maker.op != DEQUANTIZE for maker in makers):
            continue  # it computes in float
        scales = [context.range_of(name) for name in node.inputs]
        texts = [f"{float(scale):.6g}" for scale in scales if scale is not None]
        known = len(texts) == len(scales)
        if known and len({scale.tobytes() for scale in scales if scale is not None}) == 1:
            continue
        text = f"{node.op} of two tensors, for which the DLA needs one range (rule {rule.name})"
        text += f"; their scales are {' and '.join(texts)}" if known else ""
        yield CheckFault(node.name, text, _WITHOUT_PAIRS if typed else in_fp16, severity=None if known else "note")


def _instead(report: DlaReport, nodes: tuple[str, ...]) -> str:
    here = frozenset(nodes)
    found: list[DlaAssignment] = [one for one in report.verdicts if one.node in here]
    return next((reason.instead for one in found for reason in one.reasons if reason.instead), "")
