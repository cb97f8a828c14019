# SPDX-License-Identifier: Apache-2.0
"""Every format there and back: the same bits, read by the tools that own the format where they are installed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.amax import amax_of, inexact_as_float32
from qdqtool.cache.convert import guess, parse, read_any, render, with_version
from qdqtool.cache.convert_options import Source, Target
from qdqtool.cache.text import Cache, read_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion

V8502 = TrtVersion(8, 5, 2)
READ_BACK: list[Target] = ["trt", "ort-flatbuffers", "ort-json", "tao-json", "polygraphy-script", "csv", "json"]

names = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(': ,"'), min_size=1).filter(
    lambda name: name == name.strip() != ""
)
words = st.integers(0x01800000, 0x7B000000)  # scales whose amax is a normal float32
tables = st.dictionaries(names, words, max_size=8)


def float32(word: int) -> np.float32:
    return np.array(word, np.uint32).view(np.float32)[()]


def cache_of(table: dict[str, int]) -> Cache:
    return Cache.of(V8502, {name: float32(word) for name, word in table.items()})


def bits(cache: Cache) -> dict[str, int]:
    return {name: int(scale.view(np.uint32)) for name, scale in cache.entries.items()}


SMALL = cache_of({"input": 0x3C010A14, "conv/Relu:0": 0x3CFF9724, 'a, "b"': 0x3F800000})


@pytest.mark.parametrize("target", READ_BACK)
@given(table=tables)
def test_there_and_back_is_the_same_bits(target: Target, table: dict[str, int]) -> None:
    data = render(cache_of(table), target)
    back = parse(data, target)  # type: ignore[arg-type]
    assert bits(back) == table
    assert render(cache_of(table), target) == data
    if target in ("trt", "json"):
        assert back == cache_of(table)
    if target != "ort-flatbuffers":  # sorted by name, as onnxruntime writes it
        assert list(back.entries) == list(table)


@pytest.mark.parametrize("target", READ_BACK)
def test_the_format_is_guessed_by_content(target: Target, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(render(SMALL, target))
    cache, source = read_any(tmp_path / "x")
    assert source == target
    assert bits(cache) == bits(SMALL)


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (b"1\nx: 3f800000\n", "trt"),
        (b"0 3ff0000000000000 3fefffeb074a771d\nx: 1\n", "trt"),
        (b"", "trt"),
        (b"\xef\xbb\xbfTRT-8502-EntropyCalibration2\r\n", "trt"),
        (b"conv1 12.5\nconv 2 3\n", "ort-text"),
        (b'{"a": [-1.0, 2.0]}', "ort-json"),
        (b'{"a": {"lowest": 0.0, "highest": 2.0, "CLS": "TensorData"}}', "ort-json"),
        (b'{"tensor_scales": {}}', "tao-json"),
        (b"tensor,hex\nx,3f800000\n", "csv"),
        (b"{", "json"),
    ],
)
def test_guesses(data: bytes, source: Source) -> None:
    assert guess(data) == source


def float32_reader(scale: np.float32) -> np.float32:
    """What onnxruntime's std::stof and TensorRT's division make of the decimal that we write."""
    return np.float32(np.float32(repr(amax_of(scale))) / np.float32(127))


@pytest.mark.parametrize("target", ["ort-flatbuffers", "ort-json", "polygraphy-script"])
@pytest.mark.parametrize("word", [0x7F000000, 0x00000001])
def test_ranges_beyond_float32_are_refused_where_they_are_read_as_float32(target: Target, word: int) -> None:
    with pytest.raises(QdqError, match="normal float32"):
        render(cache_of({"x": word}), target)


@pytest.mark.parametrize("target", ["trt", "json", "csv", "tao-json"])
@pytest.mark.parametrize("word", [0x7F7FFFFF, 0x00000001])
def test_the_other_formats_hold_every_scale(target: Target, word: int) -> None:
    assert bits(parse(render(cache_of({"x": word}), target), target)) == {"x": word}  # type: ignore[arg-type]


# ---------------------------------------------------------------- onnxruntime


def test_onnxruntime_reads_our_flatbuffer() -> None:
    table = pytest.importorskip("onnxruntime.quantization.CalTableFlatBuffers.TrtTable")
    read = table.TrtTable.GetRootAs(render(SMALL, "ort-flatbuffers"), 0)
    pairs = [(read.Dict(i).Key().decode(), read.Dict(i).Value().decode()) for i in range(read.DictLength())]
    assert dict(pairs) == {name: repr(float(scale) * 127) for name, scale in SMALL.entries.items()}
    assert pairs == sorted(pairs)


def ort_table(folder: Path, ranges: dict[str, tuple[float, float]]) -> dict[str, Path]:
    """The three files of onnxruntime's writer for these ranges."""
    quant = pytest.importorskip("onnxruntime.quantization.quant_utils")
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    data = {
        name: calibrate.TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))
        for name, (low, high) in ranges.items()
    }
    tensors = calibrate.TensorsData(calibrate.CalibrationMethod.MinMax, data)
    quant.write_calibration_table(tensors, dir=str(folder))
    return {ending: folder / f"calibration.{ending}" for ending in ("flatbuffers", "json", "cache")}


