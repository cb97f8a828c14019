# SPDX-License-Identifier: Apache-2.0
"""What a Q/DQ model is like where accuracy may be lost, and in what two of them differ. Nothing is run or repaired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtool.deploying.improvements import GivenFaults
from qdqtool.deploying.target import DeployTarget
from qdqtool.display import counted
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import float_products, output_axis, pair_behind, weight_dims, weight_index
from qdqtool.linting.check_attention import count_attentions
from qdqtool.linting.finding import Finding, by_code
from qdqtool.linting.lint_context import LintContext
from qdqtool.precision.casts import types_over_pairs
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions

_NAMED = 6  # operators that a sentence names
_ZERO_POINTS, _HEADS = frozenset({"Q004", "Q005"}), frozenset({"Q008", "Q009"})


@dataclass(frozen=True)
class PairsOfModel:
    """Where a model has pairs.

    Attributes:
        per_tensor: weighted operators with one scale for the weight, though it makes several channels.
        per_channel: those with one for each channel.
        in_float: those without a pair on the weight, in the order of the graph.
        activations: how many activations have a pair.
        attentions: how many attentions have pairs on all that they read.
        formats: the number formats of the pairs.
        typed: whether what is not INT8 has a type of its own, FP16 or BF16.
    """

    per_tensor: tuple[str, ...]
    per_channel: tuple[str, ...]
    in_float: tuple[str, ...]
    activations: int
    attentions: int
    formats: tuple[str, ...]
    typed: bool

    def changes_to(self, other: PairsOfModel) -> list[str]:
        """What another model has otherwise, a sentence each."""
        said = []
        finer = sorted(set(self.per_tensor) & set(other.per_channel))
        coarser = sorted(set(self.per_channel) & set(other.per_tensor))
        for names, how in (
            (finer, "per channel instead of per tensor"),
            (coarser, "per tensor instead of per channel"),
        ):
            if names:
                said.append(f"scales of weights are {how} at {counted(len(names), 'operator')}")
        for found, reference, where in ((other, self, "in float"), (self, other, "in INT8")):
            names = [name for name in found.in_float if name not in reference.in_float]
            if names:
                shown = ", ".join(names[:_NAMED]) + (", ..." if names[_NAMED:] else "")
                said.append(f"{counted(len(names), 'more operator')} {where}: {shown}")
        if self.activations != other.activations:
            said.append(f"pairs on {counted(other.activations, 'activation')}, {self.activations} before")
        if self.formats != other.formats:
            said.append(f"pairs in {' and '.join(other.formats)}, {' and '.join(self.formats)} before")
        if self.attentions != other.attentions:
            said.append(f"{counted(other.attentions, 'attention')} quantized, {self.attentions} before")
        if self.typed != other.typed:
            said.append("FP16 Casts in the file" if other.typed else "no FP16 Casts in the file any more")
        return said


def pairs_of(path: Path) -> PairsOfModel:
    """Where the model of a file has pairs."""
    model = open_model(path)
    view = model.view
    per_tensor, per_channel = [], []
    for node in view.nodes:
        index = weight_index(view, node)
        pair = None if index is None else pair_behind(view, node.inputs[index])
        scale = None if pair is None else view.array(pair.dequantize.inputs[1])
        if index is None or pair is None or scale is None:
            continue
        dims = weight_dims(view, pair.tensor)
        channels = dims[output_axis(node, index, len(dims))] if dims else 1
        if scale.size > 1:
            per_channel.append(node.name or node.key)
        elif channels > 1 and node.op != "ConvTranspose":  # the axis of which is a guess: see docs/insert.md
            per_tensor.append(node.name or node.key)
    in_float = tuple(node.name or node.key for node in float_products(view))
    typed = types_over_pairs(model.proto) is not None
    context = LintContext(model)
    formats = {row.title for pair in context.all_pairs if (row := context.format_of(pair)) is not None}
    return PairsOfModel(
        tuple(per_tensor),
        tuple(per_channel),
        in_float,
        _activations(view),
        count_attentions(context)[0],
        tuple(sorted(formats)),
        typed,
    )


def _activations(view: GraphView) -> int:
    return sum(1 for name, pairs in view.pairs.items() if pairs and not view.is_constant(name))


def faults_of(given: Path, plain: Path, pairs: PairsOfModel, target: DeployTarget) -> tuple[GivenFaults, str]:
    """What the graph shows of the pairs, and why TensorRT does not build them; "" if it does, or reads a cache."""
    own = {one.code for one in _findings(plain, target)}
    found = [one for one in _findings(given, target) if one.code not in own]
    codes = {one.code for one in found}
    faults = GivenFaults(
        # TensorRT for RTX has one scale for a weight by its rules, and factors of the channels after the product
        per_tensor=target.kind == "gpu" and bool(pairs.per_tensor),
        zero_points=target.kind == "gpu" and bool(codes & _ZERO_POINTS),
        heads=target.kind == "gpu" and bool(codes & _HEADS),
    )
    version = target.version
    errors = [one for one in found if one.severity == "error"]
    if not errors or (version is not None and version.has_caches and (target.kind == "dla" or not version.builds_qdq)):
        return faults, ""
    said = f"{counted(len(errors), 'error')} in it ({', '.join(by_code(errors))})"
    return faults, f"lint finds {said}, for which TensorRT refuses it or breaks its numbers"


def _findings(model: Path, target: DeployTarget) -> list[Finding]:
    return list(lint(model, LintOptions(target.kind, target.version)).findings)
