# SPDX-License-Identifier: Apache-2.0
"""Every corpus model as `insert --target rtx` writes it: NVIDIA's parser accepts it, its compiler builds it in INT8."""

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
from qdqtool.match.plan import PlanOptions
from qdqtool.tensorrt_rtx.build import BuiltEngine, RtxBuildOptions, build_opened
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.bench.parser_agreement import judge
from tests.conftest import PROJECT

# Products with an INT8 weight that are no INT8 layer: a 1x1 convolution of one pixel, in a generated kernel.
MOST_IN_FLOAT = {"ppocr_mobile_cls": 1}
_FOLDER = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared")) / "corpus" / "models"
_MODELS = sorted(path.stem for path in _FOLDER.glob("*.onnx")) or ["absent"]
_FOREIGN = sorted(path.stem for path in (_FOLDER.parent / "qdq").glob("*.onnx")) or ["absent"]
_SM = ("86", "89", "120")
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
    int8 = {name for layer in engine.layers if layer.product_type == "INT8" for name in layer.metadata}
    nodes = OnnxNodes(model)
    return [nodes.label(node) for node in planned_products(model) if nodes.label(node) not in int8]


@pytest.mark.parametrize("name", _MODELS)
def test_a_corpus_model_is_accepted_and_its_planned_products_are_int8(name: str, shared: Path) -> None:
    options = InsertOptions(plan=PlanOptions("rtx"))
    model = insert(onnx.load(shared / "corpus" / "models" / f"{name}.onnx"), options=options).model
    found = lint(model, LintOptions("rtx", parser=True)).findings
    assert [finding for finding in found if finding.severity == "error"] == []
    opened = open_model(model)
    otherwise = {sm: built_otherwise(model, build_opened(opened, RtxBuildOptions(sm=(sm,)))) for sm in _SM}
    assert all(len(names) <= MOST_IN_FLOAT.get(name, 0) for names in otherwise.values()), otherwise


# Files of other quantizers that the parser takes; the others it refuses, each where lint finds an error.
_ACCEPTED = {
    "gen_resnet20_modelopt_onnx",
    "gen_resnet20_modelopt_torch",
    "gen_resnet20_nncf",
    "gen_resnet32_ort_trtstyle",
    "ort_qdq_fusion_zp_not_provided",
    "ort_qdq_minimal_model",
}


@pytest.mark.parametrize("name", _FOREIGN)
def test_a_file_of_another_quantizer_is_refused_where_lint_says_so(name: str, shared: Path) -> None:
    row = judge("foreign", name, shared / "corpus" / "qdq" / f"{name}.onnx")
    assert row is not None and (row.refusals == ()) is (name in _ACCEPTED)
    assert not row.refusals or (row.errors and row.same), row
