# SPDX-License-Identifier: Apache-2.0
"""Checks of element types: what a strongly typed network refuses, what runs in FP32, Casts and scales of other types.

The types are those of `precision/element_types.py`. Values that FP16 does not hold are `check_fp16.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import TensorProto

from qdqtool.display import counted
from qdqtool.engine.predicted_text import format_products, format_shares
from qdqtool.errors import QdqError
from qdqtool.formats import INT8
from qdqtool.graph.edit import get_metadata
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node, attribute
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.metadata import stored_table
from qdqtool.precision.element_types import FLOATS, HALVES, TypeConflict, type_name
from qdqtool.precision.islands import Island, float32_islands
from qdqtool.precision.reasons import wants_data

_FLOAT, _HALF = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
_PAIR = (QUANTIZE, DEQUANTIZE)
_INTEGERS = frozenset({"INT8", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"})
_BITS = {_FLOAT: 24, _HALF: 11, int(TensorProto.BFLOAT16): 8}  # of a significand: what a Cast keeps
_AMP = "qdqtool amp MODEL --data DATA -o OUT writes FP16 where the data allow it"
_CHOSEN = "the types were chosen without data: make it again with --data (insert, graft, amp) for more FP16"
_NAMED = 12
_REASONS = 3


@check("Q052", "element-types", "error", targets=("gpu", "rtx"))
def element_types(context: LintContext) -> Iterator[CheckFault]:
    """TensorRT refuses the element types at a node: in a strongly typed network its inputs must be of one type.

    TensorRT 11 and TensorRT for RTX build no other networks, nor does a file with FP16 or BF16 tensors make sense in
    one; for an older version and a file in FP32 it is a warning. The rules are rules/types.toml, measured on NVIDIA's
    parser: Clip bounds, a Pad value, parameters of BatchNormalization and an exponent may differ. A DequantizeLinear
    outputs its output_dtype, else the type of its scale: after one with an FP32 scale an FP16 network needs a Cast.
    Integers of a pair that an operator reads are Q003; types that a pair itself cannot have are Q005 and Q006.
    """
    severity: Severity = "error" if context.strongly_typed else "warning"
    for conflict in context.typed.conflicts:
        if not _is_of_pairs(context, conflict):
            text = f"{conflict.op} {conflict.message}".strip()
            yield CheckFault(conflict.node, text, _todo(context, conflict), severity=severity)


@check("Q053", "fp32-compute", "warning", targets=("gpu", "rtx"))
def fp32_compute(context: LintContext) -> Iterator[CheckFault]:
    """Operators run in FP32 that FP16 might hold: a strongly typed engine computes in the types of the file.

    From TensorRT 11 on, and for RTX. In a model with FP16 or BF16 each stretch of FP32 operators is named that has a
    product or at least two operators; a model in FP32 gets one line. What `qdqtool amp` left in FP32 for the
    values it saw is a note. Whether FP16 holds the values, only data tell.
    """
    if not context.reads_types:
        return
    islands = [one for one in float32_islands(context.file_view, context.typed, base=context.view) if one.able]
    known, reasons = get_metadata(context.proto, "precision") is not None, context.float32_reasons
    if not context.has_halves and not known:
        yield from _in_fp32(context, islands)
        return
    where = "between FP16 or BF16 operators" if context.has_halves else _beside(context)
    for island in islands:
        if island.products or len(island.nodes) > 1:
            shown = island.products or island.nodes
            names = ", ".join(node.name for node in shown[:_NAMED])
            more = f" and {len(shown) - _NAMED} more" if shown[_NAMED:] else ""
            why = list(dict.fromkeys(reasons[node.key] for node in island.nodes if node.key in reasons))
            because = f"; {'; '.join(why[:_REASONS])}" if why else ""
            text = f"{_run_text(island.nodes, island.products)} in FP32 {where}: {names}{more}{because}"
            severity: Severity | None = "note" if known else None
            todo = _chosen_todo(context, why) if known else _AMP
            yield CheckFault(island.nodes[0].name, text, todo, severity=severity)


@check("Q054", "fp32-share", "note", targets=("gpu", "rtx"))
def fp32_share(context: LintContext) -> Iterator[CheckFault]:
    """What is FP32: how many products, and how much of multiply-adds and bytes, by the layers that are predicted.

    From TensorRT 11 on, and for RTX, where engines have the types of the file. Nothing was built; see `qdqtool engine
    show --predicted`.
    """
    forecast = context.forecast if context.reads_types else None
    if forecast is None or not (forecast.products_by_type or forecast.bytes_by_type):
        return
    parts = list(filter(None, [format_products(forecast.products_by_type)]))
    if forecast.macs_by_type:
        parts.append(f"multiply-adds: {format_shares(forecast.macs_by_type)}")
    if forecast.bytes_by_type:
        parts.append(f"bytes moved: {format_shares(forecast.bytes_by_type)}")
    known = get_metadata(context.proto, "precision") is not None
    chosen = _chosen_todo(context, list(context.float32_reasons.values())) if known else _AMP
    todo = chosen if "FP32" in (*forecast.products_by_type, *forecast.bytes_by_type) else ""
    yield CheckFault(context.model_place, "; ".join(parts) + " (predicted, not measured)", todo)


@check("Q055", "casts-back-and-forth", "warning", targets=("gpu", "rtx"))
def casts_back_and_forth(context: LintContext) -> Iterator[CheckFault]:
    """A Cast that undoes another one, that changes nothing, or that is there twice on one tensor.

    FP16 to FP32 and back gives the same values and costs a kernel where nothing fuses it. FP32 to FP16 and back rounds
    and saves nothing.
    """
    types = context.typed.types
    seen: dict[tuple[str, int], Node] = {}
    for node in context.file_view.every:
        if node.op != "Cast" or not node.inputs or context.file_view.is_constant(node.key):
            continue
        source, made = types.get(node.inputs[0], 0), types.get(node.key, 0)
        twin = seen.setdefault((node.inputs[0], made), node)
        maker = context.file_view.producers.get(node.inputs[0])
        if source == made and made in FLOATS:
            yield CheckFault(node.name, f"casts {type_name(made)} to its own type", "remove it")
        elif twin is not node:
            text = f"casts {node.inputs[0]} to {type_name(made)} as {twin.name} does"
            yield CheckFault(node.name, text, "use one Cast for all consumers", severity="note")
        elif maker is not None and maker.op == "Cast" and {source, made} <= FLOATS:
            yield from _undone(maker, node, types.get(maker.inputs[0], 0), source, made)


@check("Q056", "scale-types", "warning", targets=("gpu", "rtx"))
def scale_types(context: LintContext) -> Iterator[CheckFault]:
    """A pair on an FP16 or BF16 tensor that outputs FP32, since its scale is FP32.

    A DequantizeLinear outputs its output_dtype (opset 23), else the type of its scale. What reads it then runs in
    FP32, or is refused beside FP16 (Q052). A Cast after it, or output_dtype, gives the same engine as a scale in FP16
    and keeps every bit of the scale. A scale that is itself in FP16 is Q021.
    """
    if not context.has_halves:
        return
    types = context.typed.types
    for tensor, pairs in context.file_view.pairs.items():
        for pair in pairs:
            source = 0 if pair.quantize is None else types.get(pair.quantize.inputs[0], 0)
            made = types.get(pair.dequantize.key, 0)
            if source in HALVES and made == _FLOAT and not _cast_by_all(context, pair.dequantize.key):
                text = f"is {type_name(source)} and its pair outputs FP32, the type of the scale"
                yield CheckFault(tensor, text, f"add a Cast to {type_name(source)} after {pair.dequantize.name}")


# ---------------------------------------------------------------------- parts


def _is_of_pairs(context: LintContext, conflict: TypeConflict) -> bool:
    """Whether another check owns it: integers of pairs that operators read, stored types of pairs."""
    if conflict.op in _PAIR:
        return True
    names = TensorProto.DataType
    if any(names.Name(code) in _INTEGERS for code in conflict.types if code in names.values()):
        return True
    readers = [] if conflict.op else context.direct_readers.get(conflict.key, [])
    return bool(readers) and all(node.op in _PAIR for node in readers)


def _todo(context: LintContext, conflict: TypeConflict) -> str:
    if conflict.rule != "agree" or len(conflict.tensors) < 2:
        wanted = "INT64" if conflict.rule == "schema" and set(conflict.types) <= FLOATS else "a type that it takes"
        return f"cast it to {wanted}, or export the model again"
    if not set(conflict.types) <= FLOATS:
        return "cast one of the two, or export the model again"
    half = next((code for code in conflict.types if code in HALVES), _HALF)
    other = next(
        (name for name, code in zip(conflict.tensors, conflict.types, strict=True) if code != half), conflict.tensors[0]
    )
    maker = context.file_view.producers.get(other)
    if maker is not None and maker.op == DEQUANTIZE:
        return f"add a Cast to {type_name(half)} after {maker.name}, or output_dtype there (opset 23)"
    return f"cast {other} to {type_name(half)}, or store it so"


def _chosen_todo(context: LintContext, reasons: Sequence[str]) -> str:
    """What more FP16 takes, where the types were chosen: data, unless the reasons or the scales are of data."""
    if reasons:
        return _CHOSEN if any(map(wants_data, reasons)) else ""
    try:
        table = stored_table(context.proto)
    except QdqError:  # a table that cannot be read says nothing
        table = None
    return "" if table is not None and table.provenance.samples else _CHOSEN


def _in_fp32(context: LintContext, islands: Sequence[Island]) -> Iterator[CheckFault]:
    nodes = [node for island in islands for node in island.nodes]
    products = [node for island in islands for node in island.products]
    if nodes:
        beside = f" {_beside(context)}" if context.file_view.pairs else ""
        text = f"{_run_text(nodes, products)} in FP32{beside}, because an engine uses the types of the file"
        yield CheckFault(context.model_place, text, _AMP)


def _beside(context: LintContext) -> str:
    """What operators in float stand beside."""
    rows = {context.format_of(pair) for pairs in context.file_view.pairs.values() for pair in pairs}
    return "beside INT8" if INT8 in rows or not rows else "beside quantized operators"


def _run_text(nodes: Sequence[Node], products: Sequence[Node]) -> str:
    """`12 operators, 3 of them products, run`."""
    more = f", {len(products)} of them {'a product' if len(products) == 1 else 'products'}," if products else ""
    return f"{counted(len(nodes), 'operator')}{more} {'runs' if len(nodes) == 1 else 'run'}"


def _undone(first: Node, second: Node, source: int, between: int, made: int) -> Iterator[CheckFault]:
    """Two Casts in a row: back to the type that there was, or by way of a type that does nothing."""
    if source != made:
        return
    if _BITS[between] >= _BITS.get(source, 0) and between == _FLOAT:
        text = f"casts back to {type_name(made)} what {first.name} made {type_name(between)}: the values are the same"
        yield CheckFault(second.name, text, "remove both")
    else:
        text = f"casts back to {type_name(made)} what {first.name} rounded to {type_name(between)}"
        yield CheckFault(second.name, text, "remove both, unless the rounding is meant", severity="note")


def _cast_by_all(context: LintContext, name: str) -> bool:
    readers = context.direct_readers.get(name, [])
    return all(node.op == "Cast" and attribute(node, "to", 0) in HALVES for node in readers)
