# SPDX-License-Identifier: Apache-2.0
"""Checks of the model as a whole: its opset, where its Q/DQ come from, and the names that caches and flags go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qdqtool.command_lines import command, file_word, option, stem_of
from qdqtool.graph.finite_constants import TODO, not_finite
from qdqtool.graph.importable import ends_empty, foreign_operators
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.rtxversion import RTX_TARGET

_OPSET_QDQ, _OPSET_AXIS = 10, 13


@check("Q014", "opset", "error")
def opset(context: LintContext) -> Iterator[CheckFault]:
    """The model's opset is higher than the parser of the TensorRT version reads.

    JetPack 4.4 to 4.5.1 (TensorRT 7.1.3) reads up to opset 11, 8.0 and 8.2 up to 13, 8.5 and 8.6 up to 17. Only the
    original file with a calibration cache goes to a version that cannot read Q/DQ. `--fix Q014` lowers a plain model of
    opset 12 to 17 where every operator has an older form of the same meaning: its outputs stay the same bit for bit.
    """
    highest = context.version.max_opset
    if highest is not None and context.opset > highest:
        text = f"opset {context.opset}, TensorRT {context.version.text} reads up to {highest}"
        plain = not any(node.op in (QUANTIZE, DEQUANTIZE) for node in context.view.every)
        other = "qdqtool lint --fix Q014" if plain else "qdqtool peel --source the original file, or --lower-opset"
        yield CheckFault(context.model_place, text, f"export with opset {highest}, or {other}", fixable=plain)


@check("Q015", "explicit-too-early", "error", trt="<8.0")
def explicit_too_early(context: LintContext) -> Iterator[CheckFault]:
    """A Q/DQ model for TensorRT 7 or earlier, which has no explicit quantization.

    Such versions take a clean model and a calibration cache: `peel` makes both.
    """
    number = sum(node.op in (QUANTIZE, DEQUANTIZE) for node in context.view.every)
    if number:
        text = f"{number} Q/DQ nodes, TensorRT {context.version.text} has no explicit quantization"
        command = f"qdqtool peel --target {context.target} --trt-version {context.version.header_number}"
        yield CheckFault(context.model_place, text, command)


@check("Q017", "colon", "warning")
def colon(context: LintContext) -> Iterator[CheckFault]:
    """A name of an activation that holds a ':'.

    TensorRT keeps such names whole, but onnxruntime's and MIGraphX's readers of calibration caches end a name at its
    first ':'. `--fix Q017` writes '_' in its place, inputs and outputs of the model included, so it is done only where
    it is asked for by code; a cache must take the same names: `qdqtool cache convert --sanitize-names --model` renames
    both together. A note for RTX and from TensorRT 11 on, which read no caches.
    """
    made = [name for node in context.view.nodes for name in node.outputs if not context.view.is_constant(name)]
    names = [name for name in (*context.view.inputs, *made) if ":" in name]
    if names:
        text = (
            f"{len(names)} names of activations contain ':', where some readers of caches, not TensorRT, cut them off"
        )
        calibrated = "scales" in _metadata(context)
        file = file_word(context.model.path or "MODEL.onnx")
        file, which = ("FP32.onnx", "FP32.onnx, your FP32 model, before insert") if calibrated else (file, "them")
        renaming = command("lint", file, "--fix", "Q017", *option("-o", f"{stem_of(file)}.fixed.onnx"))
        sanitizing = command("cache", "convert", "CACHE", "--to", "trt", "--sanitize-names", "--model", file)
        todo = f"{renaming} renames {which}; with a cache: {sanitizing} -o RENAMED.cache"
        unread = context.asked is not None and not context.asked.has_caches
        severity: Severity | None = "note" if unread or context.target == RTX_TARGET else None
        yield CheckFault(names[0], text, todo, fixable=not calibrated, severity=severity)


@check("Q018", "node-names", "note")
def node_names(context: LintContext) -> Iterator[CheckFault]:
    """Nodes without a name, or with one that others have too.

    Names of nodes are what `--layerPrecisions` and engine reports go by: an unnamed node cannot be kept in float by
    name, and equal names mean all of them. Caches are not concerned, they name tensors. `--fix` names the unnamed.
    """
    nodes = context.file_view.every
    unnamed = [node for node in nodes if not node.proto.name]
    if unnamed:
        text = f"{len(unnamed)} of {len(nodes)} nodes have no name, the first makes {unnamed[0].key}"
        yield CheckFault(
            context.model_place, text, "qdqtool lint --fix names them after their first outputs", fixable=True
        )
    for name, number in Counter(node.proto.name for node in nodes if node.proto.name).items():
        if number > 1:
            text = f"{number} nodes have this name: --layerPrecisions means all of them"
            yield CheckFault(name, text, "export with names that differ", severity="warning")


@check("Q027", "qdq-form", "error")
def qdq_form(context: LintContext) -> Iterator[CheckFault]:
    """Q/DQ of another domain, or in a form that the model's opset does not have.

    TensorRT's parser goes by the operator's name alone: those of com.microsoft are read like ONNX's (a warning, since
    other programs do not). They exist from opset 10 on, with an axis from 13.
    """
    for node in context.view.every:
        domain, op = node.proto.domain, node.proto.op_type
        if op not in (QUANTIZE, DEQUANTIZE):
            continue
        if domain not in ("", "ai.onnx"):
            text = f"{op} of the domain {domain}, which TensorRT reads by its name alone and others may not"
            todo = "quantize again without contrib operators (UseQDQContribOps)"
            yield CheckFault(node.name, text, todo, severity="warning")
        elif context.opset < _OPSET_QDQ:
            yield CheckFault(
                node.name, f"{op} in opset {context.opset}, it exists from {_OPSET_QDQ} on", "export again"
            )
        elif context.opset < _OPSET_AXIS and any(item.name == "axis" for item in node.proto.attribute):
            text = f"{op} has an axis in opset {context.opset}, it may have one from {_OPSET_AXIS} on: not valid ONNX"
            yield CheckFault(
                node.name, text, "convert the FP32 model to opset 13 before quantizing: qdqtool insert does"
            )


@check("Q033", "foreign-operator", "error")
def foreign_operator(context: LintContext) -> Iterator[CheckFault]:
    """An operator that TensorRT's ONNX parser does not import, such as onnxruntime's FusedConv or Brevitas' Quant.

    The parser goes by the operator's name alone and ignores the domain. What it does not import it takes for a plugin:
    those that NVIDIA ships are known here by version (EfficientNMS_TRT; BatchedNMSDynamic_TRT up to 10.16). Any other
    operator of a domain that is not known is a warning: it needs a plugin of your own. Operators on integers: Q025.
    """
    for one in foreign_operators(context.proto, context.asked):
        if one.op.rpartition("::")[2] not in context.words.integer:
            severity: Severity = "error" if one.verdict == "refused" else "warning"
            yield CheckFault(one.nodes[0], f"{one.counted}: {one.reason}", one.todo, severity=severity)


@check("Q060", "empty-last-input", "error")
def empty_last_input(context: LintContext) -> Iterator[CheckFault]:
    """An optional input at the end of an operator that is written as an empty name, such as the bias of Conv or Gemm.

    ONNX allows that, and TensorRT's parser refuses the node ("Invalid Node"), since it counts the inputs. Measured on
    TensorRT for RTX: Conv, Gemm, Squeeze, Slice, Split, Clip, Dropout, Trilu, QuantizeLinear and DequantizeLinear.
    `--fix` takes the empty names away.
    """
    for view in (context.file_view, *context.file_view.bodies()):
        for node in view.every:
            if ends_empty(node.proto):
                text = f"{node.op} has an empty input at its end, for which TensorRT's parser refuses it"
                yield CheckFault(node.name, text, "qdqtool lint --fix drops the empty input", fixable=True)


@check("Q062", "not-finite", "error")
def constant_not_finite(context: LintContext) -> Iterator[CheckFault]:
    """A constant that holds NaN, or a weight that holds infinity: so does everything that is computed from it.

    Infinity is an error where it is multiplied: in weights and biases of products, in parameters of normalizations. As
    a mask, a bound or what a Pad fills in it is not.
    """
    for one in not_finite(context.view):
        yield CheckFault(one.name, f"holds {one.what}, and {one.reader.op} {one.reader.name} reads it", TODO)


def _metadata(context: LintContext) -> set[str]:
    return {entry.key.rpartition(".")[2] for entry in context.proto.metadata_props}
