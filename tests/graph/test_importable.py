# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which operators TensorRT's parser does not import, and what is said of them."""

from __future__ import annotations

import re

import onnx
import pytest

from qdqtool.graph.importable import foreign_operators, parser_warnings, runs_as_plugin
from qdqtool.trtversion import TrtVersion
from tests.foreign_nets import foreign_net
from tests.graphs import V8_6, model_of
from tests.linting.quantized import findings_of

V11 = TrtVersion(11, 0, 0)
V8_4 = TrtVersion(8, 4, 1)


def with_domains(text: str, *domains: str, opset: int = 17) -> onnx.ModelProto:
    model = model_of(text, opset)
    for domain in domains:
        model.opset_import.add(domain=domain, version=1)
    return model


@pytest.mark.parametrize(
    ("net", "reported", "todo"),
    [
        ("FusedConv", "com.microsoft::FusedConv (1 node)", "before onnxruntime optimized"),
        ("Affine", "Affine (1 node)", "export the model without it"),
        ("Crop", "Crop (1 node)", "export the model without it"),
        ("Quant", "onnx.brevitas::Quant (2 nodes)", "QCDQ exporter"),
    ],
)
def test_q033_what_tensorrt_cannot_parse_is_an_error(net: str, reported: str, todo: str) -> None:
    (finding,) = findings_of(foreign_net(net), "Q033")
    assert finding.severity == "error" and finding.message.startswith(reported) and todo in finding.fix
    assert parser_warnings(foreign_net(net), V8_6)[0].startswith(f"TensorRT cannot parse {reported}: qdqtool lint ")


def test_q033_a_plugin_of_nvidia_is_known_by_version() -> None:
    batched, efficient = (
        foreign_net(f"{name} at the outputs") for name in ("BatchedNMSDynamic_TRT", "EfficientNMS_TRT")
    )
    assert findings_of(efficient, "Q033") == findings_of(efficient, "Q033", version=V11) == []
    assert findings_of(batched, "Q033", version=V8_6) == []
    for version in (V11, None):
        (finding,) = findings_of(batched, "Q033", version=version)
        assert finding.severity == "warning" and "(7.1 to before 11.0 does)" in finding.message
    assert parser_warnings(batched, None) == (), "nobody has said which version it is for"
    assert re.search(r"plugin .* BatchedNMSDynamic_TRT \(1 node\)$", "".join(parser_warnings(batched, V11)))


def test_q033_an_unknown_domain_wants_a_plugin_of_ones_own() -> None:
    (finding,) = findings_of(foreign_net("an unknown domain"), "Q033")
    assert finding.severity == "warning" and finding.message.startswith("custom::Sharpen (1 node): TensorRT imports no")


def test_an_operator_of_onnx_is_imported_from_some_version_on() -> None:
    model = model_of("g (float[1,1,4,4] x, float[1,4,4,2] at) => (float[1,1,4,4] z) { z = GridSample(x, at) }")
    assert foreign_operators(model, None) == foreign_operators(model, V8_6) == []
    (one,) = foreign_operators(model, V8_4)
    assert one.verdict == "refused" and re.search(r"8.4.1 .*\(8.5 or later", one.reason)
    (never,) = foreign_operators(model_of("g (float[1,2,2] x) => (float[1] z) { z = Det(x) }"), None)
    assert (never.op, never.verdict) == ("Det", "refused")


def test_the_domain_is_ignored_and_image_scaler_is_imported() -> None:
    gelu = with_domains("g (float[1,4] x) => (float[1,4] z) { z = com.microsoft.Gelu(x) }", "com.microsoft")
    assert foreign_operators(gelu, None) == []
    assert foreign_operators(foreign_net("ImageScaler"), V8_6) == []


def test_integer_operators_are_left_to_q025() -> None:
    text = "g (float[4,4] x) => (uint8[4,4] y) { y, s, o = DynamicQuantizeLinear(x) }"
    assert findings_of(model_of(text), "Q033") == [] and findings_of(model_of(text), "Q025")
    assert parser_warnings(model_of(text), None)


def test_bodies_are_looked_into_and_local_functions_are_no_operators() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "mine" : 1, "custom" : 1]>
g (float[4] x, bool c) => (float[4] z) {
  y = mine.twice(x)
  z = If (c) <then_branch = t () => (float[4] a) { a = custom.Inside(y) }, else_branch = e () => (float[4] b) { b = Relu(y) }>
}
<domain: "mine", opset_import: ["" : 17, "custom" : 1]> twice (v) => (w) { u = custom.Deep(v) w = Add(u, u) }""")
    assert sorted(one.op for one in foreign_operators(model, None)) == ["custom::Deep", "custom::Inside"]


def test_what_runs_as_a_plugin() -> None:
    assert runs_as_plugin("EfficientNMS_TRT") and runs_as_plugin("FusedConv") and not runs_as_plugin("Conv")


@pytest.mark.shared
def test_nothing_is_said_of_trained_models(shared) -> None:  # type: ignore[no-untyped-def]
    for file in sorted((shared / "corpus" / "models").glob("*.onnx")):
        assert foreign_operators(onnx.load(file, load_external_data=False), None) == [], file.name
