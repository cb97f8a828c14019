# SPDX-License-Identifier: Apache-2.0
"""TensorRT versions in every spelling. Expected values: NVIDIA's headers and release notes, published caches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.errors import QdqError
from qdqtool.trtversion import (
    RELEASES,
    TrtVersion,
    in_range,
    parse,
    require_cache_for,
    require_caches,
    require_dla,
    require_dla_model,
)

V = TrtVersion

versions = st.one_of(
    st.builds(TrtVersion, st.integers(4, 9), st.integers(0, 9), st.integers(0, 99)),
    st.builds(TrtVersion, st.integers(10, 19), st.integers(0, 99), st.integers(0, 99)),
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("7100", V(7, 1, 0)),
        ("7103", V(7, 1, 3)),
        ("8502", V(8, 5, 2)),
        ("8510", V(8, 5, 10)),
        ("8612", V(8, 6, 12)),
        ("9200", V(9, 2, 0)),
        ("100001", V(10, 0, 1)),
        ("101401", V(10, 14, 1)),
        ("110401", V(11, 4, 1)),
        ("7.1.3", V(7, 1, 3)),
        (" 8.5.10\n", V(8, 5, 10)),
        ("8.5.2.2", V(8, 5, 2)),
        ("10.3.0.30", V(10, 3, 0)),
        ("10.3", V(10, 3, 0)),
        ("10.7", V(10, 7, 0)),
        ("6.0", V(6, 0, 1)),
        ("TRT-7103", V(7, 1, 3)),
        ("TRT-7103-EntropyCalibration2", V(7, 1, 3)),
        ("trt-8201-MinMaxCalibration", V(8, 2, 1)),
        ("jp4.2.2", V(5, 1, 6)),
        ("jp4.3", V(6, 0, 1)),
        ("jp4.4", V(7, 1, 3)),
        ("jp4.4dp", V(7, 1, 0)),
        ("JetPack 4.4 DP", V(7, 1, 0)),
        ("jp4.5.1", V(7, 1, 3)),
        ("jp4.6", V(8, 0, 1)),
        ("jp4.6.0", V(8, 0, 1)),
        ("jp4.6.1", V(8, 2, 1)),
        ("jp4.6.6", V(8, 2, 1)),
        ("jp5.1.2", V(8, 5, 2)),
        ("jp6.0", V(8, 6, 2)),
        ("jp6.1", V(10, 3, 0)),
        ("jetpack6.1", V(10, 3, 0)),
        ("JetPack-6.2", V(10, 3, 0)),
        ("jp7.2.2", V(11, 4, 1)),
        ("drive6.0.6", V(8, 5, 10)),
        ("drive6.0.9", V(8, 6, 12)),
        ("drive6.0.9.0", V(8, 6, 12)),
        ("drive6.0.9.1", V(8, 6, 12)),
        ("DRIVE OS 6.0.8.1", V(8, 6, 11)),
        ("driveos6.0.10", V(8, 6, 13)),
        ("drive5.2", V(6, 3, 1)),
        ("drive5.2.0", V(6, 3, 1)),
        ("drive5.2.6", V(6, 4, 0)),
        ("drive6.0.2", V(8, 3, 0)),
        ("drive6.0.4", V(8, 4, 11)),
        ("drive6.0.5", V(8, 4, 12)),
        ("drive7.0.3", V(10, 10, 10)),
        ("11.4", V(11, 4, 1)),
        ("11.5", V(11, 5, 0)),
        ("12.0", V(12, 0, 0)),
    ],
)
def test_spellings(text: str, version: TrtVersion) -> None:
    assert parse(text) == version


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "-7100", "+7100", "x", "7.1.x", "7,1,3", "0", "999", "1000", "12345", "200000", "1014010",
     "9" * 5000, "7_100", "0x1bbc", "7100.0", "7.1.3.4.5", "7.1.", ".7.1", "３.1.0", "７１００", "٧١٠٠", "3.0.0",
     "20.0.0", "8.12.0", "10.100.0", "8.5.100", "TRT-", "TRT--EntropyCalibration2", "TRT-08502-X", "TRT-8502-",
     "jp", "jp6", "jp9.9", "jp4.4.9", "jp-6.1.0.0.0", "drive", "drive6", "drive7.0.0", "jp8502", "8502\n8502",
     "8502\0", "1", "99.99"],
)  # fmt: skip
def test_what_is_no_version_gets_one_line(text: str) -> None:
    with pytest.raises(QdqError) as caught:
        parse(text)
    line = caught.value.line()
    assert len(line) <= 200
    assert re.match(r"\S.*: \S.*; \S", line)
    assert line.isprintable()


@given(st.text())
def test_any_text_is_a_version_or_a_user_error(text: str) -> None:
    try:
        assert isinstance(parse(text), TrtVersion)
    except QdqError as error:
        assert "\n" not in error.line()


@pytest.mark.parametrize(
    ("text", "candidates"),
    [("7.1", ["7.1.0", "7.1.3"]), ("8.5", ["8.5.1", "8.5.2", "8.5.10"]), ("8.6", ["8.6.1", "8.6.2", "8.6.12"]),
     ("8", ["8.0", "8.2", "8.5", "8.6"]), ("10", ["10.3", "10.7", "10.16"]), ("10.10", ["10.10.0", "10.10.10"])],
)  # fmt: skip
def test_a_short_version_with_several_patches_lists_them(text: str, candidates: list[str]) -> None:
    with pytest.raises(QdqError, match="several versions") as caught:
        parse(text)
    listed = re.findall(r"[\d.]+(?=,|$| \()", caught.value.todo)
    assert set(candidates) <= set(listed)
    assert listed == sorted(listed, key=lambda v: tuple(map(int, v.split("."))))


def test_a_short_version_that_is_not_known_is_not_guessed() -> None:
    with pytest.raises(QdqError, match=r"8\.9: is not a TensorRT version that qdqtool knows; give all three parts"):
        parse("8.9")


def test_an_unknown_board_names_the_known_ones() -> None:
    with pytest.raises(
        QdqError, match=r"jp6\.9: is not a JetPack version that qdqtool knows; known are 6\.0, 6\.1, 6\.2"
    ):
        parse("jp6.9")
    with pytest.raises(
        QdqError,
        match=r"is not a DRIVE OS version that qdqtool knows; known are 6\.0\.2, .*6\.0\.9\.1, 6\.0\.10$",
    ):
        parse("drive6.0.1")


@given(versions)
def test_text_number_and_header_lead_back(version: TrtVersion) -> None:
    assert parse(version.text) == version
    assert parse(str(version.header_number)) == version
    assert parse(version.header()) == version
    assert parse(version.header("MinMaxCalibration")) == version


@given(versions, versions)
def test_order_is_that_of_the_numbers(a: TrtVersion, b: TrtVersion) -> None:
    assert (a < b) == ((a.major, a.minor, a.patch) < (b.major, b.minor, b.patch))
    assert (a < b) == (a.header_number < b.header_number)


def test_both_header_formulas() -> None:
    assert V(7, 1, 0).header() == "TRT-7100-EntropyCalibration2"
    assert V(8, 5, 10).header() == "TRT-8510-EntropyCalibration2"
    assert V(8, 2, 1).header("MinMaxCalibration") == "TRT-8201-MinMaxCalibration"
    assert V(10, 0, 1).header() == "TRT-100001-EntropyCalibration2"
    assert V(10, 14, 1).header() == "TRT-101401-EntropyCalibration2"


@pytest.mark.parametrize(
    "parts", [(8, 10, 0), (8, 0, 100), (8, -1, 0), (8, 0, -1), (3, 0, 0), (20, 0, 0), (10, 100, 0)]
)
def test_numbers_that_a_header_cannot_carry_are_refused(parts: tuple[int, int, int]) -> None:
    with pytest.raises(QdqError, match="is not a TensorRT version"):
        TrtVersion(*parts)


@pytest.mark.parametrize(
    ("text", "opset"),
    [("5.1.6", 9), ("7.0.0", 11), ("7100", 11), ("7203", 11), ("8001", 13), ("8201", 13), ("8401", 16), ("8502", 17),
     ("8612", 17), ("9200", 19), ("6001", None), ("9.0.1", None), ("10.3", None), ("101601", None), ("110401", 25)],
)  # fmt: skip
def test_highest_opset(text: str, opset: int | None) -> None:
    assert parse(text).max_opset == opset


@pytest.mark.parametrize(
    ("text", "caches", "dla"),
    [("7100", True, True), ("8502", True, True), ("100700", True, True), ("10.7.1", True, True),
     ("100800", True, False), ("101601", True, False), ("110000", False, False), ("11.4.0", False, False)],
)  # fmt: skip
def test_what_a_version_can_do(text: str, caches: bool, dla: bool) -> None:
    version = parse(text)
    assert (version.has_caches, version.has_dla_int8) == (caches, dla)
    if caches:
        require_caches(version)
    else:
        with pytest.raises(QdqError, match=rf"TensorRT {version.text}: reads no calibration caches.*qdqtool insert"):
            require_caches(version)
    if dla:
        require_dla(version)
    else:
        with pytest.raises(QdqError, match=r"INT8 on the DLA.*10\.7 is the last: .*8201.*8502.*8602.*100300.*100700"):
            require_dla(version)


@pytest.mark.parametrize(("text", "takes"), [("10.7", True), ("10.8.0", False), ("11.4.0", False), ("jp7.2.2", True)])
def test_whose_dla_takes_a_model_with_pairs(text: str, takes: bool) -> None:
    version = parse(text)
    if takes:
        require_dla_model(version)
        return
    reported = (
        r"supports no DLA on Jetson and DRIVE boards; 11\.4\.1 \(JetPack 7\.2\.2\) takes Q/DQ models, .*8502.*100700"
    )
    with pytest.raises(QdqError, match=reported):
        require_dla_model(version)


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_no_target_of_11_4_1_reads_a_cache_and_why_is_said(target: str) -> None:
    version = TrtVersion(11, 4, 1)
    assert version.has_typed_dla and not version.has_dla_int8
    if target == "dla":
        reported = r"strongly typed and take Q/DQ models; use qdqtool insert --target dla --trt-version 11\.4\.1"
    else:
        reported = r"reads no calibration caches \(10\.16 was the last\), only Q/DQ models; use qdqtool insert"
    with pytest.raises(QdqError, match=reported):
        require_cache_for(version, target)
    require_cache_for(TrtVersion(8, 5, 2), target)


def test_boards_of_a_version() -> None:
    assert parse("7103").platforms == ("JetPack 4.4", "JetPack 4.4.1", "JetPack 4.5", "JetPack 4.5.1")
    assert parse("8612").platforms == ("DRIVE OS 6.0.9", "DRIVE OS 6.0.9.1")
    assert parse("8601").platforms == ()


def test_every_board_in_the_table_is_understood_and_has_one_version() -> None:
    named = [(name, release.version) for release in RELEASES for name in release.platforms if "CUDA" not in name]
    assert len(dict(named)) == len(named)
    for name, version in named:
        assert parse(name) == version
        assert parse(name.replace("JetPack ", "jp").replace("DRIVE OS ", "drive")) == version


def test_every_statement_has_a_source() -> None:
    for release in RELEASES:
        assert release.see
        assert (release.status == "guess") == (release.see == "from memory")
    assert list(dict.fromkeys(r.version for r in RELEASES)) == sorted({r.version for r in RELEASES})


def test_status_tells_knowledge_from_memory() -> None:
    assert parse("8502").status == "documented"
    assert parse("7100").status == "guess"
    assert parse("8.6.99").status == "unknown"


def test_warnings() -> None:
    assert "JetPack 4.4 GA to 4.5.1 is TensorRT 7.1.3 = 7103" in parse("7100").warning
    assert "recalibrates" in parse("7100").warning
    assert "\n" not in parse("7100").warning
    assert parse("8.6.99").warning.startswith("TensorRT 8.6.99 ") and "not a release" in parse("8.6.99").warning
    for text in ("8.6.99", "11.6", "12.0"):
        said = parse(text).unknown_note
        assert said.startswith(f"TensorRT {parse(text).text} is not a release that qdqtool knows, of which 11.5.0 is ")
    assert parse("11.5").unknown_note == parse("8.6.1").unknown_note == ""
    assert parse("11.9.9").warning == ""  # no caches, so no number to get wrong
    for release in RELEASES:
        assert bool(release.version.warning) == (release.version == V(7, 1, 0))


@pytest.mark.parametrize(
    ("text", "spec", "verdict"),
    [
        ("8502", ">=8.0,<11", True),
        ("8000", ">=8.0,<11", True),
        ("7203", ">=8.0,<11", False),
        ("110000", ">=8.0,<11", False),
        ("101601", " >= 8.0 , < 11 ", True),
        ("100300", "<=10.7", True),
        ("10.7.3", "<=10.7", True),
        ("10.8.0", "<=10.7", False),
        ("10.7.3", "<=10.7.2", False),
        ("8502", "==8.5", True),
        ("8502", "==8", True),
        ("8502", "==8.5.1", False),
        ("8502", "!=8.5", False),
        ("8502", "!=8.5.1", True),
        ("8510", ">8.5", False),
        ("8600", ">8.5", True),
        ("8510", ">8.5.9", True),
        ("7103", ">=7.1.3", True),
        ("7100", ">=7.1.3", False),
        ("101601", ">=9", True),
    ],
)
def test_ranges(text: str, spec: str, verdict: bool) -> None:
    assert in_range(parse(text), spec) is verdict


@pytest.mark.parametrize(
    "spec", ["", ",", ">=8.0,", "8.0", "=8.0", "=>8.0", ">=", ">=8.x", ">=8.0.0.0", ">=8 <11", "~=8", ">=-1"]
)
@pytest.mark.parametrize("version", ["8502", "5106"])
def test_malformed_ranges_are_errors_whatever_the_version(spec: str, version: str) -> None:
    with pytest.raises(QdqError, match="not a range"):
        in_range(parse(version), spec)


@given(versions, versions)
def test_ranges_agree_with_the_order(a: TrtVersion, b: TrtVersion) -> None:
    for sign, truth in ((">=", a >= b), (">", a > b), ("<=", a <= b), ("<", a < b), ("==", a == b), ("!=", a != b)):
        assert in_range(a, f"{sign}{b.text}") is truth


@pytest.mark.parametrize("text", ["jp5", "jetpack 5", "JP5"])
def test_a_series_of_jetpack_lists_its_versions(text: str) -> None:
    """`deploy --for orin:jp6` takes the newest of a board; a cache is for one version."""
    with pytest.raises(QdqError, match=r"may be several versions of JetPack; give one of 5\.0, .*5\.1\.2, "):
        parse(text)
    with pytest.raises(QdqError, match="several versions of DRIVE OS; give one of 6"):
        parse("drive6")
    with pytest.raises(QdqError, match="no JetPack known here"):
        parse("jp99")
