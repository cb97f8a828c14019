# SPDX-License-Identifier: Apache-2.0
"""Which layers of a kept candidate do not run in INT8 where it was asked for: in float, or on the GPU beside a DLA."""

from __future__ import annotations

from pathlib import Path

from qdqtool.cache.text import read_cache
from qdqtool.deploying.candidates import SHUFFLES, DeployCandidate
from qdqtool.deploying.layers_left import LayersLeft
from qdqtool.deploying.target import DeployTarget, dla_report
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import open_model
from qdqtool.graph.weighted import float_products, weight_index
from qdqtool.precision.widen import as_fp32
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from qdqtool.workflows.deploy_steps import MadeFiles


def layers_left(candidate: DeployCandidate, made: MadeFiles, target: DeployTarget) -> LayersLeft:
    """What a candidate leaves in float and, for a DLA, to the GPU."""
    opened = open_model(made.model)
    inline_products(opened)
    view = as_fp32(opened).view
    in_float: dict[str, str] = {}
    if made.cache is not None:  # as the script for trtexec builds it
        told, scales = made.told_to(target.version), read_cache(made.cache).entries
        floats = [one for one in made.layers if one in told or not any(name in scales for name in one.outputs)]
        in_float = {layer.name or layer.node: layer.why for layer in floats}
    elif candidate.form == "qdq":
        in_float = {node.name: made.refused.get(node.name, "its weight has no Q/DQ") for node in float_products(view)}
    if target.kind != "dla":
        return LayersLeft(in_float)
    weighted = [node.key for node in view.nodes if weight_index(view, node) is not None]
    report = dla_report(target, opened, weighted if candidate.is_float else ())
    reasons = {one.name: "; ".join(reason.text for reason in one.reasons) for one in report.fallbacks}
    return LayersLeft(in_float, reasons, report)


def has_shuffles(model: Path, target: DeployTarget) -> bool:
    """Whether the target is a DLA, and `lint --fix Q030` makes convolutions, which it runs, of something in a model."""
    if target.kind != "dla":
        return False
    found = lint(model, LintOptions("dla", target.version, select=(SHUFFLES,), platform=target.dla))
    return any(one.fixable for one in found.findings)
