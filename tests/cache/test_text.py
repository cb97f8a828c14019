# SPDX-License-Identifier: Apache-2.0
"""The cache's text: everything real writers produce reads, and what we write comes back to the bit (law L4)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.text import Cache, format_cache, parse_cache, read_cache, scale_hex, write_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion

HEAD = "TRT-8502-EntropyCalibration2\n"
BREAKS = "\n\r\0\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # where str.splitlines, and so other readers, would cut

scale_words = st.integers(1, 0x7F7FFFFF)  # every finite positive float32, denormals included
writable_names = (
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters=BREAKS), min_size=1, max_size=20),
        st.lists(st.sampled_from(["conv", ": ", ":", " ", "/", "(Unnamed Layer* 3)", "0", "é", "\ufeff", "\t"])).map(
            "".join
        ),
    )
    .filter(lambda name: name == name.strip() != "")
)  # fmt: skip
caches = st.builds(
    lambda major, minor, patch, algorithm, words: Cache.of(
        TrtVersion(major, minor, patch), {name: scale(word) for name, word in words.items()}, algorithm
    ),
    st.sampled_from([5, 6, 7, 8, 9, 10]),
    st.integers(0, 9),
    st.integers(0, 99),
    st.sampled_from(["EntropyCalibration2", "MinMaxCalibration", "Other_1"]),
    st.dictionaries(writable_names, scale_words, max_size=8),
)


def scale(word: int) -> np.float32:
    return np.uint32(word).view(np.float32)


def words(cache: Cache) -> dict[str, int]:
    """Name -> the 32 bits, by way of struct rather than of the code under test."""
    return {name: struct.unpack("<I", struct.pack("<f", value))[0] for name, value in cache.entries.items()}


@given(caches)
def test_l4_read_of_write_is_the_same_to_the_bit(cache: Cache) -> None:
    back = parse_cache(format_cache(cache))
    assert back == cache
    assert words(back) == words(cache)
    assert list(back.entries) == list(cache.entries)
    assert (back.header, back.version, back.algorithm) == (cache.header, cache.version, cache.algorithm)
    assert back.dropped == ()
    assert format_cache(back) == format_cache(cache)


@given(caches)
def test_every_other_reader_sees_one_line_per_entry(cache: Cache) -> None:
    lines = format_cache(cache).splitlines()
    assert len(lines) == 1 + len(cache.entries)
    assert {line.rsplit(": ", 1)[0]: int(line.rsplit(": ", 1)[1], 16) for line in lines[1:]} == words(cache)


@given(caches, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_how_the_lines_end_and_the_digits_look_does_not_matter(
    cache: Cache, bom: bool, crlf: bool, bare_end: bool, upper: bool, blank: bool
) -> None:
    head, *rows = format_cache(cache).split("\n")[:-1]
    pairs = [row.rsplit(": ", 1) for row in rows]
    unpadded = [f"{name}: {(digits.upper() if upper else digits).lstrip('0')}" for name, digits in pairs]
    end = "\r\n" if crlf else "\n"
    text = (end * 2 if blank else end).join([head, *unpadded]) + ("" if bare_end else end)
    assert parse_cache(("\ufeff" if bom else "") + text) == cache


@given(st.text(max_size=60))
def test_any_text_is_a_cache_or_a_user_error_of_one_line(text: str) -> None:
    for content in (text, HEAD + text):
        try:
            parse_cache(content, "c.cache")
        except QdqError as error:
            assert error.line().startswith("c.cache: ")
            assert "\n" not in error.line()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_cache_or_a_user_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.cache"
    path.write_bytes(data)
    try:
        assert isinstance(read_cache(path), Cache)
    except QdqError as error:
        assert error.line().startswith(str(path))


def test_the_bytes_of_a_cache(tmp_path: Path) -> None:
    entries = {"b": np.float32(1.0), "a:0": np.float32(1 / 127), "tiny é": scale(1)}
    write_cache(Cache.of(TrtVersion(7, 1, 0), entries), tmp_path / "c.cache")
    assert (tmp_path / "c.cache").read_bytes() == (
        b"TRT-7100-EntropyCalibration2\nb: 3f800000\na:0: 3c010204\ntiny \xc3\xa9: 00000001\n"
    )
    assert read_cache(tmp_path / "c.cache").entries == entries


def test_a_cache_without_entries_is_a_cache() -> None:
    assert format_cache(Cache.of(TrtVersion(10, 3, 0), {})) == "TRT-100300-EntropyCalibration2\n"
    assert parse_cache("TRT-100300-EntropyCalibration2").entries == {}


@pytest.mark.parametrize(
    ("line", "name", "word"),
    [
        ("conv1: 3c010a14", "conv1", 0x3C010A14),
        ("conv1: 3C010A14", "conv1", 0x3C010A14),
        ("conv1: 3c010a14  ", "conv1", 0x3C010A14),
        ("Relu:0: 3c010a14", "Relu:0", 0x3C010A14),
        ("a: b: 3c010a14", "a: b", 0x3C010A14),
        ("a:: 3c010a14", "a:", 0x3C010A14),
        ("Query Embedding Indices: 3f810204", "Query Embedding Indices", 0x3F810204),
        ("(Unnamed Layer* 37) [Constant]_output: 1", "(Unnamed Layer* 37) [Constant]_output", 1),
        ("x: 7f7fffff", "x", 0x7F7FFFFF),
        ("x: 01234567", "x", 0x01234567),
        ("vertical\x0btab\u2028: 2", "vertical\x0btab\u2028", 2),
    ],
)
def test_lines_as_tensorrt_and_others_write_them(line: str, name: str, word: int) -> None:
    assert words(parse_cache(HEAD + line)) == {name: word}


def test_what_tensorrt_writes_for_a_known_float() -> None:
    cache = parse_cache(HEAD + "input: 3c010a14\n")
    assert cache.entries["input"] == np.float32(2048.5 / 2048 / 127)  # an unclipped tensor with maximum 1
    assert cache.entries["input"].dtype == np.float32


def test_zero_and_infinity_are_dropped_and_counted() -> None:
    cache = parse_cache(HEAD + "z: 0\na: 3c010a14\nzz: 00000000\ni: 7f800000\n")
    assert list(cache.entries) == ["a"]
    assert cache.dropped == (("z", "0", "zero"), ("zz", "00000000", "zero"), ("i", "7f800000", "infinite"))
    assert parse_cache(format_cache(cache)) == cache
    assert parse_cache(format_cache(cache)).dropped == ()


@pytest.mark.parametrize(
    ("header", "version", "algorithm"),
    [
        ("TRT-7103-EntropyCalibration2", TrtVersion(7, 1, 3), "EntropyCalibration2"),
        ("TRT-8201-MinMaxCalibration", TrtVersion(8, 2, 1), "MinMaxCalibration"),
        ("TRT-101401-EntropyCalibration2", TrtVersion(10, 14, 1), "EntropyCalibration2"),
        ("TRT-8502-EntropyCalibration2  ", TrtVersion(8, 5, 2), "EntropyCalibration2"),
        ("TRT-11401-EntropyCalibration2", TrtVersion(10, 14, 1), "EntropyCalibration2"),  # tao_deploy's number
        ("1", None, "EntropyCalibration"),
        ("0 3ff0000000000000 3fefffeb074a771d", None, "LegacyCalibration"),
        ("03ff00000000000003feffffde7210be9", None, "LegacyCalibration"),
    ],
)
def test_headers(header: str, version: TrtVersion | None, algorithm: str) -> None:
    cache = parse_cache(f"{header}\nx: 3c010a14\n")
    assert (cache.version, cache.algorithm, cache.header) == (version, algorithm, header.strip())
    assert parse_cache(format_cache(cache)) == cache


@pytest.mark.parametrize(
    "header",
    ["TRT-8502", "TRT-8502-", "TRT--EntropyCalibration2", "TRT-x-EntropyCalibration2", "TRT-999-EntropyCalibration2",
     "TRT-12345-EntropyCalibration2", "TRT-08502-EntropyCalibration2", "TRT-9999999-EntropyCalibration2", "2", "0",
     "x: 3c010a14", "0 3ff 3ff", "{", "xTRT-8502-EntropyCalibration2", "11"],
)  # fmt: skip
def test_other_headers_are_refused_by_line(header: str) -> None:
    with pytest.raises(QdqError, match=r"^c: line 1: .*TRT-8502-EntropyCalibration2"):
        parse_cache(f"{header}\nx: 3c010a14\n", "c")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x", "'x' does not end in ': ' and one to eight hexadecimal digits"),
        ("x:3c010a14", "does not end"),
        ("x: ", "does not end"),
        ("x: 3c010a1g", "does not end"),
        ("x: 0x3c010a", "does not end"),
        ("x: -3c010a1", "does not end"),
        ("x: 3c_0a14", "does not end"),
        ("x: 3c01 0a14", "does not end"),
        ("x: ٣c010a14", "does not end"),
        ("x: 03c010a14", "does not end"),
        ("x: 3c010a143c010a14", "does not end"),
        (": 3c010a14", "without the name"),
        ("  : 3c010a14", "without the name"),
        ("x: bc010a14", "scale of 'x' is negative"),
        ("x: 80000000", "scale of 'x' is negative"),
        ("x: ff800000", "scale of 'x' is negative"),
        ("x: 7fc00000", "scale of 'x' is not a number"),
        ("x: 7f800001", "scale of 'x' is not a number"),
        ("a: 3c010a15", "'a' has another scale than in line 2"),
        ("a: 0", "'a' has another scale than in line 2"),
    ],
)
def test_bad_lines_are_named_by_number(line: str, reason: str) -> None:
    with pytest.raises(QdqError) as caught:
        parse_cache(f"{HEAD}a: 3c010a14\n\n{line}\nb: 3c010a14\n", "c.cache")
    assert caught.value.line().startswith("c.cache: line 4: ")
    assert reason in caught.value.line()


def test_a_long_bad_line_makes_a_short_message() -> None:
    with pytest.raises(QdqError) as caught:
        parse_cache(HEAD + "y" * 100_000, "c")
    assert len(caught.value.line()) <= 200


def test_a_name_twice_with_the_same_scale_is_one_entry() -> None:
    assert words(parse_cache(HEAD + "a: 1\nb: 2\na: 00000001\n")) == {"a": 1, "b": 2}
    assert parse_cache(HEAD + "a: 0\na: 00000000\n").dropped == (("a", "0", "zero"),)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\x08\x08\x12\x00", "binary"),
        ((HEAD + "x: 1").encode("utf-16"), "binary"),
        (b"\x08\x0a\x12\x07pytorch", "line 1: .* not the header"),
        (HEAD.encode() + b"a: 1\n\xff: 1\n", "line 3: not UTF-8 text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer.*run git lfs pull"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "c.cache"
    path.write_bytes(data)
    with pytest.raises(QdqError, match=reason) as caught:
        read_cache(path)
    assert caught.value.where == str(path)
    assert len(caught.value.line()) <= 200 + len(str(path))


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "absent", "No such file"), ("a\0b", "null")):
        with pytest.raises(QdqError, match=f"cannot be read .*{reason}"):
            read_cache(path)
    monkeypatch.setattr("qdqtool.cache.text.MAX_BYTES", 40)
    (tmp_path / "c").write_text(HEAD + "a: 1\nb: 2\nc: 3\n")
    with pytest.raises(QdqError, match=r"calibration cache \(above"):
        read_cache(tmp_path / "c")


@pytest.mark.parametrize("at", ["first", "inside", "last"])
@pytest.mark.parametrize("char", BREAKS)
def test_names_that_would_inject_a_line_are_refused(tmp_path: Path, char: str, at: str) -> None:
    name = {"first": f"{char}a", "inside": f"a: 3c010a14{char}b", "last": f"a{char}"}[at]
    cache = Cache.of(TrtVersion(8, 5, 2), {"ok": np.float32(1), name: np.float32(1)})
    with pytest.raises(QdqError, match="not a name"):
        write_cache(cache, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a\t", "\xa0a", "a\u3000"])
def test_names_with_outer_white_space_or_nothing_are_refused(name: str) -> None:
    with pytest.raises(QdqError, match="not a name"):
        format_cache(Cache.of(TrtVersion(8, 5, 2), {name: np.float32(1)}))


def test_a_name_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(QdqError, match="not UTF-8"):
        format_cache(Cache.of(TrtVersion(8, 5, 2), {"a\ud800": np.float32(1)}))


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, np.inf, -np.inf, np.nan])
def test_scales_that_are_none_are_refused(tmp_path: Path, value: float) -> None:
    (tmp_path / "c").write_bytes(b"old")
    with pytest.raises(QdqError, match=r"'conv1': scale .*finite and positive"):
        write_cache(Cache.of(TrtVersion(8, 5, 2), {"conv1": np.float32(value)}), tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"old"


@pytest.mark.parametrize("value", [0.1, 1, np.float64(0.1), np.ones(1, np.float32)])
def test_a_scale_that_is_not_float32_is_our_bug(value: object) -> None:
    with pytest.raises(TypeError, match=r"not np\.float32"):
        format_cache(Cache.of(TrtVersion(8, 5, 2), {"x": value}))  # type: ignore[dict-item]


def test_a_header_that_contradicts_the_cache_is_refused() -> None:
    good = Cache.of(TrtVersion(8, 5, 2), {})
    for header in (
        "",
        "1",
        "TRT-8501-EntropyCalibration2",
        "TRT-8502-MinMaxCalibration",
        "TRT-8502-EntropyCalibration2\nx: 1",
    ):
        with pytest.raises(QdqError):
            format_cache(Cache(good.version, good.algorithm, {}, header=header))


def test_equality_is_what_tensorrt_would_read() -> None:
    a = parse_cache(HEAD + "x: 1\ny: 2\n")
    assert a == parse_cache(HEAD + "y: 2\nx: 1\nz: 0\n")
    assert a != parse_cache(HEAD + "x: 1\ny: 3\n")
    assert a != parse_cache(HEAD + "x: 1\n")
    assert a != parse_cache("TRT-8501-EntropyCalibration2\nx: 1\ny: 2\n")


def test_digits_and_json() -> None:
    assert scale_hex(np.float32(1)) == "3f800000"
    facts = parse_cache("TRT-7103-EntropyCalibration2\na:0: 3f800000\nbig: 7f7fffff\nz: 0\n").to_json()
    assert facts["entries"]["a:0"] == {"scale": "3f800000", "value": 1.0, "amax": 127.0}
    assert np.isfinite(facts["entries"]["big"]["amax"])
    assert facts["names_with_colon"] == ["a:0"]
    assert facts["dropped"] == [{"name": "z", "scale": "0", "reason": "zero"}]
    assert facts["version"] == "7.1.3"
    assert "JetPack 4.4" in facts["platforms"]
    assert parse_cache("1\n").to_json()["version"] is None


def test_scales_that_no_sound_network_has_are_doubtful() -> None:
    cache = parse_cache(HEAD + "x: 3c010a14\nmask: 7b800000\ntiny: 00000001\nedge: 4400e000\n")
    assert [name for name, _ in cache.doubtful] == ["mask", "tiny"]
    assert "amax 1.69e+38 is beyond FP16" in cache.doubtful[0][1] and "denormal" in cache.doubtful[1][1]
    assert [one["name"] for one in cache.to_json()["doubtful"]] == ["mask", "tiny"]


def test_a_cache_is_walked_as_a_scale_table_is() -> None:
    cache = Cache.of(TrtVersion(8, 5, 2), {"b": np.float32(2), "a": np.float32(1)})
    assert len(cache) == 2 and list(cache) == ["b", "a"]
    assert "a" in cache and "c" not in cache
    assert cache["a"].tobytes() == np.float32(1).tobytes() and cache.get("c") is None
    with pytest.raises(KeyError):
        _ = cache["c"]
