# SPDX-License-Identifier: Apache-2.0
"""Evidence that a cache is of another export: what proves it, what only hints at it, and what is sound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cache.other_export import ConstantFact, ExportEvidence, find_evidence, shifted_names
from qdqtool.cache.text import parse_cache, read_cache
from qdqtool.errors import QdqError


def evidence(constants: dict[str, ConstantFact], **amax: float) -> ExportEvidence:
    return find_evidence({name: np.float32(value / 127) for name, value in amax.items()}, (), constants)


@pytest.mark.parametrize("held", [0.0, None])
def test_a_range_of_zeros_or_of_nothing_is_proof(held: float | None) -> None:
    found = evidence({"k": ConstantFact(held)}, k=0.2)
    assert found.is_proof and found.empty == ("k",)
    assert re.match(r"1 constant contradicts .* k \(", found.sentences()[0])


def test_zeros_with_the_tiny_range_that_tensorrt_writes_for_them_are_sound() -> None:
    scale = parse_cache("TRT-8001-EntropyCalibration2\nk: 30810204\n").entries
    assert not find_evidence(scale, (), {"k": ConstantFact(0.0)})


def test_a_constant_beyond_its_values_counts_and_several_are_proof() -> None:
    facts = {name: ConstantFact(1.0) for name in "abcd"}
    two = evidence(facts, a=7.4, b=13.4, c=1.0, d=0.1)  # c is exact, d is clipped, which a calibrator may do
    assert set(two.constants) == {"a", "b"} and not two.is_proof and not two
    assert evidence(facts, a=7.4, b=13.4, c=2.1, d=0.1).is_proof


@pytest.mark.parametrize("amax", [1.0002441, 2.0])
def test_half_a_bin_above_the_largest_value_and_a_doubled_histogram_are_sound(amax: float) -> None:
    assert not evidence({"a": ConstantFact(1.0)}, a=amax).constants


def test_the_scale_of_a_neighbor_is_sound() -> None:
    facts = {"zeros": ConstantFact(0.0, ("x", "joined"))}
    assert not evidence(facts, zeros=0.5, x=0.5).constants
    assert evidence(facts, zeros=0.5, x=0.6).is_proof


def of_numbers(entries: list[int], floats: list[int]) -> ExportEvidence:
    scales = dict.fromkeys([*map(str, entries), "x"], np.float32(1))
    return find_evidence(scales, [*map(str, floats), "x"], {})


def test_a_shift_by_which_all_numbered_names_fit_is_a_hint() -> None:
    found = of_numbers([13, 15, 19, 20], [1, 5, 7, 11, 12, 13])
    assert (found.shift, found.fits) == (-8, (4, 1, 4))
    assert bool(found) and not found.is_proof
    assert found.sentences() == ["numbered names minus 8 fit 4 of 4, as they are 1"]
    assert of_numbers([1, 5, 7], [9, 13, 15]).sentences() == ["numbered names plus 8 fit 3 of 3, as they are 0"]


@pytest.mark.parametrize(
    ("missed", "total", "proof"), [(5, 40, True), (4, 40, False), (6, 100, True), (6, 200, False), (40, 40, True)]
)
def test_a_shift_that_fits_clearly_more_names_is_proof(missed: int, total: int, proof: bool) -> None:
    """All fit when shifted; as they are, those above the model's highest number do not."""
    found = of_numbers(list(range(missed, missed + total)), list(range(total)))
    assert (found.shift, found.fits) == (-missed, (total, total - missed, total)) and found.is_proof == proof
    assert found.sentences() == [f"numbered names minus {missed} fit {total} of {total}, as they are {total - missed}"]
    assert found.to_json()["proof"] == proof


@pytest.mark.parametrize(
    ("entries", "floats"),
    [([1, 2, 3], [1, 2, 3, 4]), ([1, 5, 9], [2, 3, 4]), ([7], [1]), ([], [1]), ([1, 2, 3], [])],
    ids=["all fit", "no shift fits", "too few to tell", "no entries", "no tensors"],
)
def test_names_that_tell_nothing(entries: list[int], floats: list[int]) -> None:
    assert not of_numbers(entries, floats)


def test_names_are_shifted_and_others_stay() -> None:
    cache = parse_cache("TRT-8001-EntropyCalibration2\n9: 3c010a14\nx9: 3c010a14\n10: 0\n007: 3c010a14\n")
    assert shifted_names(cache, -8) == {"9": "1", "10": "2"}


@pytest.mark.parametrize(
    ("text", "by", "reason"),
    [("9: 3c010a14\n", 0, "changes no name"), ("x: 3c010a14\n", 1, "no name"), ("9: 3c010a14\n", -10, "-9 or more")],
)
def test_shifts_that_are_refused(text: str, by: int, reason: str) -> None:
    with pytest.raises(QdqError, match=reason):
        shifted_names(parse_cache(f"TRT-8001-EntropyCalibration2\n{text}"), by)


@pytest.mark.shared
def test_what_tensorrt_wrote_for_known_values_contradicts_none_of_them(shared: Path) -> None:
    vectors = json.loads((shared / "trt" / "vectors" / "vectors.json").read_text())
    for vector in vectors:
        with np.load(shared / "trt" / "vectors" / f"{vector['name']}.npz") as arrays:
            amax = max(float(np.abs(arrays[key]).max()) for key in arrays)
        cache = parse_cache(f"TRT-8001-EntropyCalibration2\nk: {vector['expected_hex'][:8]}\n")
        assert not find_evidence(cache.entries, (), {"k": ConstantFact(amax)}).constants, vector["name"]
    assert len(vectors) > 10


@pytest.mark.shared
def test_no_real_cache_is_shifted_against_its_own_names(shared: Path) -> None:
    files = [path for path in sorted((shared / "trt" / "caches").iterdir()) if path.name != "MANIFEST.tsv"]
    for path in files:
        entries = read_cache(path).entries
        assert not find_evidence(entries, [*entries, "1", "2", "3"], {}), path.name
    assert len(files) == 47
