# SPDX-License-Identifier: Apache-2.0
"""rules/amp.toml: every operator stands in one list at most, every entry says why; what is malformed is named."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.nodes import DYNAMIC_FP4
from qdqtool.precision.amp_rules import amp_rules, read_amp_rules
from qdqtool.rule_files import operator_set

ENTRY = 'ops = ["Conv"]\nwhy = "w"\nsee = "s"\nstatus = "guess"\n'


def test_every_operator_of_the_rules_is_one_of_onnx() -> None:
    rules = amp_rules()
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()} | {DYNAMIC_FP4}
    for table in (rules.lists, rules.sums, rules.steep, rules.singular, rules.epsilons, rules.addends, rules.scores):
        assert set(table) <= known


def test_what_moves_values_is_on_the_clear_list() -> None:
    rules = amp_rules()
    assert {rules.list_of(op) for op in operator_set("moving") | operator_set("comparing")} == {"clear"}
    assert {rules.list_of(op) for op in operator_set("conv") | operator_set("gemm")} == {"allow"}
    assert rules.list_of("Nonsense") is None


def test_what_sums_up_or_is_steep_may_be_half_where_values_allow_it() -> None:
    rules = amp_rules()
    assert {rules.list_of(op) for op in (*rules.sums, *rules.singular)} == {"infer"}
    assert "deny" not in {rules.list_of(op) for op in rules.steep}


def test_figures_are_there() -> None:
    assert amp_rules().limits.keys() == {
        "safety",
        "clipped_safety",
        "faint",
        "uneven",
        "epsilon",
        "tail",
        "tail_casts",
        "sure",
        "between",
    }
    assert amp_rules().cost.keys() == {"launch", "unknown"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 2", "schema is 2, not 1"),
        ("schema = 1\n[[nonsense]]\n", "unknown table 'nonsense'"),
        (f'schema = 1\n[[operators]]\nlist = "gray"\n{ENTRY}', "list 'gray'; write one of allow, infer, clear, deny"),
        (f'schema = 1\n[[sum]]\nkind = "max"\n{ENTRY}', "kind 'max'; write one of sum, squares, exponentials"),
        ('schema = 1\n[[steep]]\nops = ["Sin"]\n', "an entry lacks ops, why, see or status"),
        (f"schema = 1\n[[steep]]\n{ENTRY.replace('guess', 'hope')}", "status 'hope'"),
        (f'schema = 1\n[[steep]]\ninput = "0"\n{ENTRY}', "input and largest are numbers"),
        (
            f'schema = 1\n[[operators]]\nlist = "allow"\n{ENTRY}[[operators]]\nlist = "deny"\n{ENTRY}',
            "Conv is there twice",
        ),
        ('schema = 1\n[limits]\nsafety = "two"\n', "[limits] holds a value that is not a positive number"),
        ("schema = 1\n[cost]\nlaunch = 0\n", "[cost] holds a value that is not a positive number"),
    ],
)
def test_a_malformed_file_is_refused_and_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "amp.toml"
    path.write_text(text)
    with pytest.raises(QdqError) as caught:
        read_amp_rules(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
