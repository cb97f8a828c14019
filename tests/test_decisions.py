# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest

from qdqtool.decisions import Decisions, PredictedNoise, Provenance, decode_facts, encode_facts

EVERY = (
    Decisions(("c", "a"), {"conv_out": "it loses most"}, {"av": "", "av2": "it loses too much"}),
    Provenance(
        method="auto",
        samples=64,
        behind=("p",),
        predicted=PredictedNoise("mse", {"x": (31.5, 32.0), "y": (12.0, 12.25)}),
        data={"kind": "images", "name": "calib", "batch": 1, "left_out": ["b.png has no pixels"]},
        shadow_samples=8,
        candidates={"x": {"mse": (1.5, 0.25), "max": (2.0, 0.5)}},
        model_sha256="ab",
        other={"newer": [1, {}]},
    ),
)
DOCUMENT: dict[str, Any] = {
    "method": "auto",
    "samples": 64,
    "behind": ["p"],
    "predicted": {"beside": "mse", "decibel": {"x": [31.5, 32.0], "y": [12.0, 12.25]}},
    "data": {"kind": "images", "name": "calib", "batch": 1, "left_out": ["b.png has no pixels"]},
    "shadow_samples": 8,
    "cuts": ["c", "a"],
    "candidates": {"x": {"mse": [1.5, 0.25], "max": [2.0, 0.5]}},
    "kept": {"conv_out": "it loses most"},
    "attention": {"av": "", "av2": "it loses too much"},
    "model_sha256": "ab",
    "newer": [1, {}],
}


def test_the_keys_of_the_file_and_their_order() -> None:
    assert json.dumps(encode_facts(*EVERY)) == json.dumps(DOCUMENT)


@pytest.mark.parametrize(
    "values",
    [
        EVERY,
        (Decisions(), Provenance()),
        (Decisions(float_layers={}), Provenance("mse", 3)),
        (Decisions(), Provenance("estimate", origins={"guess": 2})),
        (Decisions(), Provenance("entropy", 4, backend="tensorrt", tensorrt="8.6.1")),
    ],
)
def test_what_is_written_is_read(values: tuple[Decisions, Provenance]) -> None:
    text = json.dumps(encode_facts(*values))
    assert decode_facts(json.loads(text)) == values
    assert json.dumps(encode_facts(*decode_facts(json.loads(text)))) == text


def test_what_is_not_known_is_not_written() -> None:
    assert encode_facts(Decisions(), Provenance()) == {}
    assert encode_facts(Decisions(float_layers={}), Provenance()) == {"kept": {}}, "a search that left nothing in float"


@pytest.mark.parametrize("facts", [None, 3, "facts", ["method"]])
def test_anything_but_an_object_is_refused(facts: object) -> None:
    with pytest.raises(ValueError, match=r"facts .*object"):
        decode_facts(facts)


@pytest.mark.parametrize(
    "facts",
    [
        {"cuts": 3},
        {"cuts": "abc"},
        {"cuts": [3]},
        {"behind": {}},
        {"kept": ["a"]},
        {"kept": {"a": 3}},
        {"kept": None},
        {"method": []},
        {"samples": "many"},
        {"samples": True},
        {"tensors": {"guess": 0.5}},
        {"backend": 3},
        {"tensorrt": [8, 6]},
        {"data": [1]},
        {"data": {"left_out": 3}},
        {"predicted": None},
        {"predicted": {"beside": "mse"}},
        {"predicted": {"beside": 3, "decibel": {}}},
        {"predicted": {"beside": "mse", "decibel": {"x": [1.0]}}},
        {"predicted": {"beside": "mse", "decibel": {"x": [1.0, "2"]}}},
        {"shadow_samples": 1.5},
        {"candidates": {"x": {"mse": [1.0, 2.0, 3.0]}}},
        {"candidates": {"x": []}},
        {"model_sha256": 3},
    ],
)
def test_a_known_key_of_another_kind_is_refused_by_its_name(facts: dict[str, Any]) -> None:
    (name,) = facts
    with pytest.raises(ValueError, match=f"^fact {name} must be an? "):
        decode_facts(facts)


def test_later_decisions_add_to_earlier_ones() -> None:
    first, second = Decisions(("a", "b"), {"c": "loses most", "d": "first"}), Decisions(("b", "e"), {"d": "second"})
    assert first.then(second) == Decisions(("a", "b", "e"), {"c": "loses most", "d": "second"})
    assert first.then(Decisions()) == Decisions().then(first) == first
    assert Decisions(("a",)).then(Decisions(("b",))).float_layers is None


def test_decisions_about_what_a_graph_lacks_are_passed_over() -> None:
    given = Decisions(("a", "b"), {"c": "why", "d": "why"})
    assert given.within({"b": 0, "c": 0}) == Decisions(("b",), {"c": "why"})
    assert Decisions(("a",)).within({}) == Decisions()


def test_data_that_tell_nothing_of_images() -> None:
    assert Provenance().left_out == () and Provenance().preprocess is None
    known = Provenance(data={"left_out": ["x"], "preprocess": "size=8x8"})
    assert known.left_out == ("x",) and known.preprocess == "size=8x8"


def test_losses_of_operators_are_for_the_same_run_and_never_written() -> None:
    losses = {"y": (1.5, 0.25)}
    assert encode_facts(Decisions(), Provenance("auto", 4, operator_losses=losses)) == encode_facts(
        Decisions(), Provenance("auto", 4)
    )
