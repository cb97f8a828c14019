# SPDX-License-Identifier: Apache-2.0
"""The element types of rules/types.toml beside NVIDIA's own parser: verdict and output types, operator by operator."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from qdqtool.precision.element_types import infer_types
from qdqtool.tensorrt_rtx.installed import RtxLibrary, find_library
from tests.rtx.parse_many import ParsedTypes, parse_many
from tests.rtx.typed_graphs import TypedGraph, typed_graphs

# (operator, types of its inputs) -> why the parser judges otherwise.
EXPLAINED = {
    (
        "Pow",
        "u8 u8",
    ): "Weights in UINT8 become INT32 and the exponent is cast; no other arithmetic takes a base in UINT8.",
    ("Pad", "i32 f32"): "Of all integers INT32 alone takes a value in FP32, which is no valid ONNX.",
    (
        "LSTM",
        "i8 i8 i8 i8",
    ): "A state that is not given is FP32, beside which INT8 is refused; nothing writes such a graph.",
    ("RNN", "i8 i8 i8 i8"): "As LSTM.",
}
_SAME = {
    "FLOAT": "FLOAT", "FLOAT16": "HALF", "BFLOAT16": "BF16", "INT32": "INT32", "INT64": "INT64", "BOOL": "BOOL",
    "INT8": "INT8", "UINT8": "UINT8", "FLOAT8E4M3FN": "FP8", "INT4": "INT4", "FLOAT4E2M1": "FP4",
}  # fmt: skip


def difference(graph: TypedGraph, parsed: ParsedTypes) -> str:
    """How the rules and the parser differ on a graph; "" where they do not."""
    report = infer_types(graph.model)
    if parsed.accepted == bool(report.conflicts):
        said = report.conflicts[0].message if report.conflicts else f"accepted, the parser: {parsed.message[-300:]}"
        return f"{graph.name}, {graph.types}: {said}"
    if parsed.accepted:
        names = {
            one.name: _SAME[TensorProto.DataType.Name(report.types.get(one.name, 0))]
            for one in graph.model.graph.output
        }
        return "" if names == parsed.outputs else f"{graph.name}, {graph.types}: {names}, the parser: {parsed.outputs}"
    return ""


def test_the_table_has_every_type_and_mixture() -> None:
    graphs = list(typed_graphs())
    assert len(graphs) > 2500
    assert len({(one.name, one.types) for one in graphs}) == len(graphs)
    assert {one.types.split()[0] for one in graphs if one.types} == {
        "f32", "f16", "bf16", "f64", "i32", "i64", "bool", "i8", "u8", "i16",
    }  # fmt: skip


@pytest.fixture(scope="module")
def library() -> RtxLibrary:
    """The installed library."""
    found = find_library()
    if found is None:
        pytest.skip("needs TensorRT for RTX: make rtx, or name a Python that has it in QDQTOOL_RTX_PYTHON")
    return found


def differing(graphs: list[TypedGraph], library: RtxLibrary) -> dict[tuple[str, str], str]:
    """Operator and types of the graphs on which rules and parser differ -> how."""
    parsed = parse_many((one.model.SerializeToString() for one in graphs), library.python)
    told = [(_key(graph), difference(graph, verdict)) for graph, verdict in zip(graphs, parsed, strict=True)]
    assert sum(verdict.accepted for verdict in parsed) > len(graphs) // 6
    return {key: text for key, text in told if text}


def _key(graph: TypedGraph) -> tuple[str, str]:
    return graph.name.split()[0], graph.types


@pytest.mark.rtx
@pytest.mark.parametrize("part", range(4))  # two workers share them
def test_the_rules_agree_with_the_parser_on_every_graph(library: RtxLibrary, part: int) -> None:
    found = differing(list(typed_graphs())[part::4], library)
    assert [text for key, text in found.items() if key not in EXPLAINED] == []


@pytest.mark.rtx
def test_every_reason_is_needed(library: RtxLibrary) -> None:
    assert differing([one for one in typed_graphs() if _key(one) in EXPLAINED], library).keys() == EXPLAINED.keys()