def test_what_onnxruntime_writes_is_read(tmp_path: Path) -> None:
    files = ort_table(tmp_path, {"conv 1": (-2.5, 12.7), "Relu:0": (0.0, 6.0), "dead": (0.0, 0.0)})
    wanted = {name: np.float32(np.float32(amax) / np.float32(127)) for name, amax in [("conv 1", 12.7), ("Relu:0", 6)]}
    for ending, source in [("flatbuffers", "ort-flatbuffers"), ("json", "ort-json"), ("cache", "ort-text")]:
        cache, guessed = read_any(files[ending])
        assert guessed == source
        assert cache.entries == wanted, source
        assert cache.dropped == (("dead", "0.0", "zero"),)
        assert (cache.version, cache.header) == (None, "")


def test_onnxruntimes_signed_range_bug(tmp_path: Path) -> None:
    """Its writer keeps max(lowest, highest): [-6, 1] becomes 1 in the table, and only the JSON still knows of the 6."""
    files = ort_table(tmp_path, {"x": (-6.0, 1.0)})
    one, six = np.float32(np.float32(1) / np.float32(127)), np.float32(np.float32(6) / np.float32(127))
    assert read_any(files["flatbuffers"])[0].entries == {"x": one}
    assert read_any(files["cache"])[0].entries == {"x": one}
    assert read_any(files["json"])[0].entries == {"x": six}


@pytest.mark.parametrize("ending", ["flatbuffers", "cache"])
def test_a_negative_range_of_that_bug_is_refused(tmp_path: Path, ending: str) -> None:
    files = ort_table(tmp_path, {"x": (-6.0, -2.0)})
    with pytest.raises(QdqError, match=r"'x' is negative \(-2.0\)") as raised:
        read_any(files[ending])
    assert "calibration.json" in raised.value.todo
    assert read_any(files["json"])[0].entries["x"] == np.float32(np.float32(6) / np.float32(127))


def test_onnxruntime_reads_our_json(tmp_path: Path) -> None:
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    if not hasattr(calibrate, "load_tensors_data"):
        pytest.skip("this onnxruntime reads no JSON of tensors")
    (tmp_path / "c.json").write_bytes(render(SMALL, "ort-json"))
    read = calibrate.load_tensors_data(tmp_path / "c.json")
    for name, scale in SMALL.entries.items():
        low, high = read[name].range_value
        assert high.dtype == np.float32
        assert high == -low == np.float32(float(scale) * 127)
    calibrate.save_tensors_data(read, tmp_path / "again.json")
    again = read_any(tmp_path / "again.json")[0]
    assert bits(again) == {name: int(float32_reader(scale).view(np.uint32)) for name, scale in SMALL.entries.items()}


