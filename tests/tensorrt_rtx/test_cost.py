# SPDX-License-Identifier: Apache-2.0
"""The sums over a built engine: layers, conversions, bytes, products; the line that tells them."""

from __future__ import annotations

from qdqtool.engine.built_layers import parse_layers
from qdqtool.tensorrt_rtx.build import BuiltEngine
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of
from tests.engine.test_built_layers import line, tensor


def engine(*lines: str) -> BuiltEngine:
    return BuiltEngine(("89",), "1.7.1.116", parse_layers("\n".join(lines)), {}, (), 7, 0.5, 0)


CAST = line(
    name="__myl_Cast_myl0_2",
    kind="kgen",
    inputs=tensor("o", "1,16,8,8", "Float"),
    outputs=tensor("h", "1,16,8,8", "Half"),
    nodes="",
)


def test_an_engine_of_one_product() -> None:
    reported = "TensorRT for RTX 1.7.1, built on a CPU for SM89; not run"
    assert cost_of(engine(line())) == EngineCost(1, 0, 256 + 4096, {"INT8": 1}, reported)


def test_what_only_converts_is_counted_and_moves_bytes() -> None:
    cost = cost_of(engine(line(), CAST))
    assert (cost.layers, cost.conversions, cost.products) == (2, 1, {"INT8": 1})
    assert cost.bytes_moved == 256 + 4096 + 4096 + 2048


def test_products_by_type_and_the_line_of_it() -> None:
    cost = cost_of(engine(line(), line(name="d", inputs=tensor("o", "1,16,8,8", "Float")), CAST))
    assert cost.products == {"INT8": 1, "FP32": 1}
    assert cost.text() == "3 layers (1 only convert), 0.0 MB moved, 1 of 2 products in INT8"
    assert EngineCost(224, 3, 126_123_456, {"INT8": 106, "FP32": 7}, "").text() == (
        "224 layers (3 only convert), 126.1 MB moved, 106 of 113 products in INT8"
    )


def test_json_has_the_numbers() -> None:
    assert cost_of(engine(line())).to_json() == {
        "layers": 1,
        "conversions": 0,
        "bytes_moved": 4352,
        "products": {"INT8": 1},
    }


def test_an_engine_without_products() -> None:
    assert cost_of(engine(CAST)).text() == "1 layers (1 only convert), 0.0 MB moved, 0 of 0 products in INT8"
