# SPDX-License-Identifier: Apache-2.0
"""Every corpus model as `insert` writes it: NVIDIA's parser accepts it, and its compiler builds products in INT8."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from qdqtool import insert
from qdqtool.engine.onnx_nodes import OnnxNodes
from qdqtool.graph.io import open_model
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import pair_behind, weight_index
from qdqtool.tensorrt_rtx.build import BuiltEngine, RtxBuildOptions, build_opened
from qdqtool.verbs.lint import LintOptions, lint
from tests.conftest import PROJECT

# How many products with an INT8 weight may be built otherwise: transposed convolutions (never INT8 here), convolutions
# behind a Resize or an average pool, a 1x1 convolution of one pixel that a generated kernel multiplies.
MOST_IN_FLOAT = {
    "fastestdet_coco": 1,
    "gtcrn": 11,
    "ppocr_mobile_cls": 1,
    "ppocrv3_det": 3,
    "selfie_seg": 1,
    "yolox_nano_coco": 4,
}
_FOLDER = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared")) / "corpus" / "models"
_MODELS = sorted(path.stem for path in _FOLDER.glob("*.onnx")) or ["absent"]
pytestmark = [pytest.mark.rtx, pytest.mark.shared]


def planned_products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The products whose weight comes out of a pair."""
    view = GraphView(model.graph)
    found = ((node, weight_index(view, node)) for node in view.nodes)
    return [
        node.proto for node, index in found if index is not None and pair_behind(view, node.inputs[index]) is not None
    ]


def built_otherwise(model: onnx.ModelProto, engine: BuiltEngine) -> list[str]:
    """The planned products that no INT8 layer of the engine names."""
    int8 = {name for layer in engine.layers if layer.product_type == "Int8" for name in layer.nodes}
    nodes = OnnxNodes(model)
    return [nodes.label(node) for node in planned_products(model) if nodes.label(node) not in int8]


@pytest.mark.parametrize("name", _MODELS)
def test_a_corpus_model_is_accepted_and_its_planned_products_are_int8(name: str, shared: Path) -> None:
    model = insert(onnx.load(shared / "corpus" / "models" / f"{name}.onnx")).model
    found = lint(model, LintOptions(trt_version="11.0", parser=True)).findings
    assert [finding for finding in found if finding.severity == "error"] == []
    otherwise = built_otherwise(model, build_opened(open_model(model), RtxBuildOptions()))
    assert len(otherwise) <= MOST_IN_FLOAT.get(name, 0), otherwise
