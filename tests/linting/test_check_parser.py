# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a message of the parser reads best on one line
"""What lint makes of a verdict of NVIDIA's parser: place, severity by target and version, our codes beside it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.linting import check_parser
from qdqtool.linting.check_parser import agreeing_codes, load_parser_messages
from qdqtool.linting.checks import all_checks
from qdqtool.linting.lint_context import LintContext
from qdqtool.tensorrt_rtx.parser import ParserMessage, ParserVerdict
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of
from tests.linting.quantized import classifier, conv, findings_of, pair

ZERO = "shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported."
NESTED = "nested structures that exceed the maximum"
SHIFTED = classifier(f"{pair('x', zero='five')} {conv('c', 'x_dq')} a = Relu(c)")
NAME = "the parser of TensorRT for RTX 1.7.1"


def refused(
    message: str = ZERO, operator: str = "QuantizeLinear", tensor: str = "x_dq_q", node: str = ""
) -> ParserVerdict:
    refusal = ParserMessage("refusal", "INVALID_NODE", message, node, operator, tensor)
    return ParserVerdict(False, (refusal,), "1.7.1", 3)


def test_without_a_verdict_nothing_is_found() -> None:
    assert findings_of(SHIFTED, "Q050") == findings_of(SHIFTED, "Q051") == []


def test_a_refusal_stands_at_the_tensor_of_its_pair_beside_our_code() -> None:
    (finding,) = findings_of(SHIFTED, "Q050", verdict=refused())
    assert finding.where == "x"
    assert finding.message == f"{NAME} refuses QuantizeLinear x_dq_q: {ZERO} (Q004 says the same)"
    assert finding.fix == "see what Q004 says to do"
    assert agreeing_codes(LintContext(Model(SHIFTED), verdict=refused())) == ("Q004",)


def test_a_code_that_tells_of_another_place_does_not_count() -> None:
    verdict = refused(tensor="c_w_q")
    (finding,) = findings_of(SHIFTED, "Q050", verdict=verdict)
    assert finding.where == "w" and "the same" not in finding.message
    assert agreeing_codes(LintContext(Model(SHIFTED), verdict=verdict)) == ()


def test_a_refusal_that_no_check_tells_has_the_reason_of_the_table() -> None:
    (finding,) = findings_of(SHIFTED, "Q050", verdict=refused(NESTED, "Conv", "c", "c"))
    assert finding.where == "c"
    assert finding.message.startswith(f"{NAME} refuses Conv c: ")
    assert "float graph alone" in finding.message


def test_a_refusal_of_element_types_stands_beside_what_the_rules_say_of_them() -> None:
    model = model_of("net (float16[4] x) => (float16[4] y) <float k> { y = Add(x, k) }")
    words = "y: ElementWiseOperation SUM must have same input types. But they are of types Half and Float."
    context = LintContext(Model(model), verdict=refused(words, "Add", "y"))
    assert agreeing_codes(context) == ("Q052",)


def test_a_refusal_without_a_node_is_of_the_model() -> None:
    (finding,) = findings_of(SHIFTED, "Q050", verdict=refused("something new", "", ""))
    assert finding.where == "net" and finding.message.startswith(NAME) and finding.message.endswith(": something new")


def test_a_node_with_a_shared_name_is_found_by_what_it_makes() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(SHIFTED)
    for node in model.graph.node:
        node.name = "same"
    (finding,) = findings_of(model, "Q050", verdict=refused(node="same"))
    assert finding.where == "x" and "Q004 says the same" in finding.message


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        (None, "error"),
        (TrtVersion(8, 6, 1), "note"),
        (TrtVersion(10, 14, 0), "note"),
        (TrtVersion(10, 15, 0), "error"),
        (TrtVersion(11, 0, 0), "error"),
    ],
)
def test_a_refusal_is_an_error_where_the_parser_is_the_version_s_own(version: TrtVersion | None, severity: str) -> None:
    (finding,) = findings_of(SHIFTED, "Q050", version=version, verdict=refused())
    assert finding.severity == severity


def test_an_operator_that_may_be_a_plugin_of_tensorrt_is_a_note_for_tensorrt() -> None:
    text = 'creator && "Plugin not found, are the plugin name, version, and namespace correct?"'
    verdict = refused(text, "EfficientNMS_TRT", "c", "c")
    (finding,) = findings_of(SHIFTED, "Q050", version=TrtVersion(11, 0, 0), verdict=verdict)
    assert finding.severity == "note" and "no plugins" in finding.message


@pytest.mark.parametrize(
    ("node", "operator", "where", "text"),
    [
        ("node_of_x_dq_q", "QuantizeLinear", "x", "warns at QuantizeLinear x_dq_q: it takes INT8"),
        ("", "", "net", "warns: it takes INT8"),
    ],
)
def test_a_warning_is_a_note_at_its_node(node: str, operator: str, where: str, text: str) -> None:
    verdict = ParserVerdict(True, (ParserMessage("warning", "", "it takes INT8", node, operator),), "1.7.1", 3)
    (finding,) = findings_of(SHIFTED, "Q051", verdict=verdict)
    assert (finding.where, finding.severity, finding.message) == (where, "note", f"{NAME} {text}")


def test_every_refusal_has_codes_of_lint_or_a_reason() -> None:
    rules = load_parser_messages().refusals
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule.codes) <= set(all_checks()), rule.name
        assert rule.codes or rule.reason.endswith("."), rule.name
        assert rule.says or rule.exact, rule.name


def test_every_error_that_the_parser_accepts_has_its_reason() -> None:
    accepted = load_parser_messages().accepted
    assert set(accepted) <= set(all_checks())
    assert all(reason.endswith(".") for reason in accepted.values())


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported. Please set k", "zero-point"),
        ("b_DQ: input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8.", "element-type"),
        ("status.is_success(): Found unsupported input type of UINT8", "unsigned-data"),
        ("ctx->getWeightsContext().convertOnnxWeights(initializer, &weights): Failed to import initializer: x_z",
         "initializer-type"),
        ("(scaleAllPositive || allowNegativeScale): Scale coefficients must all be positive", "scale-sign"),
        ("K == scaleSize: The number of scales is not equal to the number of output channels. Number", "scale-count"),
        ("c: IConvolutionLayer `input` and `kernel` must be of same type. `input` type is Int8 but", "integers-read"),
        ("c: IConvolutionLayer `input` and `kernel` must be of same type. `input` type is Half but", "types-differ"),
        ("p: IMatrixMultiplyLayer must have same input types. `A` is of type Int8 and `B`", "integers-multiplied"),
        ("p: IMatrixMultiplyLayer must have same input types. `A` is of type Half and `B`", "product-types-differ"),
        ('creator && "Plugin not found, are the plugin name, version, and namespace correct?"', "no-importer"),
        ("false", "disabled-operator"),
        ("Add: ElementWiseOperation SUM must have same input types. But they are of types Half and Float.", "product-types-differ"),
        ("Concat: IConcatenationLayer `inputs` must all be of the same type. inputs[1] is of type Float", "types-of-all-differ"),
        ("PRelu: IParametricReLULayer `input` and `slopes` must be of same types. `input` type is Half", "types-differ"),
        ("Where: ISelectLayer must have `thenInput` and `elseInput` of same types but has Half and Float.", "branches-of-same-types"),
        ("LayerNormalization: INormalizationLayer `input` and `scale` must have identical types.", "types-not-identical"),
        ("Einsum: IEinsumLayer must have all inputs of same type. Input 1 has type Half", "inputs-of-same-type"),
        ("Pad: ISliceLayer `input4` type must be the same as or implicitly convertible to `input0` type.", "convertible-type"),
        ("Gather: indices input has type Float but must have type Int64 or Int32.", "index-type"),
        ("Softmax: input has type Int32 but must have type Float, Half, BFloat16, FP8, E8M0, FP4, Int4, or Int8.", "type-not-taken"),
        ("validUnaryType: This version of TensorRT does not support the given operator SQRT with the given input data type INT64.", "unary-type"),
        ("status.is_success(): Found unsupported input type of INT64", "type-unsupported"),
        ("plugin != nullptr: ROIAlign plugin was not found in the plugin registry!", "no-plugin"),
    ],
)  # fmt: skip
def test_messages_of_1_7_1_are_known(message: str, name: str) -> None:
    rule = load_parser_messages().kind_of(message)
    assert rule is not None and rule.name == name


def test_a_message_that_is_not_in_the_table_has_no_kind() -> None:
    assert load_parser_messages().kind_of("something false") is None


@pytest.mark.parametrize(
    "entry", ['says = ["a"]\ncodes = []', 'says = []\ncodes = ["Q003"]', 'says = []\ncodes = []\nreason = "r."']
)
def test_an_entry_without_words_or_without_codes_and_reason_is_refused(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parser_messages.toml").write_text(f'accepted = []\n[[refusal]]\nname = "bad"\n{entry}\n')
    monkeypatch.setattr(check_parser, "rules_folder", lambda: tmp_path)
    with pytest.raises(QdqError, match="refusal 'bad'"):
        load_parser_messages.__wrapped__()
