# SPDX-License-Identifier: Apache-2.0
"""Q064 and Q065: formats beside INT8, held against what NVIDIA's compiler built of small graphs in every format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool import LintOptions
from qdqtool.graph.view import GraphView
from qdqtool.linting.check_formats import formats_in
from qdqtool.linting.finding import Finding
from qdqtool.trtversion import parse
from qdqtool.verbs.lint import lint
from qdqtool.verbs.show_engine import predicted_layers

# The first that a product reads is what it multiplies: FP4 has its scales in FP8 beside it.
_TITLES = {"Half": "FP16", "BFloat16": "BF16", "Float": "FP32", "FP4E2M1": "FP4", "FP8": "FP8", "Int8": "INT8"}
_PRODUCT = re.compile(r"^(?:gemm|correlation|runtime_fusion|_gemm_mha_v2):([^\[]*)")
_OPERATORS = (
    "ONNX_Attention",
    "TRT_Attention",
    "TRT_KV",
    "TRT_Quantized",
    "attention_FP16",
)  # products of no ONNX node
_INVALID = "TRT_MoE.onnx"  # of two inputs, which NVIDIA's parser alone refuses
_WRONG_SUM = "FP8_W8A8_MatMul_weight_blocks_of_128_on_K.onnx"  # built, and wrong by its plan
NOT_BUILT = ("NOT BUILT", "REFUSED")


@pytest.fixture(scope="module")
def built(shared: Path) -> dict[str, dict[str, str]]:
    """File -> compute capability -> the layers that were built, or why there are none."""
    found: dict[str, dict[str, str]] = {}
    for line in (shared / "formats" / "built.tsv").read_text().splitlines()[1:]:
        file, sm, layers = line.split("\t")
        found.setdefault(file, {})[sm] = layers
    return found


def product_types(layers: str) -> list[str]:
    """What the products of a row multiply."""
    found = [match[1] for layer in layers.partition(": ")[2].split("; ") if (match := _PRODUCT.match(layer))]
    return sorted(next(title for word, title in _TITLES.items() if word in text.split("+")) for text in found)


def findings(model: onnx.ModelProto | Path, target: str = "rtx", version: str = "") -> list[Finding]:
    asked = parse(version) if version else None
    return list(lint(model, LintOptions(target=target, trt_version=asked, parser=False)).findings)


def test_products_have_the_type_that_was_built(shared: Path, built: dict[str, dict[str, str]]) -> None:
    wrong = {}
    for file, by_sm in built.items():
        if by_sm["SM120"].startswith(NOT_BUILT) or file.startswith(_OPERATORS):
            continue
        counts = predicted_layers(shared / "formats" / file, target="rtx").forecast.products_by_type
        predicted = sorted(kind for kind, count in counts.items() for _ in range(count))
        if predicted != product_types(by_sm["SM120"]):
            wrong[file] = predicted, by_sm["SM120"]
    assert wrong == {}


def test_an_error_where_no_engine_is_built(shared: Path, built: dict[str, dict[str, str]]) -> None:
    wrong = {}
    for file, by_sm in built.items():
        errors = {one.code for one in findings(shared / "formats" / file) if one.severity == "error"}
        if file != _INVALID and bool(errors) != (by_sm["SM120"].startswith(NOT_BUILT) or file == _WRONG_SUM):
            wrong[file] = errors
    assert wrong == {}


def test_a_format_names_the_boards_for_which_no_engine_is_built(shared: Path, built: dict[str, dict[str, str]]) -> None:
    wrong = {}
    for file, by_sm in built.items():
        if by_sm["SM120"].startswith(NOT_BUILT):
            continue
        rows = formats_in(GraphView(onnx.load(shared / "formats" / file).graph))
        needed = max((row.sm for row in rows), default=0)
        for sm, layers in by_sm.items():
            if (needed <= int(sm[2:])) == layers.startswith(NOT_BUILT):
                wrong[file, sm] = needed
    assert wrong == {}


def product(weight: int, activation: int | None, scale: npt.NDArray[Any], block: int = 0) -> onnx.ModelProto:
    """An FP16 MatMul of [8, 64] by a stored weight with these scales, its activation with a pair or without."""
    kind = TensorProto.FLOAT16
    blocks = {"block_size": block} if block else {}
    codes = helper.make_tensor("w", weight, [64, 64], np.zeros(64 * 64, np.float32))
    held = [codes, numpy_helper.from_array(scale, "s")]
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], axis=0, **blocks)]
    read, by = "x", "wd"
    if scale.dtype == np.float32:
        nodes.append(helper.make_node("Cast", ["wd"], ["wh"], to=kind))
        by = "wh"
    if activation is not None:
        held += [helper.make_tensor("z", activation, [], [0]), numpy_helper.from_array(np.float16(0.1), "t")]
        nodes.append(helper.make_node("QuantizeLinear", ["x", "t", "z"], ["xq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["xq", "t", "z"], ["xd"]))
        read = "xd"
    nodes.append(helper.make_node("MatMul", [read, by], ["y"], name="mm"))
    ends = [helper.make_tensor_value_info(name, kind, [8, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


ONE = np.array(0.1, np.float16)
BLOCKS = np.full((2, 64), 0.1, np.float16)
FP8, INT4 = TensorProto.FLOAT8E4M3FN, TensorProto.INT4


@pytest.mark.parametrize(
    ("model", "severity", "part"),
    [
        (product(INT4, FP8, BLOCKS, 32), "error", "its weight is INT4"),
        (product(FP8, FP8, BLOCKS, 32), "error", "blocks along the depth"),
        (product(INT4, None, BLOCKS.astype(np.float32), 32), "warning", "FP32 scales"),
    ],
)
def test_pairs_that_are_built_otherwise(model: onnx.ModelProto, severity: str, part: str) -> None:
    (found,) = (one for one in findings(model) if one.code == "Q064")
    assert (found.where, found.severity) == ("mm", severity) and part in found.message
    elsewhere = [one.severity for one in findings(model, "gpu", "10.8") if one.code == "Q064"]
    assert "error" not in elsewhere and elsewhere


@pytest.mark.parametrize(
    "model",
    [product(FP8, FP8, ONE), product(INT4, None, BLOCKS, 32), product(FP8, None, BLOCKS, 32)],
)
def test_no_word_of_int8_where_there_is_none(model: onnx.ModelProto) -> None:
    found = findings(model)
    assert not [one for one in found if one.code in ("Q013", "Q021", "Q026", "Q064")]
    assert not [one.message for one in found if "in INT8" in one.message and "0 in INT8" not in one.message]


@pytest.mark.parametrize(
    ("weight", "version", "refused"),
    [
        (FP8, "8.6.1", True),
        (FP8, "10.8", False),
        (FP8, "11.5.0", False),
        (FP8, "jp6.1", True),
        (INT4, "jp5.1", True),
        (INT4, "jp6.1", False),
    ],
)
def test_a_version_that_does_not_read_the_format(weight: int, version: str, refused: bool) -> None:
    model = product(weight, None, ONE)
    (found,) = (one for one in findings(model, "gpu", version) if one.code == "Q065")
    assert found.severity == ("error" if refused else "note")


def test_int4_on_both_sides_is_a_product_of_int4() -> None:
    found = predicted_layers(product(INT4, INT4, ONE), target="rtx")
    assert found.forecast.products_by_type == {"INT4": 1}
    assert found.work is not None and [one.unit for one in found.work if one.products] == ["int8"]


def test_the_boards_of_a_software_are_named() -> None:
    (found,) = (one for one in findings(product(FP8, FP8, ONE), "gpu", "jp6.1") if one.code == "Q065")
    assert "JetPack 6.1 runs on" in found.message and "Orin" in found.message


def test_no_place_for_int8_is_named_in_a_model_of_another_format(shared: Path) -> None:
    file = shared / "formats" / "NVFP4_W4A4_low_rank_FP16_branch_SVDQuant_shape_.onnx"
    assert "Q028" not in {one.code for one in findings(file)}


def test_the_remedy_of_a_torn_attention_keeps_its_format(shared: Path) -> None:
    for name, part in [
        ("ONNX_Attention_23_with_FP8_pairs_on_QKV", "--format fp8"),
        ("attention_INT8_without_out_pair", ""),
    ]:
        (found,) = (one for one in findings(shared / "formats" / f"{name}.onnx") if one.code == "Q058")
        assert f"--requantize {part} places".replace("  ", " ") in found.fix