@pytest.mark.parametrize(
    ("entry", "amax"),
    [
        ([-1.0, 3.0], 3.0),
        ([-4.0, 3.0], 4.0),
        ({"lowest": -4, "highest": 3}, 4.0),
        ({"lowest": {"data": [-4.0], "dtype": "float32", "CLS": "numpy.array"}, "highest": 3.0}, 4.0),
    ],
)
def test_other_forms_of_onnxruntimes_json(entry: object, amax: float) -> None:
    cache = parse(json.dumps({"x": entry}).encode(), "ort-json")
    assert cache.entries == {"x": np.float32(amax / 127)}


# ---------------------------------------------------------------- TAO, CSV


def test_tao_json_is_a_dictionary_of_ranges() -> None:
    document = json.loads(render(cache_of({"x": 0x3C010A14}), "tao-json"))
    assert document == {"tensor_scales": {"x": float(float32(0x3C010A14)) * 127}}


def test_csv_is_what_the_csv_module_reads() -> None:
    rows = list(csv.reader(io.StringIO(render(SMALL, "csv").decode())))
    assert rows[0] == ["tensor", "scale", "hex"]
    assert [row[0] for row in rows[1:]] == list(SMALL.entries)
    assert [np.float32(row[1]) for row in rows[1:]] == list(SMALL.entries.values())
    assert [row[2] for row in rows[1:]] == ["3c010a14", "3cff9724", "3f800000"]


@pytest.mark.parametrize(
    "text",
    [
        f"tensor,scale\nx,{float(float32(0x3C010A14))!r}\n",
        "hex,tensor\n3C010A14,x\n",
        "tensor,note,hex,scale\r\nx,hello,3c010a14,\r\n",
        "\ufefftensor,scale,hex\nx,,3c010a14\n",
    ],
)
def test_csv_of_others(text: str) -> None:
    assert bits(parse(text.encode(), "csv")) == {"x": 0x3C010A14}


# ---------------------------------------------------------------- versions, refusals


def test_the_way_back_to_trt_needs_a_version() -> None:
    bare = parse(render(SMALL, "tao-json"), "tao-json")
    with pytest.raises(QdqError, match="for which TensorRT"):
        with_version(bare, None, "trt")
    with pytest.raises(QdqError, match="without a header"):
        render(bare, "trt")
    assert with_version(bare, V8502, "trt") == SMALL
    assert with_version(bare, None, "csv") == bare
    assert with_version(SMALL, TrtVersion(7, 1, 3), "trt").header == "TRT-7103-EntropyCalibration2"
    with pytest.raises(QdqError, match=r"11.4.1.* no calibration caches"):
        with_version(bare, TrtVersion(11, 4, 1), "polygraphy-script")


@pytest.mark.parametrize(
    ("data", "source", "reason"),
    [
        (b"{", "json", "not JSON"),
        (b"[]", "json", "no object"),
        (b"[" * 100_000, "json", "JSON nested too deeply"),
        (b'{"entries": {"x": {"value": 1}}}', "json", "'x' has no scale"),
        (b'{"header": "", "entries": {"a: 1\\nb": {"scale": "1"}}}', "json", "line break"),
        (b'{"header": "TRT-8502-X\\ny: 1", "entries": {}}', "json", "line break"),
        (b'{"tensor_scales": {"x": 1.0, "x": 2.0}}', "tao-json", "'x' is there twice"),
        (b'{"tensor_scales": {"x": "a"}}', "tao-json", "not a number"),
        (b'{"tensor_scales": {"x": true}}', "tao-json", "not a number"),
        (b'{"tensor_scales": {"x": NaN}}', "tao-json", "not a number"),
        (b'{"tensor_scales": {"x": -1}}', "tao-json", "negative"),
        (b'{"tensor_scales": {"": 1}}', "tao-json", "without the name"),
        (b'{"tensor_scales": [1]}', "tao-json", "not an object"),
        (b'{"scales": {}}', "tao-json", "no tensor_scales"),
        (b'{"x": [1.0]}', "ort-json", "no lowest and highest"),
        (b'{"x": {"lowest": [1.0, 2.0], "highest": [1.0, 2.0]}}', "ort-json", "not one number each"),
        (b'{"x": {"avg": 1.0, "std": 2.0}}', "ort-json", "not one number each"),
        (b"x y z\n", "ort-text", "not a number"),
        (b"alone\n", "ort-text", "not a name and a number"),
        (b"x 1\nx 2\n", "ort-text", "two values"),
        (b"a,b\n1,2\n", "csv", "has no columns"),
        (b"tensor,scale,hex\nx,1.0,3f800001\n", "csv", "another scale"),
        (b"tensor,scale,hex\nx,,\n", "csv", "no scale"),
        (b"tensor,scale,hex\nx,abc,\n", "csv", "is not a scale"),
        (b'tensor,hex\n"a\nb",1\n', "csv", "line break"),
        (b'tensor,hex\n"a,1\n', "csv", "not CSV"),
        (b"tensor,scale\nx,-1.0\n", "csv", "negative"),
        (b"\xff\xfe", "csv", "not UTF-8"),
        (b"\0\0\0\0", "ort-flatbuffers", "not a calibration table of onnxruntime"),
        (b"", "ort-flatbuffers", "not a calibration table of onnxruntime"),
    ],
)
def test_broken_files_are_one_line(data: bytes, source: Source, reason: str) -> None:
    with pytest.raises(QdqError, match=reason) as raised:
        parse(data, source, "f")
    assert raised.value.line().startswith("f: ")
    assert "\n" not in raised.value.line()


