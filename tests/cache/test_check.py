# SPDX-License-Identifier: Apache-2.0
"""Names of a cache against those of a model: which group each falls into, near misses, and what passes."""

from __future__ import annotations

import difflib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.check import check, near_misses
from qdqtool.cache.text import Cache, parse_cache
from qdqtool.trtversion import TrtVersion

some = st.lists(st.sampled_from([f"t{i}" for i in range(12)]), unique=True)


def cache_of(*names: str) -> Cache:
    return Cache.of(TrtVersion(8, 0, 1), {name: np.float32(1) for name in names})


@given(some, some, some)
def test_every_name_falls_into_one_group(names: list[str], floats: list[str], others: list[str]) -> None:
    others = [name for name in others if name not in floats]
    found = check(cache_of(*names), floats, others)
    groups = (found.matched, found.constant, found.made_up, found.unknown)
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert set(found.matched) == set(names) & set(floats)
    assert set(found.constant) == set(names) & set(others)
    assert set(found.unknown) == set(names) - set(floats) - set(others)
    assert list(found.missing) == [name for name in floats if name not in names]
    share = 100 * len(set(names) & set(floats)) / len(floats) if floats else 100
    assert found.coverage == pytest.approx(share)
    assert found.passes() == (not set(names) - set(floats) - set(others))


@pytest.mark.parametrize(
    "name",
    [
        "(Unnamed Layer* 37) [Constant]_output",
        "(Unnamed Layer* 38) [Shuffle]_output",
        "(Unnamed ITensor* 12)",
        "ONNXTRT_Broadcast_87_output",
        "/model.23/Constant_12_output_0_output",
    ],
)
def test_names_that_tensorrt_makes_up_are_no_fault(name: str) -> None:
    found = check(cache_of(name), ["x"], ["/model.23/Constant_12_output_0"])
    assert (found.made_up, found.unknown) == ((name,), ())
    assert found.passes()


@pytest.mark.parametrize("name", ["conv_output", "x_output", "Unnamed Layer", "(Unnamed ITensor)", "my_ONNXTRT_x"])
def test_names_that_only_look_made_up(name: str) -> None:
    found = check(cache_of(name), ["x"], ["weight"])
    assert (found.made_up, found.unknown) == ((), (name,))
    assert not found.passes()


@pytest.mark.parametrize(
    ("unknown", "missing"),
    [
        ("Conv1/Relu", "conv1_relu"),
        ("conv1/Relu:0", "conv1/Relu"),
        ("conv1/Relu", "conv1/Relu:0"),
        ("backbone.stage1.conv", "backbone.stage2.conv"),
        ("/model.0/conv/Conv_output", "/model.0/conv/Conv_output_0"),
        ("252_x", "252"),
        ("Conv_252", "252"),
        ("onnx::Conv_252", "252"),
        ("252", "onnx::Conv_252"),
        ("model/stem/relu_dequant", "stem/relu_dequant"),
    ],
)
def test_near_misses(unknown: str, missing: str) -> None:
    found = check(cache_of(unknown), ["something/else", missing])
    assert found.near == {unknown: missing}


def test_the_name_of_an_operator_is_near_what_it_makes() -> None:
    found = check(cache_of("Conv_7", "Relu_8"), ["7", "15"], operators={"Conv_7": "15", "Relu_8": "16"})
    assert found.near == {"Conv_7": "15"}


def test_a_part_that_two_names_have_tells_nothing() -> None:
    assert check(cache_of("252"), ["onnx::Conv_252", "Relu_252"]).near == {}


@pytest.mark.parametrize(
    ("unknown", "missing"),
    [("106", "107"), ("input", "scores"), ("a", "b"), ("///", ":0"), ("Conv_2", "2"), ("Conv_252", "25")],
)
def test_what_is_not_near(unknown: str, missing: str) -> None:
    assert check(cache_of(unknown), [missing]).near == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unknown", "missing", "compared"),
    [(3, 4, 12), (150, 200, 20_000), (2000, 9, 18_000), (2000, 11, 19_998), (20_000, 20_000, 20_000), (9, 20_001, 0)],
)
def test_names_are_compared_twenty_thousand_times_at_most(
    unknown: int, missing: int, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def count_compared(name: str, others: list[str], most: int, alike: float) -> list[str]:
        asked.append(len(others))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", count_compared)
    misses = [f"layer{i:05}/Conv_output_a" for i in range(unknown)]
    assert dict(near_misses(misses, [f"layer{i:05}/Conv_output_b" for i in range(missing)])) == {}
    assert sum(asked) == compared


@pytest.mark.slow
def test_names_that_differ_in_punctuation_are_found_in_large_lists() -> None:
    unknown = [f"backbone/layer{i}/Conv_output_a" for i in range(20_000)]
    missing = [f"backbone/layer{i}/Conv_output_b" for i in range(20_000)]
    assert dict(near_misses([*unknown, "/Head/Score:0"], [*missing, "head_score"])) == {"/Head/Score:0": "head_score"}


def test_coverage_asked_for() -> None:
    found = check(cache_of("a", "b", "c"), ["a", "b", "c", "d"])
    assert found.coverage == 75
    assert found.passes(75)
    assert not found.passes(75.1)
    assert check(cache_of(), []).passes(100)


def test_unusable_entries_count_as_missing() -> None:
    found = check(parse_cache("1\na: 3f800000\nb: 0\nc: 7f800000\nz: 0\n"), ["a", "b", "c"])
    assert (found.matched, found.missing, found.unusable) == (("a",), ("b", "c"), ("b", "c"))
    assert found.passes()


def test_json() -> None:
    facts = check(cache_of("a", "Relu", "x:0"), ["a", "relu", "b"], ["x:0"]).to_json()
    assert facts["counts"] == {
        "matched": 1,
        "constant": 1,
        "made_up": 0,
        "unknown": 1,
        "missing": 2,
        "unusable": 0,
        "colons": 1,
        "near_misses": 1,
    }
    assert facts["unknown"] == ["Relu"]
    assert facts["missing"] == ["relu", "b"]
    assert facts["near_misses"] == {"Relu": "relu"}
    assert facts["colons"] == ["x:0"]
