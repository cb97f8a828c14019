# SPDX-License-Identifier: Apache-2.0
"""rules/types.toml: that it is sound, and what follows from it and from ONNX's schema for single operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.parser_rules import load_parser_rules, tomllib
from qdqtool.precision.type_rules import load_type_rules, read_type_rules
from qdqtool.rule_files import rules_folder
from qdqtool.trtversion import TrtVersion

FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
# Operators that the parser takes and that have no types of data written down: bodies, those that make data of none,
# those of old versions, and those that a plugin runs.
UNWRITTEN = {
    *("Constant", "ConstantOfShape", "RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike"),
    *("BlackmanWindow", "HammingWindow", "HannWindow", "If", "Loop", "Scan", "DequantizeLinear"),
    *("NonZero", "RoiAlign", "DeformConv", "ImageScaler", "ParametricSoftplus", "ScaledTanh", "SpatialBN"),
}


def test_every_rule_says_why_and_where_from() -> None:
    document = tomllib.loads((rules_folder() / "types.toml").read_text(encoding="utf-8"))
    rules = [rule for table in document.values() if isinstance(table, list) for rule in table]
    assert len(rules) > 40
    for rule in rules:
        assert rule["why"].endswith("."), rule["name"]
        assert len(rule.get("ops", [])) == len(set(rule.get("ops", []))), rule["name"]


def test_an_operator_stands_in_one_rule_of_a_table() -> None:
    document = tomllib.loads((rules_folder() / "types.toml").read_text(encoding="utf-8"))
    for table in ("takes", "data", "makes"):
        ops = [op for rule in document[table] if "given" not in rule for op in rule["ops"]]
        assert sorted(ops) == sorted(set(ops)), table


def test_every_operator_that_the_parser_takes_has_its_types_written() -> None:
    rules = load_type_rules()
    taken = {op for op in load_parser_rules().operators if not op.startswith("TRT_")}
    assert {op for op in taken if (found := rules.of(op)) is None or found.takes is None} == UNWRITTEN


@pytest.mark.parametrize(
    ("op", "types"),
    [("Conv", {FLOAT, HALF, BFLOAT}), ("Mish", {FLOAT, HALF}), ("Range", {FLOAT}), ("Celu", {FLOAT}), ("Not", set())],
)
def test_float_types_that_an_operator_computes_in(op: str, types: set[int]) -> None:
    found = load_type_rules().of(op)
    assert found is not None
    assert {one for one in (FLOAT, HALF, BFLOAT) if found.computes_in(one)} == types


def test_an_input_may_leave_less_types() -> None:
    found = load_type_rules().of("LSTM")
    assert found is not None
    assert found.computes_in(HALF, ["x", "w", "r", "b"])
    assert found.computes_in(HALF, ["x", "w", "r", "b", "", "h"])
    assert not found.computes_in(HALF, ["x", "w", "r", "", "lengths"])


TAKES = 'schema = 1\n[sets]\n[[takes]]\nname = "n"\n'
VERSIONS = [
    ("BFLOAT16", TrtVersion(8, 6, 1), False),
    ("BFLOAT16", TrtVersion(9, 0, 0), True),
    ("FLOAT8E4M3FN", TrtVersion(8, 6, 1), False),
    ("FLOAT8E4M3FN", TrtVersion(9, 1, 0), True),
    ("INT4", TrtVersion(9, 3, 0), False),
    ("INT4", TrtVersion(10, 0, 0), True),
    ("FLOAT4E2M1", TrtVersion(10, 7, 0), False),
    ("FLOAT4E2M1", TrtVersion(10, 8, 0), True),
    ("FLOAT16", TrtVersion(7, 1, 3), True),
    ("INT16", TrtVersion(11, 0, 0), False),
]


@pytest.mark.parametrize(("name", "version", "known"), VERSIONS)
def test_types_that_a_version_has(name: str, version: TrtVersion, known: bool) -> None:
    kind = TensorProto.DataType.Value(name)
    assert load_type_rules(version).stored_as(kind, "initializer")[0] == (kind if known else 0)


RULE = 'why = "W."\nsee = "s"\nstatus = "measured"\n'


def test_a_rule_holds_for_its_versions(tmp_path: Path) -> None:
    path = tmp_path / "types.toml"
    path.write_text(f'{TAKES}ops = ["Relu"]\ntypes = "FLOAT"\ntrt = ">=10.0"\n{RULE}')
    takes = [read_type_rules(path, version).of("Relu") for version in (None, TrtVersion(10, 3, 0), TrtVersion(8, 6, 1))]
    assert [None if one is None or one.takes is None else set(one.takes) for one in takes] == [{FLOAT}, {FLOAT}, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 2\n[sets]\n", "schema is 2, not 1"),
        ("schema = 1\n[sets]\n[[tooks]]\n", "unknown table 'tooks'"),
        (f'{TAKES}ops = ["Relu"]\ntypes = "HALF"\n{RULE}', "unknown type or set 'HALF'"),
        (f"{TAKES}ops = []\n{RULE}", "rule 'n': no 'types'"),
        ('schema = 1\n[sets]\na = ["a"]\n', "the set 'a' holds itself"),
    ],
)
def test_a_file_that_is_not_of_the_schema_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "types.toml"
    path.write_text(text)
    with pytest.raises(QdqError, match=message):
        read_type_rules(path)
