# SPDX-License-Identifier: Apache-2.0
"""Two engines aligned by their ONNX nodes: every kind of change, by small engines and by published ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from qdqtool.engine.diff import align_layers, difference_lines, totals_table
from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.read_info import read_layer_info
from qdqtool.engine.totals import totals_of
from qdqtool.errors import QdqError


def layer(nodes: str, kind: str = "kgen", types: str = "Half>Half") -> EngineLayer:
    """A layer with these ONNX nodes; by its name alone where they are joined by +."""
    reads, _, writes = types.partition(">")
    metadata = () if "+" in nodes else tuple(nodes.split())
    name = nodes if "+" in nodes else f"__myl_{nodes.replace(' ', '')}"
    return EngineLayer(name, kind, metadata, (LayerTensor(reads),), (LayerTensor(writes),))


def engine(name: str, *layers: EngineLayer) -> EngineInfo:
    return EngineInfo(Path(name), layers, "json")


def changes(a: list[EngineLayer], b: list[EngineLayer]) -> list[tuple[str, str]]:
    return [(row.change, " ".join(row.nodes)) for row in align_layers(engine("a", *a), engine("b", *b))]


CONV, RELU, POOL = layer("c", "correlation"), layer("r"), layer("p")


@pytest.mark.parametrize(
    ("a", "b", "rows"),
    [
        ([CONV, RELU], [CONV, RELU], [("same", "c"), ("same", "r")]),
        ([CONV], [layer("c", "correlation", "Int8>Half")], [("types", "c")]),
        ([CONV], [layer("c", "correlation", "Half>Int8")], [("types", "c")]),
        ([layer("c r", "correlation")], [CONV, RELU], [("split", "c r")]),
        ([CONV, RELU], [layer("c r", "correlation")], [("merged", "c r")]),
        ([layer("c r"), POOL], [CONV, layer("r p")], [("regrouped", "c p r")]),
        ([CONV, RELU], [CONV, POOL], [("same", "c"), ("only A", "r"), ("only B", "p")]),
        (
            [layer("w + c + r"), layer("v + d")],
            [layer("w + c + r"), layer("v + e")],
            [("same", "c r w"), ("same", "v")],
        ),
    ],
)
def test_each_change(a: list[EngineLayer], b: list[EngineLayer], rows: list[tuple[str, str]]) -> None:
    assert changes(a, b) == rows


def test_a_generated_kernel_that_names_the_product_beside_it_is_not_the_product() -> None:
    plain = [layer("c r", "correlation")]
    quantized = [layer("c", "correlation", "Int8>Float"), layer("c r q", types="Float>Int8")]
    assert changes(plain, quantized) == [("split", "c r")]


def test_counters_of_an_exporter_do_not_join_layers_that_weights_tell_apart() -> None:
    a = [layer("l1.weight + Conv_5"), layer("l2.weight + Conv_9")]
    b = [layer("l1.weight + Conv_9"), layer("l2.weight + Conv_13")]
    assert changes(a, b) == [("same", "l1.weight"), ("same", "l2.weight")]
    assert changes([layer("Conv_5 + Relu_6")], [layer("Conv_5 + Relu_6")]) == [("same", "Conv_5 Relu_6")]


def test_copies_and_waits_are_left_out() -> None:
    extra = [EngineLayer("Reformatting CopyNode for Input Tensor 0 to c", "Reformat"), EngineLayer("s", "signal")]
    assert changes([CONV, *extra], [*extra, CONV]) == [("same", "c")]


def test_engines_of_two_models_are_refused() -> None:
    with pytest.raises(QdqError, match=r"b: .*no ONNX node .* a"):
        align_layers(engine("a", CONV), engine("b", RELU))


def test_rows_for_people_and_for_json() -> None:
    rows = align_layers(engine("a", CONV, RELU), engine("b", layer("c", "correlation", "Int8>Half"), RELU, POOL))
    lines = difference_lines(rows, ("a", "b"))
    assert lines[:2] == [
        "types: __myl_c (FP16 -> FP16) | __myl_c (INT8 -> FP16)",
        "only B: - | __myl_p (FP16 -> FP16)",
    ]
    assert lines[2].startswith("A is a, B is b; ") and lines[2].endswith(": 1 same, 1 types, 1 only B")
    assert len(difference_lines(rows, ("a", "b"), in_full=True)) == 4
    assert rows[0].to_json() == {
        "change": "types",
        "nodes": ["c"],
        "a": [{"name": "__myl_c", "inputs": ["FP16"], "outputs": ["FP16"], "bytes_moved": None}],
        "b": [{"name": "__myl_c", "inputs": ["INT8"], "outputs": ["FP16"], "bytes_moved": None}],
    }


@pytest.mark.shared
def test_quantized_residuals_of_a_published_resnet(shared: Path) -> None:
    folder = shared / "trt" / "engines" / "resnet18"
    a, b = (read_layer_info(folder / f"{mode}.graph.json") for mode in ("qat", "qat-residual"))
    counts = Counter(row.change for row in align_layers(a, b))
    assert counts["regrouped"] == counts["split"] == 0 and counts["types"] == 12
    table = {row[0]: row[1:] for row in totals_table(totals_of(a), totals_of(b))}
    assert table["layers"] == ("35", "25") and table["conversions"] == ("12", "3")
    assert table["products in INT8"] == ("21", "21") and table["bytes moved"] == ("601,195,360", "202,261,344")
