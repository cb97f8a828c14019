# SPDX-License-Identifier: Apache-2.0
"""A cache carried to another version: the header changes, nothing else does (law L5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.retarget import cautions, default_output, retarget
from qdqtool.cache.text import Cache, format_cache, parse_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion

V7100, V7103, V8502, V103 = TrtVersion(7, 1, 0), TrtVersion(7, 1, 3), TrtVersion(8, 5, 2), TrtVersion(10, 3, 0)

with_caches = st.builds(TrtVersion, st.integers(4, 10), st.integers(0, 9), st.integers(0, 99))
headers = st.one_of(
    st.just("1"),
    with_caches.map(lambda version: version.header()),
    with_caches.map(lambda version: version.header("MinMaxCalibration")),
)
names = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(": "), min_size=1).filter(
    lambda name: name == name.strip() != ""
)
bodies = st.dictionaries(names, st.integers(0, 0x7F800000), max_size=8)


def cache_of(header: str, body: dict[str, int]) -> Cache:
    return parse_cache(header + "\n" + "".join(f"{name}: {word:x}\n" for name, word in body.items()))


@given(headers, bodies, with_caches, with_caches)
def test_l5_the_last_retarget_counts(header: str, body: dict[str, int], a: TrtVersion, b: TrtVersion) -> None:
    cache = cache_of(header, body)
    twice, once = retarget(retarget(cache, a), b), retarget(cache, b)
    assert twice == once
    assert twice.dropped == once.dropped
    assert format_cache(twice) == format_cache(once)
    assert retarget(once, b) == once


@given(headers, bodies, with_caches)
def test_only_the_first_line_changes(header: str, body: dict[str, int], version: TrtVersion) -> None:
    cache = cache_of(header, body)
    before, after = format_cache(cache).split("\n"), format_cache(retarget(cache, version)).split("\n")
    assert after[1:] == before[1:]
    assert after[0].startswith(f"TRT-{version.header_number}-")
    assert cache == cache_of(header, body)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("TRT-7103-EntropyCalibration2", "TRT-8502-EntropyCalibration2"),
        ("TRT-8201-MinMaxCalibration", "TRT-8502-MinMaxCalibration"),
        ("TRT-7103-EntropyCalibration", "TRT-8502-EntropyCalibration"),
        ("1", "TRT-8502-EntropyCalibration2"),
    ],
)
def test_the_algorithm_is_kept(header: str, wanted: str) -> None:
    assert retarget(cache_of(header, {"x": 1}), V8502).header == wanted


def test_the_header_takes_ten_thousands_from_10() -> None:
    assert retarget(cache_of("1", {}), V103).header == "TRT-100300-EntropyCalibration2"


@pytest.mark.parametrize("header", ["0 3ff0000000000000 3fefffeb074a771d", "03ff00000000000003feffffde7210be9"])
def test_a_legacy_table_is_refused(header: str) -> None:
    with pytest.raises(QdqError) as caught:
        retarget(cache_of(header, {"x": 1}), V8502, "old.table")
    assert caught.value.line().startswith("old.table: holds scales of the legacy calibrator")
    assert "calibrate again" in caught.value.todo


def test_tensorrt_11_is_refused() -> None:
    with pytest.raises(QdqError, match=r"TensorRT 11\.0\.0: reads no calibration caches.*qdqtool insert"):
        retarget(cache_of("1", {"x": 1}), TrtVersion(11, 0, 0))


def test_scales_stay_float32_of_the_same_bits() -> None:
    cache = cache_of("TRT-7103-EntropyCalibration2", {"a": 1, "b": 0x3C010A14, "c": 0x7F7FFFFF})
    after = retarget(cache, V103).entries
    assert all(isinstance(value, np.float32) for value in after.values())
    assert [after[n].tobytes() for n in after] == [b"\1\0\0\0", b"\x14\x0a\x01\x3c", b"\xff\xff\x7f\x7f"]


def test_cautions() -> None:
    plain = cache_of("TRT-7103-EntropyCalibration2", {"x": 1})
    assert cautions(plain, V8502) == ()
    assert ["JetPack 4.4 GA" in line for line in cautions(plain, V7100)] == [True]
    assert ["no release known" in line for line in cautions(plain, TrtVersion(8, 5, 77))] == [True]

    own = cache_of("TRT-7103-EntropyCalibration2", {"(Unnamed Layer* 37) [Constant]_output": 1, "x": 1})
    assert [line.startswith("1 entry has a name made by TensorRT itself") for line in cautions(own, V8502)] == [True]
    assert cautions(own, V7103) == ()
    two = cache_of("1", {"(Unnamed Layer* 3) [Constant]_output": 1, "ONNXTRT_Broadcast_87_output": 1})
    assert [line.startswith("2 entries have names") for line in cautions(two, V7103)] == [True]

    dropped = cache_of("TRT-7103-EntropyCalibration2", {"x": 0, "y": 0x7F800000})
    assert [line.startswith("2 entries of zero or infinity") for line in cautions(dropped, V7103)] == [True]
    assert cautions(cache_of("1", {"x": 0}), V7103)[0].startswith("1 entry of zero")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("m.cache", "m.trt8502.cache"), ("a/b/m.table", "a/b/m.trt8502.cache"), ("m", "m.trt8502.cache"),
     ("m.trt7103.cache", "m.trt8502.cache"), ("yolo.v3.bin", "yolo.v3.trt8502.cache"),
     (".cache", ".cache.trt8502.cache")],
)  # fmt: skip
def test_the_default_name_tells_the_version(name: str, wanted: str) -> None:
    assert default_output(name, V8502) == Path(wanted)


def test_the_default_name_of_version_10() -> None:
    assert default_output("m.cache", V103) == Path("m.trt100300.cache")
