# SPDX-License-Identifier: Apache-2.0
"""Which rule takes a node: the first that names its operator and whose guard lets it through."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rule_kinds import Commute
from qdqtool.rule_steps import Step
from qdqtool.rulebook import RuleBook, load_rules
from tests.graphs import view_of

TEXT = """g (float[1,4,8,8] x) => (float y) <float[4] h = {1,1,2,2}> {
  a = Resize<mode="linear">(x, , h) b = Resize<mode="nearest">(x, , h) c = Relu(x) y = my.Resize(x) }"""
WORDS = {"trt": "", "why": "w", "see": "s", "status": "guess"}


def commute(name: str, *words: str) -> Commute:
    steps = (Step((word.split(":")[0],), word.partition(":")[2], False) for word in words)
    return Commute(**WORDS, name=name, steps=tuple(steps), side="before")


@pytest.mark.parametrize(
    ("rules", "taken"),
    [
        ([], {}),
        ([commute("one", "Resize")], {"a": "one", "b": "one"}),
        ([commute("near", "Resize:nearest")], {"b": "near"}),
        ([commute("near", "Resize:nearest"), commute("any", "Resize")], {"a": "any", "b": "near"}),
        ([commute("any", "Resize"), commute("near", "Resize:nearest")], {"a": "any", "b": "any"}),
        ([commute("set", "resampling:interpolating", "act")], {"a": "set", "c": "set"}),
    ],
)
def test_the_first_rule_that_fits_takes_a_node(rules: list[Commute], taken: dict[str, str]) -> None:
    view = view_of(TEXT)
    found = RuleIndex(rules, load_rules("gpu"))
    assert {node.key: rule.name for node, rule in found.nodes(view)} == taken
    assert [getattr(found.first(view, node), "name", None) for node in view.nodes] == [
        taken.get(n.key) for n in view.nodes
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [("Relu:nothing", "no such constraint"), ("nothing", "is neither an operator nor a set of the rules")],
)
def test_words_that_do_not_exist_are_refused_when_the_index_is_made(word: str, said: str) -> None:
    with pytest.raises(QdqError, match=said):
        RuleIndex([commute("bad", word)], load_rules("gpu"))


@pytest.mark.parametrize("target", ["gpu", "dla", "gpu_layers"])
def test_every_kind_that_ships_can_be_indexed(target: str) -> None:
    book: RuleBook = load_rules(target)
    view = view_of(TEXT)
    for kind in (book.consumers, book.commutes, book.weights, book.bounds, book.shared_scales):
        assert all(rule in kind for _, rule in RuleIndex(kind, book).nodes(view))
