# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache check | diff | merge | convert` through main: words in, lines, files and exit codes out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qdqtool.cache.sidecar import read_sidecar, write_sidecar
from qdqtool.cache.text import read_cache
from qdqtool.cli.main import main
from qdqtool.graph.io import open_model
from qdqtool.verbs.export_evidence import tensor_names

HEADER = "TRT-8502-EntropyCalibration2\n"
GRAPH = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4,4,8,8] two>
{ c = Conv(x, w)  r = Relu(c)  s = Shape(r)  e = Reshape(r, s)  k = Identity(w)  u = trt.Plugin(e)  y = Add(u, two) }"""
Text = Callable[..., onnx.ModelProto]


@pytest.fixture
def model(tmp_path: Path, text_model: Text) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(text_model(GRAPH).SerializeToString())
    return path


def cache_at(path: Path, body: str, header: str = HEADER) -> Path:
    path.write_text(header + body)
    return path


def test_names_of_a_model(model: Path) -> None:
    floats, others = tensor_names(open_model(model))
    assert floats == ["x", "c", "r", "e", "u", "y"]
    assert sorted(others) == ["k", "s", "two", "w"]


def test_names_of_a_quantized_model(tmp_path: Path, text_model: Text) -> None:
    text = """g (float[4] x) => (float[4] y) <float[1] a>
    { q = QuantizeLinear(x, a)  d = DequantizeLinear(q, a)  y = Relu(d) }"""
    (tmp_path / "q.onnx").write_bytes(text_model(text).SerializeToString())
    floats, others = tensor_names(open_model(tmp_path / "q.onnx"))
    assert floats == ["x", "y"]
    assert set(others) == {"a", "q", "d"}


def test_check(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "x: 3c010a14\nC: 3c010a14\nw: 3c010a14\nw_output: 1\n(Unnamed Layer* 3) [Shuffle]_output: 1\nr: 0\n"
    cache = cache_at(tmp_path / "m.cache", body)
    assert main(["cache", "check", str(cache), str(model)]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "coverage   16.7 %: 1 of 6 " in out
    assert re.search("unknown    1 name .*, 1 of them near ", out)
    assert "  C  (near c)" in out
    assert "internal   2 names" in out
    assert "constants  1 scale" in out
    assert "unusable   1 scale " in out
    assert re.search("missing    5 .*\n           right for a GPU ", out)
    assert "a DLA needs one" in out


def test_check_json_and_exit_codes(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = cache_at(tmp_path / "m.cache", "x: 3c010a14\nc: 3c010a14\ny: 3c010a14\n")
    words = ["cache", "check", str(cache), str(model)]
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["coverage"], facts["passes"], facts["missing"]) == (50.0, True, ["r", "e", "u"])
    assert main([*words, "--fail-under", "50"]) == 0
    assert main([*words, "--fail-under", "50.1", "-q"]) == 1
    assert main([*words, "--fail-under", "101"]) == 2
    assert "not a percentage" in capsys.readouterr().err


def test_check_lists_all_with_v(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = cache_at(tmp_path / "m.cache", "".join(f"stray{i}:0: 1\n" for i in range(30)))
    assert main(["cache", "check", str(cache), str(model)]) == 1
    out = capsys.readouterr().out
    assert " 10 more; -v " in out
    assert "30 of the names" in out and "':'" in out
    assert main(["cache", "check", "-v", str(cache), str(model)]) == 1
    assert "stray29" in capsys.readouterr().out


def test_check_reads_any_opset_and_lifts_nothing(tmp_path: Path, text_model: Text) -> None:
    path = tmp_path / "m.onnx"
    data = text_model("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }", opset=7, ir=3).SerializeToString()
    path.write_bytes(data)
    cache = cache_at(tmp_path / "m.cache", "x: 1\ny: 1\n")
    assert main(["cache", "check", str(cache), str(path), "--fail-under", "100", "-q"]) == 0
    assert path.read_bytes() == data


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = cache_at(tmp_path / "a", "x: 3f800000\ny: 3f800000\nz: 1\n")
    b = cache_at(tmp_path / "b", "x: 40000000\ny: 3f800000\nw: 2\n")
    words = ["cache", "diff", str(a), str(b)]
    assert main(words) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "  x: 3f800000 -> 40000000, x 2" in rows
    assert rows[-4:] == ["only in A  1", "  z: 00000001", "only in B  1", "  w: 00000002"]
    assert main([*words, "--exit-code", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["counts"] == {"only_a": 1, "only_b": 1, "changed": 1, "same": 1}
    assert main(["cache", "diff", str(a), str(a), "--exit-code"]) == 0


def test_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = cache_at(tmp_path / "a", "x: 3f800000\ny: 3f800000\n")
    b = cache_at(tmp_path / "b", "y: 40000000\nz: 3f800000\n")
    write_sidecar(b, {"verb": "ptq", "tensors": {"y": {"origin": "ptq"}, "z": {"origin": "ptq"}}})
    out = tmp_path / "o.cache"
    words = ["cache", "merge", str(a), str(b), "-o", str(out)]
    assert main(words) == 2
    assert "y (3f800000 in" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--on-conflict", "max"]) == 0
    assert out.read_text() == HEADER + "x: 3f800000\ny: 40000000\nz: 3f800000\n"
    said = f"{out}: TRT-8502-EntropyCalibration2, 3 scales: 1 from {a}, 2 from {b}, 1 conflict settled by max\n"
    assert capsys.readouterr().out == said
    sidecar = read_sidecar(out)
    assert sidecar is not None
    assert (sidecar.verb, sidecar.options) == ("cache merge", {"on_conflict": "max"})
    assert sidecar.tensors == {"y": {"origin": "ptq"}, "z": {"origin": "ptq"}}
    assert [source["file"] for source in sidecar.sources] == ["a", "b"]
    assert main([*words, "--on-conflict", "first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conflicts"] == {"y": ["3f800000", "40000000"]}


def test_merge_of_other_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = cache_at(tmp_path / "a", "x: 1\n"), cache_at(tmp_path / "b", "y: 1\n", "TRT-7103-EntropyCalibration2\n")
    assert main(["cache", "merge", str(a), str(b), "-o", str(tmp_path / "o")]) == 2
    assert "qdqtool cache retarget" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("target", ["ort-flatbuffers", "ort-json", "tao-json", "csv", "json"])
def test_convert_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    source = cache_at(tmp_path / "m.cache", "a: 3c400040\nb/c: 3cff9724\n")
    write_sidecar(source, {"verb": "peel", "tensors": {"a": {"origin": "qdq"}}})
    there, back = tmp_path / "there", tmp_path / "back.cache"
    assert main(["cache", "convert", str(source), "--to", target, "-o", str(there)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{there}: trt -> {target}, 2 scales\n"
    assert ("1 of 2 entries change" in err) == target.startswith("ort")
    words = ["cache", "convert", str(there), "--to", "trt", "--trt-version", "8502", "-o", str(back)]
    assert main(words) == 0
    assert back.read_bytes() == source.read_bytes()
    sidecar = read_sidecar(back)
    assert sidecar is not None
    assert sidecar.options == {"to": "trt", "from": target}
    assert sidecar.tensors == {"a": {"origin": "qdq"}}


def test_convert_to_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = cache_at(tmp_path / "m.cache", "a: 3c010a14\n")
    words = ["cache", "convert", str(source), "--to", "polygraphy-script", "-o", str(tmp_path / "r.py")]
    assert main([*words, "--trt-version", "11.4.1"]) == 2
    assert re.search(r"TensorRT 11.4.1: .* no .*caches", capsys.readouterr().err)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to"] == "polygraphy-script"
    compile((tmp_path / "r.py").read_text(), "r.py", "exec")


def test_names_with_colons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = cache_at(tmp_path / "m.cache", "Relu:0: 3c010a14\nRelu_0: 3c010a15\n")
    write_sidecar(source, {"tensors": {"Relu:0": {"origin": "ptq"}}})
    out = tmp_path / "o.cache"
    words = ["cache", "convert", str(source), "--to", "trt", "-o", str(out)]
    assert main(words) == 0
    assert re.search("1 of the names .*':'", capsys.readouterr().err)
    assert main([*words, "--sanitize-names", "--json"]) == 0
    said, err = capsys.readouterr()
    assert json.loads(said)["renamed"] == {"Relu:0": "Relu_0_1"}
    assert "same names" in err
    assert [f"{name}: {scale}" for name, scale in read_cache(out).entries.items()] == [
        f"{new}: {scale}"
        for new, scale in zip(["Relu_0_1", "Relu_0"], read_cache(source).entries.values(), strict=True)
    ]
    sidecar = read_sidecar(out)
    assert sidecar is not None
    assert sidecar.options["renamed"] == {"Relu:0": "Relu_0_1"}
    assert sidecar.tensors == {"Relu_0_1": {"origin": "ptq"}}


@pytest.mark.parametrize("name", ["m.cache", "m.cache.json", "taken"])
def test_nothing_of_value_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    source = cache_at(tmp_path / "m.cache", "x: 1\n")
    write_sidecar(source, {"verb": "peel"})
    (tmp_path / "taken.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["cache", "convert", str(source), "--to", "json", "-o", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_input_is_not_overwritten_by_the_sidecar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.cache.json"
    source.write_text('{"tensor_scales": {"x": 1.0}}')
    words = ["cache", "convert", str(source), "--to", "trt", "--trt-version", "8502"]
    assert main([*words, "-o", str(tmp_path / "m.cache")]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.cache.json"]


@pytest.mark.shared
def test_the_published_pair(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """108 names of an earlier export: 59 are tensors of this model, 32 TensorRT's own, 17 of neither."""
    pair = shared / "trt" / "pairs" / "lannyyip_share"
    names = {line.rsplit(": ", 1)[0] for line in (pair / "calibration.cache").read_text().splitlines()[1:]}
    graph = onnx.load(pair / "model.onnx", load_external_data=False).graph
    known = {name for node in graph.node for name in node.output} | {v.name for v in (*graph.input, *graph.initializer)}
    own = {name for name in names if name.startswith("(Unnamed Layer*")}
    assert main(["cache", "check", str(pair / "calibration.cache"), str(pair / "model.onnx"), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    counts = facts["counts"]
    assert counts["matched"] + counts["constant"] == len(names & known)
    assert set(facts["made_up"]) == own
    assert set(facts["unknown"]) == names - known - own
    assert facts["other_export"]["proof"] and facts["other_export"]["shift"] == -8


@pytest.mark.shared
def test_the_published_pair_fits_under_the_names_that_are_told(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = shared / "trt" / "pairs" / "lannyyip_share"
    (tmp_path / "c.cache").write_bytes((pair / "calibration.cache").read_bytes())
    assert main(["cache", "check", str(tmp_path / "c.cache"), str(pair / "model.onnx")]) == 1
    out = capsys.readouterr().out
    assert re.match("export     .*another export.*\n  17 constants ", out)
    assert "no fault" not in out and "qdqtool graft" not in out
    step = next(line for line in out.splitlines() if line.startswith("next: "))
    assert main(shlex.split(step)[2:]) == 0
    assert "108 scales, 74 names -8" in capsys.readouterr().out
    assert main(["cache", "check", str(tmp_path / "c.shifted.cache"), str(pair / "model.onnx")]) == 0
    assert "coverage   100.0 %: 76 of 76" in capsys.readouterr().out
    before, after = read_cache(tmp_path / "c.cache").entries, read_cache(tmp_path / "c.shifted.cache").entries
    assert [one.tobytes() for one in before.values()] == [one.tobytes() for one in after.values()]
    assert after["93"].tobytes() == before["101"].tobytes()
