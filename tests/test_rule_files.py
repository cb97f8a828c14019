# SPDX-License-Identifier: Apache-2.0
"""Files of rules: where they lie, and the sets of operators in common.toml, which code has no copies of."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx.defs
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.rule_files import operator_set, read_rules, rules_folder, spell_out
from qdqtool.rulebook import load_rules

MINE = Path("mine.toml")
# Files that name several such operators since they carry out, or derive, what each of them does; and no others.
IMPLEMENTING = {
    "datafree/propagate.py",  # what becomes of moments
    "graph/channels/couplings.py",  # where a channel goes
    "graph/channels/factors.py",  # what becomes of a factor of a channel
    "graph/channels/sizes.py",  # how long axes become
    "graph/folding.py",  # what becomes of a constant
    "graph/shapes.py",  # which opset has the form of a node
    "graph/shape_values.py",  # what becomes of a shape's numbers
    "simulation/row_axes.py",  # where picked rows are
    "pruning/cut_operators.py",  # what becomes of an operator whose channels go
    "training/losses/nodes.py",  # what a loss script may write
    "training/losses/gradient_paths.py",  # whose further inputs carry no gradient
}


def test_rules_lie_where_they_are_found() -> None:
    assert {"common.toml", "gpu.toml", "heads.toml"} <= {path.name for path in rules_folder().iterdir()}


def test_rules_that_are_missing_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("qdqtool.rule_files.__file__", str(tmp_path / "qdqtool" / "rule_files.py"))
    with pytest.raises(QdqError, match="rules are missing"):
        rules_folder()


def test_rules_lie_in_an_installed_package_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "common.toml").touch()
    monkeypatch.setattr("qdqtool.rule_files.__file__", str(tmp_path / "rule_files.py"))
    assert rules_folder() == tmp_path / "rules"


# ---------------------------------------------------------------------- sets


@pytest.mark.parametrize(
    ("sets", "spelled"),
    [
        ({}, {}),
        ({"a": ("Relu", "silu")}, {"a": ("Relu", "silu")}),
        ({"a": ("b", "Add"), "b": ("Relu", "Add")}, {"a": ("Relu", "Add"), "b": ("Relu", "Add")}),
        ({"a": ("Mul", "b"), "b": ("c",), "c": ("Add",)}, {"a": ("Mul", "Add"), "b": ("Add",), "c": ("Add",)}),
    ],
)
def test_sets_that_name_sets_are_spelled_out(
    sets: dict[str, tuple[str, ...]], spelled: dict[str, tuple[str, ...]]
) -> None:
    assert spell_out(MINE, sets) == spelled


@pytest.mark.parametrize(
    ("sets", "reported"), [({"a": ("Add", "a")}, "a > a"), ({"a": ("b",), "b": ("c",), "c": ("a",)}, "a > b > c > a")]
)
def test_a_set_that_holds_itself_is_refused(sets: dict[str, tuple[str, ...]], reported: str) -> None:
    with pytest.raises(QdqError, match=f"holds itself \\({reported}\\)"):
        spell_out(MINE, sets)


def test_a_set_of_ones_own_reaches_the_sets_and_rules_that_name_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\nextends = "gpu"\n[sets]\ncopying = ["Slice"]\nmine = ["copying", "Erf"]\n')
    sets = load_rules("gpu", extra=path).sets
    assert sets["copying"] == ("Slice",) and sets["mine"] == ("Slice", "Erf") and "Tile" not in sets["moving"]
    path.write_text('schema = 1\nextends = "gpu"\n[sets]\nmine = ["mine"]\n')
    with pytest.raises(QdqError, match=r"mine\.toml: the set 'mine' holds itself"):
        load_rules("gpu", extra=path)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("passing", "reshaping"),
        ("reshaping", "rearranging"),
        ("rearranging", "moving"),
        ("copying", "moving"),
        ("gathering", "moving"),
        ("joining", "moving"),
        ("moving", "unchanged"),
        ("comparing", "unchanged"),
        ("comparing", "pooling"),
    ],
)
def test_one_meaning_is_narrower_than_another(smaller: str, larger: str) -> None:
    assert operator_set(smaller) < operator_set(larger)


@pytest.mark.parametrize("other", ["copying", "gathering", "joining", "comparing", "resampling", "sizes"])
def test_meanings_that_exclude_one_another(other: str) -> None:
    assert not operator_set("rearranging") & operator_set(other)


def test_the_sets_name_operators_of_onnx_and_each_says_what_it_means() -> None:
    lines = (rules_folder() / "common.toml").read_text(encoding="utf-8").splitlines()
    for name in read_rules(rules_folder() / "common.toml")["sets"]:
        if name not in ("conv", "gemm", "act"):
            assert all(map(onnx.defs.has, operator_set(name))), name
            place = next(index for index, line in enumerate(lines) if line.startswith(f"{name} ="))
            assert lines[place - 1].startswith("# ") and lines[place - 1].endswith("."), name


def test_a_set_that_is_not_there_is_a_fault_of_ours() -> None:
    with pytest.raises(KeyError, match="movers"):
        operator_set("movers")


def test_code_has_no_list_of_its_own_of_what_moves_values() -> None:
    """Four such operators in one literal are a list; derivatives and lowerings, which name each, are not looked at."""
    root, moves = Path(qdqtool.__file__).parent, operator_set("unchanged")
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py") if "autodiff" not in path.parts}
    found = {
        path.relative_to(root).as_posix()
        for path, text in texts.items()
        if sum(word in text for word in moves) >= 4  # parsing all files takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Set | ast.List | ast.Tuple | ast.Dict | ast.Call)
        if sum(word in moves for word in _words(node)) >= 4
    }
    assert found == IMPLEMENTING


def _words(node: ast.AST) -> set[str]:
    """The texts that stand in a literal, or among the arguments of a call, directly."""
    return {
        one.value for one in ast.iter_child_nodes(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }
