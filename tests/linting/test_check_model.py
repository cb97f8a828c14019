# SPDX-License-Identifier: Apache-2.0
"""What lint says of a whole model: versions, opsets, domains and names."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqtool
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import V8_6
from tests.linting.quantized import classifier, conv, findings_of, graph, pair, places_of

V7_1, V8_0 = TrtVersion(7, 1, 3), TrtVersion(8, 0, 1)
QUANTIZED = f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)"


def test_q014_an_opset_that_the_version_does_not_read() -> None:
    model = classifier(QUANTIZED, opset=17)
    assert places_of(model, "Q014") == places_of(model, "Q014", version=V8_6) == []
    (finding,) = findings_of(model, "Q014", version=V8_0)
    assert finding.message == "opset 17, TensorRT 8.0.1 reads up to 13" and finding.severity == "error"
    assert places_of(classifier(QUANTIZED, opset=13), "Q014", version=V8_0) == []


def test_q015_no_explicit_quantization_before_8() -> None:
    model = classifier(QUANTIZED, opset=13)
    (finding,) = findings_of(model, "Q015", version=V7_1)
    assert "4 Q/DQ nodes" in finding.message and "qdqtool peel --target gpu --trt-version 7103" in finding.fix
    assert places_of(model, "Q015", version=V8_0) == places_of(model, "Q015") == []
    assert places_of(classifier("a = Relu(x)", opset=11), "Q015", version=V7_1) == []


def test_q017_is_a_note_where_no_caches_are_read() -> None:
    model = classifier(QUANTIZED)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["c:0" if name == "c" else name for name in names]
    severities = {
        version: findings_of(model, "Q017", version=version)[0].severity for version in (V8_6, TrtVersion(11, 4, 1))
    }
    assert list(severities.values()) == ["warning", "note"]
    assert findings_of(model, "Q017", target="rtx")[0].severity == "note"


def test_q017_names_of_activations_with_a_colon() -> None:
    model = classifier(QUANTIZED)
    assert places_of(model, "Q017") == []
    for node in model.graph.node:
        node.input[:] = ["c:0" if name == "c" else name for name in node.input]
        node.output[:] = ["c:0" if name == "c" else name for name in node.output]
    (finding,) = findings_of(model, "Q017")
    assert finding.where == "c:0" and "1 names of activations" in finding.message and "--fix Q017" in finding.fix


def test_q017_names_of_weights_do_not_matter() -> None:
    model = classifier(QUANTIZED)
    next(t for t in model.graph.initializer if t.name == "w").name = "w:0"
    next(n for n in model.graph.node if n.input[0] == "w").input[0] = "w:0"
    assert places_of(model, "Q017") == []


def test_q018_unnamed_nodes_are_one_finding_and_equal_names_one_each() -> None:
    model = graph("r = Relu(x) q = Relu(r) y = Relu(q)")
    (finding,) = findings_of(model, "Q018")
    assert (finding.where, finding.fixable) == ("net", True) and re.search("3 of 3 nodes .* r$", finding.message)
    for name, node in zip(("one", "one", "two"), model.graph.node, strict=True):
        node.name = name
    (finding,) = findings_of(model, "Q018")
    assert (finding.where, finding.severity, finding.fixable) == ("one", "warning", False)
    model.graph.node[1].name = "other"
    assert findings_of(model, "Q018") == []


def test_q027_another_domain() -> None:
    model = classifier(QUANTIZED)
    assert places_of(model, "Q027") == []
    node = model.graph.node[0]
    node.domain, node.name = "com.microsoft", "contrib"
    (finding,) = findings_of(model, "Q027")
    assert (finding.where, finding.severity) == ("contrib", "warning") and "its name alone" in finding.message


@pytest.mark.parametrize(("opset", "places"), [(9, 4), (10, 0), (13, 0)])
def test_q027_an_opset_without_the_operators(opset: int, places: int) -> None:
    model = classifier(QUANTIZED, opset=17)
    model.opset_import[0].version = opset
    assert len(places_of(model, "Q027")) == places


@pytest.mark.parametrize(("opset", "places"), [(11, 2), (13, 0)])
def test_q027_an_axis_before_13(opset: int, places: int) -> None:
    model: onnx.ModelProto = classifier(QUANTIZED, opset=17)
    model.opset_import[0].version = opset
    for node in model.graph.node[2:4]:
        node.attribute.append(onnx.helper.make_attribute("axis", 0))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "unused"))
    found = findings_of(model, "Q027")
    assert len(found) == places and all("not valid ONNX" in one.message for one in found)


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (("Conv", ["x", "w", ""]), True),
        (("Clip", ["x", "", ""]), True),
        (("Squeeze", ["x", ""]), True),
        (("Conv", ["x", "w"]), False),
        (("Clip", ["x", "", "t"]), False),
        (("ConvTranspose", ["x", "w", ""]), False),
    ],
    ids=str,
)
def test_q060_an_empty_input_at_the_end_is_dropped(node: tuple[str, list[str]], found: bool) -> None:
    model = graph("y = Relu(x)", "float y", more="float[8,8,3,3] wide")
    model.graph.node[0].CopyFrom(onnx.helper.make_node(node[0], node[1], ["y"], name="n"))
    used = "float[8,8,1,1] w", "float t"
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ones([8, 8, 1, 1] if name.endswith("w") else [], np.float32), name.split()[-1])
        for name in used
        if name.split()[-1] in node[1]
    )
    before = [one.where for one in lint(model, LintOptions(select=("Q060",))).findings]
    assert before == (["n"] if found else [])
    if found:
        fixed = lint(model, LintOptions(fix=("all",)))
        read = fixed.model.graph.node[0].input
        assert read[-1] and [name for name in node[1] if name] == [name for name in read if name]
        assert "Q060" not in {one.code for one in fixed.findings}


def test_insert_and_amp_say_that_the_parser_refuses_an_empty_input() -> None:
    model = classifier("c = Conv<pads=[1,1,1,1]>(x, w) a = Relu(c)")
    model.graph.node[0].input.append("")
    half = qdqtool.amp(model, options=qdqtool.AmpOptions(assume_range=9.0))
    for said in (qdqtool.insert(model).warnings, half.notes):
        assert any("input of Conv" in sentence for sentence in said)
