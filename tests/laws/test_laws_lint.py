# SPDX-License-Identifier: Apache-2.0
"""L6: what insert makes has no finding that the model had not before. And what repairs promise, on random graphs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qdqtool as verbs
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.conftest import shared_folder
from tests.graphs import model_of
from tests.laws import law_checks as laws
from tests.laws.random_graphs import networks

_CORPUS = (shared_folder() or Path()) / "corpus"
TRAINED = sorted((_CORPUS / "models").glob("*.onnx"))
STRUCTURE = sorted((_CORPUS / "structure").glob("*.onnx"))
QDQ = sorted((_CORPUS / "qdq").glob("*.onnx"))
many = laws.examples(5)


def check_insert_adds_no_finding(model: Path | onnx.ModelProto, folder: Path, version: TrtVersion | None = None) -> int:
    """L6 with a given scale for each point; gives how many findings there were before."""
    options, looked = PlanOptions(trt_version=version), verbs.LintOptions(trt_version=version)
    table = laws.table_for(verbs.plan(model, options))
    if isinstance(model, Path):
        standing = GraphView(laws.lifted(model).graph, model.parent).pairs
        table = ScaleTable({name: scale for name, scale in table.scales.items() if name not in standing})
    output = folder / "q.onnx" if isinstance(model, Path) else None
    done = verbs.insert(model, scales=table, options=verbs.InsertOptions(plan=options, allow_empty=True), output=output)
    before = {finding.key for finding in verbs.lint(model, looked).findings}
    new = [finding for finding in verbs.lint(done.model, looked).findings if finding.key not in before]
    assert not new, new[:3]
    return len(before)


@many
@given(networks())
def test_l6_on_random_networks(model: onnx.ModelProto) -> None:
    check_insert_adds_no_finding(model, Path())


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("file", TRAINED, ids=lambda file: file.stem)
def test_l6_on_every_trained_model(file: Path, tmp_path: Path) -> None:
    assert check_insert_adds_no_finding(file, tmp_path) > 0, "odd sizes at least"


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", ["cifar_resnet20_bn", "ultraface_rfb320", "yolox_nano_coco"])
def test_l6_on_some_trained_models(name: str, shared: Path, tmp_path: Path) -> None:
    assert check_insert_adds_no_finding(shared / "corpus" / "models" / f"{name}.onnx", tmp_path) > 0


def test_an_average_of_what_is_made_in_float_wants_no_pair() -> None:
    """Found among 2,000 random networks: one input of the Concat is no group's output, so the pool stays in float."""
    model = model_of(
        "net (float[1,4,8,8] x) => (float[1,10] y)"
        " <float[4,4,1,1] u, float[4,4,1,1] v, float[4,8,1,1] w, float[12,10] k, float[10] b> {"
        " c = Conv(x, u) l = LeakyRelu(c) d = Conv(x, v) r = LeakyRelu(d) t = Concat<axis=1>(l, r) e = Conv(t, w)"
        " s = HardSigmoid(e) h = HardSwish(e) a = Concat<axis=1>(t, h) g = GlobalAveragePool(a) f = Flatten(g)"
        " y = Gemm(f, k, b) }"
    )
    check_insert_adds_no_finding(model, Path())
    placed = verbs.insert(model, scales=laws.table_for(verbs.plan(model)), options=laws.ANY).model
    assert not [finding for finding in verbs.lint(placed).findings if finding.code == "Q028"]


# TensorRT 7 has no Q/DQ, and lint says so: what insert makes for it is there to be peeled.
VERSIONS = [TrtVersion(8, 0, 1), TrtVersion(8, 5, 2), TrtVersion(8, 6, 1), TrtVersion(10, 3, 0)]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.text)
@pytest.mark.parametrize("file", TRAINED, ids=lambda file: file.stem)
def test_l6_for_older_versions(file: Path, version: TrtVersion, tmp_path: Path) -> None:
    check_insert_adds_no_finding(file, tmp_path, version)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.text)
def test_l6_behind_a_resize_for_older_versions(version: TrtVersion) -> None:
    """Their rules place one pair before it, which the newest compiler runs in float: lint says so beforehand."""
    model = model_of(
        "net (float[1,4,8,8] x) => (float[1,10] y) <float[4,4,1,1] u, float[4,4,1,1] v, float[4,10] w,"
        " float[4] s = {1,1,2,2}> { c = Conv(x, u) r = Relu(c)"
        ' a = Resize<mode="nearest">(r, , s) d = Conv(a, v) e = Relu(d) g = GlobalAveragePool(e)'
        " f = Flatten(g) y = Gemm(f, w) }"
    )
    check_insert_adds_no_finding(model, Path(), version)
    found = verbs.lint(model, verbs.LintOptions(trt_version=version)).findings
    (finding,) = [one for one in found if one.code == "Q035"]
    assert finding.severity == "note" and re.search("Conv .* Resize", finding.message)


# ---------------------------------------------------------------------- repairs


@st.composite
def misplaced(draw: st.DrawFn) -> onnx.ModelProto:
    """A tidy random network in which each of some tensors has a pair, wherever that is, of one of two scales."""
    model = draw(networks(tidy=True).filter(lambda model: model.opset_import[0].version >= 13))
    graph, values = model.graph, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for name, scale in (("s0", 0.05), ("s1", 0.0625)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.float32(scale), name))
    graph.initializer.append(onnx.numpy_helper.from_array(np.int8(0), "zero"))
    shapes = onnx.shape_inference.infer_shapes(model).graph
    floats = {v.name for v in shapes.value_info if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT} | {"x"}
    floats |= {t.name for t in graph.initializer if len(t.dims) > 1 and t.data_type == onnx.TensorProto.FLOAT}
    old, nodes, made = list(graph.node), [], {}
    for node in old:
        for index, name in enumerate(node.input):
            if name in floats and name not in made and values.random() < 0.5:
                quantized, scale = f"{name}_q{len(made)}", f"s{values.integers(2)}"
                nodes.append(onnx.helper.make_node("QuantizeLinear", [name, scale, "zero"], [quantized]))
                nodes.append(onnx.helper.make_node("DequantizeLinear", [quantized, scale, "zero"], [f"{quantized}d"]))
                made[name] = f"{quantized}d"
            if name in made and values.random() < 0.8:
                node.input[index] = made[name]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


@many
@given(misplaced())
def test_repairs_bring_no_finding_and_leave_the_float_function(model: onnx.ModelProto) -> None:
    before = {finding.key for finding in verbs.lint(model).findings}
    result = verbs.lint(model, verbs.LintOptions(fix=("all",)))
    after = {finding.key for finding in result.findings}
    assert after <= before, sorted(after - before)[:3]
    assert not [finding for finding in result.findings if finding.fixable], "what can be repaired is"
    laws.check_no_new_complaint(model, result.model)
    one, other = (laws.session_of(laws.as_identity(which)) for which in (model, result.model))
    feeds = laws.inputs_for(one)
    for left, right in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
        assert left.tobytes() == right.tobytes()


@many
@given(misplaced(), st.data())
def test_one_repair_alone_brings_no_finding(model: onnx.ModelProto, data: st.DataObject) -> None:
    findings = verbs.lint(model).findings
    codes = sorted({finding.code for finding in findings if finding.fixable})
    if not codes:
        return
    code = data.draw(st.sampled_from(codes))
    after = verbs.lint(model, verbs.LintOptions(fix=(code,))).findings
    assert {finding.key for finding in after} <= {finding.key for finding in findings}
    assert code not in {finding.code for finding in after if finding.fixable}
