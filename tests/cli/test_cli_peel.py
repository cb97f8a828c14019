# SPDX-License-Identifier: Apache-2.0
"""`qdqtool peel`: what it writes, prints and refuses, through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.scales import Scale, ScaleTable
from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
SCALES = {"x": 0.1, "r1": 0.2, "r2": 0.3, "g": 0.4}
GPU = ("--target", "gpu", "--trt-version", "8502")


def bits(value: float) -> str:
    return f"{np.float32(value).view(np.uint32):08x}"


def write_pairs(folder: Path, capsys: Capsys, opset: int = 13) -> Path:
    """The little network with Q/DQ of known scales, as `folder/m.qdq.onnx`."""
    model = write_net(folder, opset)
    table = folder / "s.json"
    table.write_text(ScaleTable({name: Scale.of(value) for name, value in SCALES.items()}).to_json())
    assert run(capsys, "insert", model, "--scales", table, "-q").code == 0
    table.unlink()
    return folder / "m.qdq.onnx"


def test_the_file_that_went_in_and_the_bits_of_each_scale(capsys: Capsys, tmp_path: Path) -> None:
    qdq = write_pairs(tmp_path, capsys)
    before = contents(tmp_path)
    said = run(capsys, "peel", qdq, *GPU)
    assert (said.code, said.err) == (0, "")
    assert (tmp_path / "m.qdq.peeled.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    lines = (tmp_path / "m.qdq.cache").read_text().splitlines()
    assert lines[0] == "TRT-8502-EntropyCalibration2"
    entries = dict(line.rsplit(": ", 1) for line in lines[1:])
    assert {name: entries[name] for name in SCALES} == {name: bits(value) for name, value in SCALES.items()}
    assert entries["f"] == entries["g"]  # Flatten moves values, so the tensor after it has the same scale
    assert not {"c1", "c2", "y", "w1"} & entries.keys()
    assert {name: contents(tmp_path)[name] for name in before} == before
    for part in ("m.qdq.peeled.onnx", "m.qdq.cache", "TRT-8502-EntropyCalibration2", "trtexec --onnx="):
        assert part in said.out
    assert run(capsys, "peel", qdq, *GPU).err == ""
    assert "replaced another cache" in run(capsys, "peel", qdq, *GPU[:-1], "8601").err


def test_json_of_a_format_without_caches(capsys: Capsys, tmp_path: Path) -> None:
    wide = """g (float[16,16] x) => (float[16,16] y) <float[16,32] w, float[32,16] v> {
        m = MatMul(x, w) r = Relu(m) y = MatMul(r, v)
    }"""
    onnx.save(model_of(wide), tmp_path / "m.onnx")
    words = ("--format", "fp8", "--float-heads", "none", "-q")
    assert run(capsys, "insert", tmp_path / "m.onnx", *words).code == 0
    said = run(capsys, "peel", tmp_path / "m.qdq.onnx", *GPU, "--json")
    assert said.code == 0 and json.loads(said.out)["cache"] is None


def test_places_of_ones_own(capsys: Capsys, tmp_path: Path) -> None:
    qdq = write_pairs(tmp_path, capsys)
    assert run(capsys, "peel", qdq, *GPU, "-o", tmp_path / "p.onnx", "--cache", tmp_path / "c.txt", "-q").code == 0
    assert (tmp_path / "p.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    assert (tmp_path / "c.txt").read_text().startswith("TRT-8502-")
    assert not (tmp_path / "m.qdq.peeled.onnx").exists() and not (tmp_path / "m.qdq.cache").exists()


@pytest.mark.parametrize(
    ("version", "header"),
    [("7100", "TRT-7100-"), ("7.1.3", "TRT-7103-"), ("jp4.6", "TRT-8001-"), ("10.3", "TRT-100300-")],
)
def test_versions_in_every_spelling(capsys: Capsys, tmp_path: Path, version: str, header: str) -> None:
    qdq = write_pairs(tmp_path, capsys)
    said = run(capsys, "peel", qdq, "--target", "gpu", "--trt-version", version, "-o", tmp_path / "p.onnx")
    assert said.code == 0
    assert (tmp_path / "m.qdq.cache").read_text().startswith(header)


def test_a_model_that_an_old_parser_cannot_read_is_warned_about(capsys: Capsys, tmp_path: Path) -> None:
    """TensorRT 7.1 reads opset 11; the little network has 13."""
    said = run(capsys, "peel", write_pairs(tmp_path, capsys), "--target", "gpu", "--trt-version", "7103")
    assert said.code == 0
    assert "qdqtool: warning: " in said.err and "opset 13" in said.err and "--source" in said.err


@pytest.mark.parametrize("source", [False, True])
def test_a_model_is_lowered_for_an_old_parser_where_that_is_asked_for(
    capsys: Capsys, tmp_path: Path, source: bool
) -> None:
    qdq = write_pairs(tmp_path, capsys)
    words = ["peel", qdq, "--target", "gpu", "--trt-version", "7103", *(["--source", tmp_path / "m.onnx"] * source)]
    assert run(capsys, *words).code == 0
    as_it_was = (tmp_path / "m.qdq.cache").read_bytes()
    said = run(capsys, *words, "--lower-opset", "--emit", "trtexec")
    assert said.code == 0 and "lowered from opset 13 to 11, exactly" in said.err and "reads up to" not in said.err
    model = onnx.load(tmp_path / "m.qdq.peeled.onnx")
    assert (model.opset_import[0].version, model.ir_version) == (11, 6)
    assert (tmp_path / "m.qdq.cache").read_bytes() == as_it_was
    assert "warning" not in (tmp_path / "m.qdq.trtexec.sh").read_text()
    assert run(capsys, "cache", "check", tmp_path / "m.qdq.cache", tmp_path / "m.qdq.peeled.onnx").code == 0


def test_a_script_says_that_the_parser_does_not_read_the_model(capsys: Capsys, tmp_path: Path) -> None:
    words = ["peel", write_pairs(tmp_path, capsys), "--target", "gpu", "--trt-version", "7103", "--emit", "trtexec"]
    said = run(capsys, *words)
    assert said.code == 0 and "--lower-opset" in said.err
    assert "# warning: the model has opset 13" in (tmp_path / "m.qdq.trtexec.sh").read_text()


def test_insert_says_early_that_the_parser_does_not_read_the_model(capsys: Capsys, tmp_path: Path) -> None:
    model = write_net(tmp_path, 13)
    for more in ((), ("--dry-run",)):
        said = run(capsys, "insert", model, "--trt-version", "7103", *more)
        assert said.code == 0 and len(re.findall("opset 13, TensorRT 7.1.3 .* 11", said.err)) == 1
        assert "opset" not in run(capsys, "insert", model, "--trt-version", "8.2", *more).err
    assert "opset 13" not in run(capsys, "insert", write_net(tmp_path, 11), "--trt-version", "7103", "--dry-run").err


def test_lint_lowers_the_opset_where_it_is_asked_for(capsys: Capsys, tmp_path: Path) -> None:
    model, out = write_net(tmp_path, 13), tmp_path / "lower.onnx"
    assert "--fix Q014" in run(capsys, "lint", model, "--trt-version", "7103").out
    said = run(capsys, "lint", model, "--trt-version", "7103", "--fix", "Q014", "-o", out)
    assert said.code == 0 and "lowered from opset 13 to 11, exactly" in said.out + said.err
    assert onnx.load(out).opset_import[0].version == 11
    assert run(capsys, "lint", out, "--trt-version", "7103", "--select", "Q014").code == 0


def test_source_gives_the_old_file_back(capsys: Capsys, tmp_path: Path) -> None:
    qdq = write_pairs(tmp_path, capsys, opset=11)
    words = ["peel", qdq, "--target", "gpu", "--trt-version", "7103", "--source", tmp_path / "m.onnx"]
    said = run(capsys, *words)
    assert said.code == 0 and "opset" not in said.err
    assert (tmp_path / "m.qdq.peeled.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_a_source_of_another_model_is_refused(capsys: Capsys, tmp_path: Path) -> None:
    qdq = write_pairs(tmp_path, capsys)
    other = onnx.load(tmp_path / "m.onnx")
    for node in other.graph.node:
        node.input[:] = [name.replace("r1", "q1") for name in node.input]
        node.output[:] = [name.replace("r1", "q1") for name in node.output]
    (tmp_path / "o.onnx").write_bytes(other.SerializeToString())
    before = contents(tmp_path)
    refused(run(capsys, "peel", qdq, *GPU, "--source", tmp_path / "o.onnx"), "r1", "inserted into")
    refused(run(capsys, "peel", qdq, *GPU, "--source", qdq), f"--source {qdq}: has Q/DQ itself")
    assert contents(tmp_path) == before


def test_estimated_scales_are_refused_without_the_word(capsys: Capsys, tmp_path: Path) -> None:
    assert run(capsys, "insert", write_net(tmp_path), "-q").code == 0
    before = contents(tmp_path)
    said = run(capsys, "peel", tmp_path / "m.qdq.onnx", *GPU)
    refused(said, "4 of 4 ", "estimated", " of x;", "--allow-estimated")
    assert contents(tmp_path) == before
    assert run(capsys, "peel", tmp_path / "m.qdq.onnx", *GPU, "--allow-estimated").code == 0
    assert (tmp_path / "m.qdq.peeled.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


@pytest.mark.parametrize("version", ["11.0.0", "11.2", "11.2.1", "12.0.0"])
def test_versions_without_caches_are_refused_and_build_the_model_itself(
    capsys: Capsys, tmp_path: Path, version: str
) -> None:
    qdq = write_pairs(tmp_path, capsys)
    before = contents(tmp_path)
    refused(run(capsys, "peel", qdq, "--target", "gpu", "--trt-version", version), "with trtexec")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--trt-version", "newest"], ["newest", "is not a TensorRT version"]),
        (["--trt-version", "8.5"], ["8.5", "8.5.2"]),
        (["--trt-version", "jp9.9"], ["jp9.9"]),
        (["-o", "{}/m.qdq.onnx"], ["never overwritten"]),
        (["--cache", "{}/m.qdq.onnx"], ["never overwritten"]),
        (["--source", "{}/m.onnx", "-o", "{}/m.onnx"], ["never overwritten"]),
        (["--source", "{}/m.onnx", "--cache", "{}/m.onnx"], ["never overwritten"]),
        (["--source", "{}/no.onnx"], ["no.onnx: does not exist"]),
        (["-o", "{}/one", "--cache", "{}/one"], ["one: "]),
        (["-o", "{}/no/p.onnx"], ["no/p.onnx: "]),
        (["--cache", "{}/no/c.cache"], ["no/c.cache: "]),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    capsys: Capsys, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    qdq = write_pairs(tmp_path, capsys)
    before = contents(tmp_path)
    refused(run(capsys, "peel", qdq, *GPU, *(word.format(tmp_path) for word in words)), *parts)
    assert contents(tmp_path) == before


def test_a_plain_model_has_nothing_to_peel(capsys: Capsys, tmp_path: Path) -> None:
    model = write_net(tmp_path)
    before = contents(tmp_path)
    refused(run(capsys, "peel", model, *GPU), "m.onnx: has no Q/DQ", "qdqtool insert")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("model", [".", "/", ""])
def test_a_model_that_is_no_file_name(capsys: Capsys, model: str) -> None:
    refused(run(capsys, "peel", model, *GPU), "is a folder")


def test_two_scales_on_one_tensor(capsys: Capsys, tmp_path: Path) -> None:
    qdq = write_pairs(tmp_path, capsys)
    model = onnx.load(qdq)
    reader = next(node for node in model.graph.node if node.output[0] == "c2")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.9), "other"))
    at = list(model.graph.node).index(reader)
    zero = next(t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8 and not t.dims)
    for op, one, two in (("DequantizeLinear", "r1_Q2", "r1_DQ2"), ("QuantizeLinear", "r1", "r1_Q2")):
        model.graph.node.insert(at, onnx.helper.make_node(op, [one, "other", zero], [two]))
    relu = onnx.helper.make_node("Conv", ["r1_DQ2", reader.input[1]], ["second"], pads=[1, 1, 1, 1])
    model.graph.node.append(relu)
    model.graph.output.append(onnx.helper.make_tensor_value_info("second", 1, [None] * 4))
    qdq.write_bytes(model.SerializeToString())
    before = contents(tmp_path)
    refused(run(capsys, "peel", qdq, *GPU), f"r1: two scales, {bits(0.2)} and {bits(0.9)}", "--on-conflict max")
    assert contents(tmp_path) == before
    assert run(capsys, "peel", qdq, *GPU, "--on-conflict", "max").code == 0
    assert f"r1: {bits(0.9)}\n" in (tmp_path / "m.qdq.cache").read_text()


def test_json_is_stable(capsys: Capsys, tmp_path: Path) -> None:
    """Fields are a contract: new ones may come, these stay."""
    qdq = write_pairs(tmp_path, capsys)
    said = run(capsys, "peel", qdq, *GPU, "--json")
    facts = json.loads(said.out)
    assert said.err == "" and facts["schema"] == 1
    assert facts["file"] == str(tmp_path / "m.qdq.peeled.onnx") and facts["cache"] == str(tmp_path / "m.qdq.cache")
    assert facts["header"] == "TRT-8502-EntropyCalibration2" and isinstance(facts["float_outputs"], list)
    assert {name: facts["scales"][name]["scale"] for name in SCALES} == {n: bits(v) for n, v in SCALES.items()}
    assert facts["scales"]["f"]["origin"] == "equal"


def test_quiet_says_nothing(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "peel", write_pairs(tmp_path, capsys), *GPU, "-q")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_same_input_same_files(capsys: Capsys, tmp_path: Path) -> None:
    qdq = write_pairs(tmp_path, capsys)
    assert run(capsys, "peel", qdq, *GPU).code == 0
    first = contents(tmp_path)
    assert run(capsys, "peel", qdq, *GPU).code == 0
    assert contents(tmp_path) == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "p.cache.json", "--cache", "p.cache"), "is the name of the model and of the cache's details"),
        (("-o", "p.cache", "--cache", "p.cache"), "is the name of the model and of the cache"),
        (("-o", "link/p.onnx", "--cache", "p.onnx"), "is the name of the model and of the cache"),
        (
            ("-o", "p.trtexec.sh", "--cache", "link/p.cache", "--emit", "trtexec"),
            "is the name of the model and of --emit trtexec",
        ),
    ],
)
def test_two_results_in_one_file_are_refused_before_the_first_is_written(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    qdq = write_pairs(tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    refused(run(capsys, "peel", qdq, *GPU, *words), said)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