def test_unusable_ranges_are_dropped_and_listed() -> None:
    cache = parse(b'{"tensor_scales": {"a": 0, "b": Infinity, "c": 127, "d": 1e300}}', "tao-json")
    assert bits(cache) == {"c": 0x3F800000}
    assert [(name, reason) for name, _, reason in cache.dropped] == [
        ("a", "zero"),
        ("b", "infinite"),
        ("d", "infinite"),
    ]


# ---------------------------------------------------------------- real caches


@pytest.mark.slow
@pytest.mark.shared
def test_every_real_cache_there_and_back(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(path for path in (shared / "trt" / "caches").iterdir() if path.name != "MANIFEST.tsv")
    scales = inexact = 0
    for path in paths:
        cache = read_cache(path)
        for target in READ_BACK:
            data = render(cache, target)
            assert guess(data) == target, (path.name, target)
            assert bits(parse(data, target)) == bits(cache), (path.name, target)  # type: ignore[arg-type]
        render(cache, "polygraphy-script")
        far = inexact_as_float32(cache)
        scales, inexact = scales + len(cache.entries), inexact + len(far)
    with capsys.disabled():
        print(f"\n{len(paths)} caches, {scales} scales: all bits back from {len(READ_BACK)} formats; ", end="")
        print(f"{inexact} are 1 ulp away for a reader that keeps amax as float32")


def test_numbers_that_no_float_holds_are_dropped_as_infinite() -> None:
    text = '{"a": [-1, %s], "b": [-2, 3]}' % ("9" * 400)
    cache = parse(text.encode(), "ort-json")
    assert list(cache.entries) == ["b"]
    assert [row[0] for row in cache.dropped] == ["a"]


def test_a_name_that_is_half_a_character_is_refused() -> None:
    """It can be read from JSON and never be written again."""
    for text in ('{"tensor_scales": {"\\ud800": 1.5}}', '{"tensor_scales": {"a": 1.5}, "note": "\\uDC00"}'):
        with pytest.raises(QdqError, match="surrogates not allowed"):
            parse(text.encode(), "tao-json")
    whole = parse(b'{"tensor_scales": {"\\ud83d\\ude00": 1.5}}', "tao-json")
    assert list(whole.entries) == ["\N{GRINNING FACE}"]


@pytest.mark.slow
def test_many_zeros_and_many_names_are_read_in_linear_time() -> None:
    count = 100_000
    cache = parse("".join(f"t{index} 0\n" for index in range(count)).encode(), "ort-text")
    assert len(cache.dropped) == count
    names = "".join(f'"t{index}": 1, ' for index in range(count))
    with pytest.raises(QdqError, match=r"'z' .*twice"):
        parse(f'{{{names} "z": 1, "z": 1}}'.encode(), "json")
