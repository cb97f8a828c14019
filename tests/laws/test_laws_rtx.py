# SPDX-License-Identifier: Apache-2.0
"""What `insert --target rtx` promises of any network: no product with Q/DQ is built in float, by lint and compiler."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings

from qdqtool import LintOptions, QdqError, insert, lint
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import pair_behind, weight_index
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.verbs.insert_options import InsertOptions
from tests.conftest import shared_folder
from tests.laws.law_checks import examples
from tests.laws.random_graphs import networks
from tests.precision.typed_graphs import with_types

SILENT_FLOAT = ("Q013", "Q020", "Q035", "Q036", "Q037", "Q038", "Q039")
TRAINED = sorted(((shared_folder() or Path()) / "corpus" / "models").glob("*.onnx"))
# A 1x1 convolution of a squeeze block on one pixel: few values, so that an ordinary kernel reads its INT8 weight.
NO_LAYER_OF_ITS_OWN = {"ppocr_mobile_cls": {"p2o.Conv.4"}}
many = examples(5)


def quantized(model: onnx.ModelProto | Path, version: str | None = None, target: str = "rtx") -> onnx.ModelProto | None:
    """What insert makes; None where there is nothing to quantize."""
    proto = onnx.load(model) if isinstance(model, Path) else model
    try:
        return insert(proto, options=InsertOptions(plan=PlanOptions(target, version))).model
    except QdqError:
        return None


def check_no_silent_float(model: onnx.ModelProto | Path) -> None:
    made = quantized(model)
    if made is not None:
        found = lint(made, LintOptions("rtx", select=SILENT_FLOAT)).findings
        assert not [one.headline() for one in found if one.severity != "note"]


@many
@given(networks())
def test_no_silent_float_in_random_networks(model: onnx.ModelProto) -> None:
    check_no_silent_float(model)


@many
@given(networks(tidy=True))
def test_a_second_pair_changes_no_scale_and_takes_none_away(model: onnx.ModelProto) -> None:
    """The GPU's file for TensorRT 11 is that for 10 with pairs more, whose scales stand in the other file already."""
    old, new = quantized(model, "10.3.0", "gpu"), quantized(model, "11.0.0", "gpu")
    if old is None or new is None:
        assert old is new
        return
    scales = [
        {
            pair.tensor: view.array(pair.dequantize.inputs[1]).tobytes()
            for pairs in view.pairs.values()
            for pair in pairs
        }
        for view in (GraphView(old.graph), GraphView(new.graph))
    ]
    assert scales[0].items() <= scales[1].items() and set(scales[1].values()) == set(scales[0].values())


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", ["yolox_nano_coco", "ppocrv3_det", "selfie_seg", "nanodet_m_320_coco"])
def test_no_silent_float_in_some_trained_models(name: str, shared: Path) -> None:
    check_no_silent_float(shared / "corpus" / "models" / f"{name}.onnx")


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("sm", ["86", "89", "120"])
@pytest.mark.parametrize("file", TRAINED, ids=lambda file: file.stem)
def test_every_planned_product_of_the_corpus_is_built_in_int8(file: Path, sm: str) -> None:
    made = quantized(file)
    assert made is not None
    planned, built = products_planned(made), products_built(made, sm)
    assert planned - built == NO_LAYER_OF_ITS_OWN.get(file.stem, set())


@pytest.mark.rtx
@settings(many, max_examples=6)
@given(networks(tidy=True))
def test_planned_products_of_random_networks_are_never_built_in_float(model: onnx.ModelProto) -> None:
    made = quantized(model)
    if made is not None and all(node.name for node in made.graph.node):
        assert not products_planned(made) & products_built(made, "89", "FP32")


def products_planned(model: onnx.ModelProto) -> set[str]:
    """Names of the weighted operators whose weight has Q/DQ."""
    view = GraphView(model.graph)
    weighted = [(node, index) for node in view.nodes if (index := weight_index(view, node)) is not None]
    return {
        node.proto.name or f"node_of_{node.outputs[0]}"  # as the compiler calls a node without a name
        for node, index in weighted
        if pair_behind(view, node.inputs[index]) is not None
    }


def products_built(model: onnx.ModelProto, sm: str, kind: str = "INT8") -> set[str]:
    """Names of the nodes that the engine multiplies in one type."""
    from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine

    engine = build_engine(model, RtxBuildOptions(sm=(sm,)))
    return {name for layer in engine.layers if layer.product_type == kind for name in layer.metadata}


# ---------------------------------------------------------------------- INT8 with a rest in FP16


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in FP16, pairs left as they are."""
    return with_types(model, TypeAssignment(onnx.TensorProto.FLOAT16))


@pytest.mark.rtx
@settings(many, max_examples=6)
@given(networks(tidy=True))
def test_the_rest_in_fp16_is_built_with_the_same_int8_products_and_none_in_fp32(model: onnx.ModelProto) -> None:
    made = quantized(model)
    if made is not None and all(node.name for node in made.graph.node):
        half = typed(made)
        assert products_built(half, "89") == products_built(made, "89")
        assert not products_built(half, "89", "FP32")


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("file", TRAINED, ids=lambda file: file.stem)
def test_the_corpus_in_fp16_and_in_int8_with_a_rest_in_fp16(file: Path) -> None:
    made = quantized(file)
    assert made is not None
    half = typed(made)
    assert not products_built(typed(onnx.load(file)), "89", "FP32")
    assert not products_built(half, "89", "FP32")
    planned = products_planned(made)
    assert planned & products_built(half, "89") == planned & products_built(made, "89")
