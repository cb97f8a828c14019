# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint`: what it prints, writes and refuses, and its exit codes, through the command line."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.lint import _repairs
from qdqtool.diagnosis.cause import LossCauses
from qdqtool.linting.finding import Finding
from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of
from tests.linting.quantized import conv, graph, pair

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capsys: Capsys) -> Path:
    """`m.onnx` plain, `q.onnx` as insert makes it, `bad.onnx` with a pair inside a group and a scale of zero."""
    write_net(tmp_path)
    assert run(capsys, "insert", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx", "-q").code == 0
    model = onnx.load(tmp_path / "q.onnx")
    for node in model.graph.node:
        del node.metadata_props[:]
        for index, name in enumerate(node.input):
            node.input[index] = name.replace("_estimated_scale", "_scale")
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace("_estimated_scale", "_scale")
    graph = model.graph
    relu = next(place for place, node in enumerate(graph.node) if node.output[0] == "r1")
    for op, name, made in (("QuantizeLinear", "c1", "inq"), ("DequantizeLinear", "inq", "ind")):
        node = onnx.helper.make_node(op, [name, "r1_scale", "qdqtool_zero_point"], [made])
        graph.node.insert(relu, node)
        relu += 1
    graph.node[relu].input[0] = "ind"
    onnx.save(model, tmp_path / "split.onnx")
    zero = onnx.numpy_helper.to_array(next(t for t in graph.initializer if t.name == "x_scale")) * 0
    next(t for t in graph.initializer if t.name == "x_scale").CopyFrom(onnx.numpy_helper.from_array(zero, "x_scale"))
    onnx.save(model, tmp_path / "bad.onnx")
    return tmp_path


def test_errors_decide_the_exit_code_and_levels_change_that(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    for model, level, code in (
        ("bad.onnx", "error", 1),
        ("split.onnx", "error", 0),
        ("split.onnx", "warning", 1),
        ("m.onnx", "warning", 0),
        ("m.onnx", "note", 1),
    ):
        assert run(capsys, "lint", folder / model, "--level", level).code == code, (model, level)
    assert contents(folder) == before


def test_the_text_says_what_where_how_many_and_what_to_do(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "lint", folder / "bad.onnx", "--ignore", "Q016,Q018")
    lines = said.out.splitlines()
    assert lines[0] == "Q010 scale-value: 1 error"
    assert lines[1].startswith("  x: ") and "zero" in lines[1]
    assert "Q001 split-fusion: 1 warning" in lines
    assert re.search("\n  c1: .* Conv c1 .* Relu", said.out)
    assert any(line.startswith("  to do: qdqtool lint --fix ") for line in lines)
    assert f"{folder / 'bad.onnx'}: 1 error, 1 warning" in lines
    assert lines[-1].endswith(": qdqtool lint --explain Q010")


def test_what_to_do_names_the_places_where_one_code_has_several_remedies(tmp_path: Path, capsys: Capsys) -> None:
    nodes = "e = Exp(x) p = Pad<pads=[0,0,1,1,0,0,1,1]>(e) q = Pad<pads=[0,0,1,1,0,0,1,1]>(p) y = Sin(q)"
    text = f"net (float[1,4,8,8] x) => (float[1,4,12,12] y) {{ {nodes} }}"
    onnx.save(model_of(text, 10), tmp_path / "m.onnx")
    said = run(capsys, "lint", tmp_path / "m.onnx", "--target", "dla", "--select", "Q030").out.splitlines()
    todo = [line for line in said if line.startswith("  to do")]
    assert len(todo) > 1 and any(line.startswith("  to do at p, q: ") for line in todo)


def test_many_places_are_cut_off_and_all_shows_them(folder: Path, capsys: Capsys) -> None:
    graph = onnx.load(folder / "m.onnx").graph
    for number in range(9):
        graph.node.append(onnx.helper.make_node("QLinearConv", ["x"] * 8, [f"i{number}"], f"n{number}"))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    onnx.save(model, folder / "many.onnx")
    short = run(capsys, "lint", folder / "many.onnx", "--select", "Q025").out
    assert "Q025 integer-operator: 9 errors" in short and "  and 4 more (--all shows them)" in short
    assert "  n5: " not in short
    assert "  n8: " in run(capsys, "lint", folder / "many.onnx", "--select", "Q025", "--all").out


def test_notes_of_one_code_are_one_line_and_all_shows_each(folder: Path, capsys: Capsys) -> None:
    words = ("lint", folder / "m.onnx", "--select", "Q016,Q018")
    short = run(capsys, *words).out.splitlines()
    assert short[0] == "Q016 odd-sizes: 3 notes, at c1, c2, y (--all shows them)"
    assert short[1].startswith("Q018 node-names, note: net: 7 of 7 nodes ")
    for word in ("--all", "-v"):
        lines = run(capsys, *words, word).out.splitlines()
        assert lines[0] == "Q016 odd-sizes: 3 notes" and lines[1].startswith("  c1: Conv in INT8")
        assert any(line.startswith("  to do: ") for line in lines) and "Q018 node-names: 1 note" in lines
    assert len(json.loads(run(capsys, *words, "--json").out)["findings"]) == 4


def test_what_goes_with_a_repair_is_said_beside_what_can_be_repaired(folder: Path, capsys: Capsys) -> None:
    """`5 can be repaired`, and then `8 findings repaired`: notes on what was repaired are gone as well."""
    head = f"{pair('one')} d = Conv(r_dq, one_dq) y = Exp(d)"
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r')} {head} e = Conv(r_dq, two) o = Sigmoid(e)"
    ends = "float[1,8,8,8] y, float[1,8,8,8] o"
    onnx.save(graph(body, ends, more="float[8,8,1,1] one, float[8,8,1,1] two"), folder / "head.onnx")
    words = ("lint", folder / "head.onnx", "--trt-version", "11.1.0", "--no-parser")
    (said,) = [line for line in run(capsys, *words).out.splitlines() if "can be repaired: " in line]
    assert said.startswith("2, ") and "qdqtool lint" in said
    done = run(capsys, *shlex.split(said.partition("repaired: ")[2])[1:]).out
    assert "3 findings repaired" in done
    alone = run(capsys, *words, "--select", "Q009").out
    assert "\n1 can be repaired: " in alone


def test_what_fix_leaves_alone_is_offered_by_its_code(folder: Path, capsys: Capsys) -> None:
    """`1 can be repaired: ... --fix` was said of Q017, which --fix alone does not repair."""
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w> { a = Conv(x, w) y = Relu(a) }"
    model = model_of(text)
    for node, name in zip(model.graph.node, ("one", "two"), strict=True):
        node.name = name
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "a:0"
    onnx.save(model, folder / "colon.onnx")
    words = ("lint", folder / "colon.onnx", "--target", "dla", "--trt-version", "8502")
    lines = run(capsys, *words).out.splitlines()
    assert not any("can be repaired" in line for line in lines)
    start = "Q017 is repaired only on request: "
    (step,) = [shlex.split(line.removeprefix(start)) for line in lines if line.startswith(start)]
    assert step[3:] == [*words[2:], "--fix", "Q017", "-o", str(folder / "colon.fixed.onnx")]
    assert "1 finding repaired" in run(capsys, *step[1:]).out
    assert not any(line.startswith(start) for line in run(capsys, "lint", folder / "colon.fixed.onnx").out.splitlines())


def test_one_command_repairs_all_that_is_repaired_only_on_request(folder: Path, capsys: Capsys) -> None:
    text = """g (float[1,8,4,4] x) => (float[1,8,4,4] y) <int64[5] s1 = {1, 2, 4, 4, 4}, int64[4] s2 = {1, 8, 4, 4},
    float[8,8,1,1] w>
    { a = Reshape(x, s1) b = Transpose<perm=[0,2,1,3,4]>(a) c = Reshape(b, s2) y = Conv(c, w) }"""
    model = model_of(text)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "a:0"
    onnx.save(model, folder / "two.onnx")
    lines = run(capsys, "lint", folder / "two.onnx", "--target", "dla", "--trt-version", "8502").out.splitlines()
    start = "Q017, Q030 are repaired only on request, here with the others: "
    (step,) = [shlex.split(line.removeprefix(start)) for line in lines if " only on request" in line]
    assert step[step.index("--fix") + 1] == "Q017,Q018,Q030"
    run(capsys, *step[1:])
    left = json.loads(run(capsys, "lint", folder / "two.fixed.onnx", *step[3:7], "--json").out)["findings"]
    assert not {one["code"] for one in left} & {"Q017", "Q018", "Q030"}


def test_names_are_renamed_in_the_fp32_model_by_the_printed_command(folder: Path, capsys: Capsys) -> None:
    model = onnx.load(folder / "m.onnx")
    model.graph.node[0].input[0] = model.graph.input[0].name = "x:0"
    onnx.save(model, folder / "FP32.onnx")
    values = np.random.default_rng(0).standard_normal((4, 4, 8, 8)).astype(np.float32)
    np.savez(folder / "colon.npz", **{"x:0": values})
    made = ("-o", folder / "colon.onnx", "-q")
    assert run(capsys, "insert", folder / "FP32.onnx", "--data", folder / "colon.npz", *made).code == 0
    for file in ("FP32.onnx", "colon.onnx"):
        (said,) = [line for line in run(capsys, "lint", folder / file).out.splitlines() if "renames" in line]
        words = shlex.split(said.removeprefix("  to do: ").partition(" renames ")[0])
        assert words[2] == (str(folder / file) if file == "FP32.onnx" else "FP32.onnx")
        words = [str(folder / Path(word).name) if word.endswith(".onnx") else word for word in words]
        assert "1 finding repaired" in run(capsys, *words[1:]).out
        assert onnx.load(words[-1]).graph.input[0].name == "x_0"
        (folder / "FP32.fixed.onnx").unlink()


def test_with_data_values_beyond_fp16_are_named(folder: Path, capsys: Capsys) -> None:
    np.save(folder / "x.npy", np.full((2, 4, 8, 8), 1e6, np.float32))
    asked = ("lint", folder / "m.onnx", "--select", "Q040", "--level", "warning")
    assert run(capsys, *asked).code == 0
    said = run(capsys, *asked, "--data", folder / "x.npy", "--limit", "1")
    assert said.code == 1
    assert re.search(r"x: .* up to 1e\+06 .* 65504", said.out)
    refused(run(capsys, *asked, "--data", folder / "none.npy"), "none.npy")


def test_with_data_the_cause_of_a_loss_is_named_with_the_command_that_mends_it(folder: Path, capsys: Capsys) -> None:
    values = np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32)
    np.save(folder / "x.npy", values)
    np.save(folder / "other.npy", values / 255)
    model = folder / "odd.qdq.onnx"
    assert run(capsys, "insert", folder / "m.onnx", "--data", folder / "other.npy", "-o", model, "-q").code == 0
    asked = ("lint", model, "--data", folder / "x.npy")
    lines = run(capsys, *asked).out.splitlines()
    assert re.fullmatch(r"loss at the outputs: [01.]\d* \(95 %: [\d.e-]+ to [\d.e-]+, 4 samples\)", lines[0])
    assert lines[1].startswith("preprocessing: the range of the input x ends at 0.0")
    (step,) = [shlex.split(line.removeprefix("next: ")) for line in lines if line.startswith("next: ")]
    assert step[-2:] == ["-o", str(folder / "odd.mended.qdq.onnx")]
    assert run(capsys, *step[1:]).code == 0
    document = json.loads(run(capsys, "lint", step[-1], *asked[2:], "--json").out)
    assert document["causes"]["causes"] == [] and document["causes"]["loss"] < 0.05
    assert json.loads(run(capsys, *asked, "--select", "Q040", "--json").out)["causes"] is None


def test_another_preprocessing_than_that_of_the_file_is_a_cause(folder: Path, capsys: Capsys) -> None:
    drawn = np.random.default_rng(0)
    np.save(folder / "pixels.npy", drawn.integers(0, 256, (8, 8, 8, 3), np.uint8))
    net = """net (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[8,3,1,1] w1, float[4,8,1,1] w2>
    { c = Conv(x, w1) r = Relu(c) z = Conv(r, w2) y = Softmax<axis=1>(z) }"""
    onnx.save(model_of(net), folder / "c.onnx")
    model, data = folder / "c.qdq.onnx", ("--data", folder / "pixels.npy")
    made = run(capsys, "insert", folder / "c.onnx", *data, "--preprocess", "scale=1/25500", "-o", model, "-q")
    assert made.code == 0, made.err
    said = run(capsys, "lint", model, *data, "--preprocess", "scale=1/255")
    assert "preprocessing: its calibration data had values from 0 to 0.01, the data have values from 0 to 1" in said.out
    (step,) = [shlex.split(line.removeprefix("next: ")) for line in said.out.splitlines() if line.startswith("next: ")]
    assert step[step.index("--preprocess") + 1] == "scale=1/255"
    assert run(capsys, *step[1:]).code == 0
    refused(run(capsys, "evaluate", model, *data, "--preprocess", "scale=1/255"), "insert")


def test_a_loss_without_a_cause_has_a_next_step(folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "x.npy", np.zeros((8, 4, 8, 8), np.float32))
    monkeypatch.setattr("qdqtool.verbs.lint.causes_of", lambda *_: LossCauses((), 0.3, 8))
    lines = run(capsys, "lint", folder / "q.onnx", "--data", folder / "x.npy", "--limit", 4).out.splitlines()
    assert lines[1] == "no cause of it was found"
    (step,) = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
    words = [*map(str, (folder / "q.onnx", "--data", folder / "x.npy", "--max-loss", 0.01))]
    assert shlex.split(step) == ["qdqtool", "improve", *words, "-o", str(folder / "q.improved.onnx")]
    monkeypatch.setattr("qdqtool.verbs.lint.causes_of", lambda *_: LossCauses((), 0.003, 8))
    assert "next: " not in run(capsys, "lint", folder / "q.onnx", "--data", folder / "x.npy").out


def test_select_and_ignore(folder: Path, capsys: Capsys) -> None:
    for words, codes in (
        (("--select", "Q001"), {"Q001"}),
        (("--select", "Q001,Q010", "--ignore", "Q010"), {"Q001"}),
        (("--select", "Q001", "--select", "Q010"), {"Q001", "Q010"}),
    ):
        document = json.loads(run(capsys, "lint", folder / "bad.onnx", *words, "--json").out)
        assert {one["code"] for one in document["findings"]} == codes
    refused(run(capsys, "lint", folder / "bad.onnx", "--select", "Q0O1"), "Q0O1: no check", "Q001")


def test_json_has_its_keys_and_counts(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "lint", folder / "bad.onnx", "--ignore", "Q016,Q018", "--format", "json")
    document = json.loads(said.out)
    keys = {"schema", "model", "target", "counts", "findings", "causes", "fixed", "new", "file", "notes"}
    assert set(document) == keys and document["schema"] == 1 and document["file"] is None
    assert document["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert document["findings"][0]["where"] == "c1" and document["findings"][0]["fixable"] is True
    assert said.out == run(capsys, "lint", folder / "bad.onnx", "--ignore", "Q016,Q018", "--json").out


def test_sarif_goes_to_stdout(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "lint", folder / "bad.onnx", "--format", "sarif")
    assert said.code == 1
    (log,) = json.loads(said.out)["runs"]
    assert {"Q001", "Q010"} <= {one["ruleId"] for one in log["results"]}


def test_explain_needs_no_model(capsys: Capsys) -> None:
    said = run(capsys, "lint", "--explain", "Q003")
    assert said.code == 0 and said.out.startswith("Q003 loose-end (error; gpu, rtx, dla)\n\nA QuantizeLinear ")
    assert "TensorRT >=8.5,<9" in run(capsys, "lint", "--explain", "Q019").out
    assert json.loads(run(capsys, "lint", "--explain", "Q019", "--json").out)["trt"] == ">=8.5,<9"
    refused(run(capsys, "lint", "--explain", "Q3"), "Q3: no check")


@pytest.mark.parametrize("order", [("{m}", "--fix"), ("--fix", "{m}"), ("{m}", "--fix", "Q001"), ("{m}", "--fix=Q001")])
def test_fix_writes_a_new_file_and_leaves_the_input(order: tuple[str, ...], folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    words = [word.format(m=folder / "split.onnx") for word in order]
    said = run(capsys, "lint", *words, "-o", folder / "fixed.onnx", "--ignore", "Q018")
    assert said.code == 0 and f"wrote {folder / 'fixed.onnx'}: 1 finding repaired" in said.out
    assert "Q001: 2 Q/DQ nodes removed, 1 inputs" in said.err
    after = contents(folder)
    assert after.pop("fixed.onnx") and after == before
    assert "Q001" not in run(capsys, "lint", folder / "fixed.onnx").out


def test_what_fix_refuses_writes_nothing(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    bad = folder / "bad.onnx"
    refused(run(capsys, "lint", bad, "--fix"), "bad.onnx: ", "output file", "-o")
    refused(run(capsys, "lint", "--fix", ","), "--fix ',': names no code")
    refused(run(capsys, "lint", bad, "--fix", "", "-o", folder / "o.onnx"), "--fix '': names no code")
    refused(run(capsys, "lint", bad, "-o", folder / "o.onnx"), "to be repaired", "--fix")
    refused(run(capsys, "lint", bad, "--fix", "-o", bad), "never overwritten")
    refused(run(capsys, "lint", bad, "--fix", "Q004", "-o", folder / "o.onnx"), "Q004: ", "safe repair")
    refused(run(capsys, "lint"), "no model ")
    refused(run(capsys, "lint", folder / "none.onnx"), "does not exist")
    refused(run(capsys, "lint", bad, "--trt-version", "x"), "a TensorRT version")
    assert contents(folder) == before


def test_versions_change_what_is_said(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "lint", folder / "q.onnx", "--trt-version", "7103", "--select", "Q014,Q015")
    assert said.code == 1 and "opset 13, TensorRT 7.1.3 reads up to 11" in said.out
    assert "qdqtool peel --target gpu --trt-version 7103" in said.out


def test_quiet_still_says_what_was_asked_for(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "lint", folder / "split.onnx", "-q", "--fix", "-o", folder / "fixed.onnx")
    assert said.err == "" and "repaired" in said.out


@pytest.mark.parametrize(
    ("scale", "code", "reported"),
    [
        ("", 2, "qdqtool: error: {path}: DequantizeLinear d has an empty scale (shape [0]); export the model again"),
        (
            "e = Constant<value_floats: floats = []>()",
            1,
            "x: its Q has the scale 0.1, its DQ (empty): the pair changes values",
        ),
    ],
)
def test_a_scale_without_elements_is_refused_where_it_is_stored_and_told_where_it_is_made(
    tmp_path: Path, capsys: Capsys, scale: str, code: int, reported: str
) -> None:
    stored = "" if scale else ", float[0] e = {}"
    model = model_of(
        f"net (float[1,8,8,8] x) => (float[1,8,8,8] y) <float s = {{0.1}}, int8 z = {{0}}{stored}>"
        f"{{ {scale} q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, e, z) y = Relu(d) }}"
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    ended = run(capsys, "lint", path, "--select", "Q029")
    assert ended.code == code and reported.format(path=path) in (ended.err if code == 2 else ended.out)


def test_no_repair_is_printed_for_a_model_with_types_of_its_own() -> None:
    """`lint --fix` refuses it, so the line would not run."""
    found = Finding("Q020", "warning", "j", "Concat with the scales 1, 2", "", True, ("gpu",), "")
    args = argparse.Namespace(model="m.onnx", target="gpu", trt_version=None, platform=None, select=[], ignore=[])
    (said,) = _repairs([found], args, typed=True)
    assert said.startswith("1 can be repaired ") and "not in this one" in said
    assert "qdqtool lint m.onnx --fix -o m.fixed.onnx" in _repairs([found], args, typed=False)[0]


@pytest.mark.parametrize(("version", "known"), [("11.5.0", True), ("12.0", False), ("10.99.0", False)])
def test_a_version_that_is_not_known_is_told_of(folder: Path, capsys: Capsys, version: str, known: bool) -> None:
    for words in (
        ("lint", folder / "m.onnx", "--no-parser"),
        ("insert", folder / "m.onnx", "-o", folder / f"{version}.onnx"),
    ):
        done = run(capsys, *words, "--trt-version", version)
        assert done.code == 0 and ("not a release " in done.err and " 11.5.0 " in done.err) is not known
    assert run(capsys, "lint", folder / "m.onnx", "--no-parser", "--trt-version", version, "-q").err == ""
