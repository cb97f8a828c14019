# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a message of the parser reads best on one line
"""rules/parser_messages.toml: a refusal has codes of lint's or a reason, the first that fits holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.linting import parser_messages
from qdqtool.linting.checks import all_checks
from qdqtool.linting.parser_messages import load_parser_messages


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
    monkeypatch.setattr(parser_messages, "rules_folder", lambda: tmp_path)
    with pytest.raises(QdqError, match="refusal 'bad'"):
        load_parser_messages.__wrapped__()
