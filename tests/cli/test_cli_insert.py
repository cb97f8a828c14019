# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""`qdqtool insert`: what it writes, prints and refuses, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.graph.view import GraphView
from qdqtool.metadata import stored_table
from qdqtool.scales import Scale, ScaleTable
from tests.cli.command import NET, contents, pairs_of, refused, run, write_net
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
POINTS = ["x", "r1", "r2", "g"]


def write_table(path: Path, **values: float) -> Path:
    path.write_text(ScaleTable({name: Scale.of(value) for name, value in values.items()}).to_json())
    return path


def write_all(path: Path, value: float = 0.5) -> Path:
    return write_table(path, **dict.fromkeys(POINTS, value))


def test_without_data_scales_are_estimated_and_that_is_said(capsys: Capsys, tmp_path: Path) -> None:
    model = write_net(tmp_path)
    before = contents(tmp_path)
    said = run(capsys, "insert", model)
    assert said.code == 0
    assert "qdqtool: warning: 4 scales estimated " in said.err
    output = tmp_path / "m.qdq.onnx"
    assert (
        f"wrote {output}\n" in said.out
        and f"next: trtexec --onnx={output} --shapes=x:1x4x8x8 --saveEngine=" in said.out
    )
    assert pairs_of(output) == POINTS
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before and set(after) - set(before) == {"m.qdq.onnx"}


@pytest.mark.parametrize("quiet", [(), ("-q",)], ids=["", "quiet"])
def test_estimated_scales_never_replace_calibrated_ones_without_a_word(
    capsys: Capsys, tmp_path: Path, quiet: tuple[str, ...]
) -> None:
    model, output = write_net(tmp_path), tmp_path / "m.qdq.onnx"
    lost = f"qdqtool: warning: {output}: replaced a file that held {{}} by one with estimated scales; -o writes another"
    run(capsys, "insert", model, "--data", tmp_path / "d.npz", "--method", "max", "--keep-float", "0")
    assert lost.format("scales calibrated with max on 6 samples") in run(capsys, "insert", model, *quiet).err
    assert "held" not in run(capsys, "insert", model, *quiet).err, "an estimate in place of an estimate"
    run(capsys, "insert", model, "--scales", write_all(tmp_path / "s.json"))
    assert "held" not in run(capsys, "insert", model, "-o", tmp_path / "other.onnx", *quiet).err
    assert lost.format("scales that were not estimated") in run(capsys, "insert", model, *quiet).err
    output.write_bytes(b"no model")
    assert "held" not in run(capsys, "insert", model, *quiet).err


def test_given_scales_arrive_to_the_bit(capsys: Capsys, tmp_path: Path) -> None:
    model, values = write_net(tmp_path), dict(zip(POINTS, (0.1, 0.2, 0.3, 0.4), strict=True))
    table = write_table(tmp_path / "s.json", **values)
    said = run(capsys, "insert", model, "--scales", table, "-o", tmp_path / "q.onnx")
    assert said.code == 0 and "warning" not in said.err
    graph = onnx.load(tmp_path / "q.onnx").graph
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    found = {n.input[0]: stored[n.input[1]] for n in graph.node if n.op_type == "QuantizeLinear"}
    for name, value in values.items():
        assert found[name].tobytes() == np.float32(value).tobytes()
    assert contents(tmp_path).keys() == {"m.onnx", "d.npz", "s.json", "q.onnx"}


def test_scales_that_lack_points_are_refused_with_the_names(capsys: Capsys, tmp_path: Path) -> None:
    model, table = write_net(tmp_path), write_table(tmp_path / "s.json", x=0.1, r2=0.2)
    before = contents(tmp_path)
    said = run(capsys, "insert", model, "--scales", table)
    refused(said, "r1")
    assert "g" in said.err.split(":", 2)[2].replace("calibrate", "")  # both names that are missing
    assert contents(tmp_path) == before


def test_data_and_a_table_of_calibrate_give_the_same_file(capsys: Capsys, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = write_net(tmp_path)
    data = ["--data", tmp_path / "d.npz"]
    assert run(capsys, "insert", model, *data, "-o", tmp_path / "one.onnx").code == 0
    assert run(capsys, "calibrate", model, *data, "-o", tmp_path / "s.json").code == 0
    assert run(capsys, "insert", model, "--scales", tmp_path / "s.json", "-o", tmp_path / "two.onnx").code == 0
    one, two = (onnx.load(tmp_path / name) for name in ("one.onnx", "two.onnx"))
    assert stored_table(one) is not None and stored_table(two) is None
    one.ClearField("metadata_props")
    assert one.SerializeToString(deterministic=True) == two.SerializeToString(deterministic=True)


def test_method_limit_and_batch_arrive(capsys: Capsys, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = write_net(tmp_path)
    words = ["--data", tmp_path / "d.npz", "--method", "percentile=99.9", "--limit", "4", "--batch", "2"]
    said = run(capsys, "insert", model, *words)
    assert said.code == 0 and "warning" not in said.err
    table = stored_table(onnx.load(tmp_path / "m.qdq.onnx"))
    assert table is not None and (table.provenance.samples, table.provenance.method) == (4, "percentile=99.9")


def test_dry_run_prints_the_plan_and_writes_nothing(capsys: Capsys, tmp_path: Path) -> None:
    model = write_net(tmp_path)
    before = contents(tmp_path)
    said = run(capsys, "insert", model, "--dry-run")
    assert said.code == 0 and "warning" not in said.err
    rows = {line.split()[0]: line for line in said.out.splitlines()}
    assert all(name in rows for name in (*POINTS, "w1", "w2", "fc"))
    assert "pairs on 4 activations (0 shared scales) and 3 weights" in said.out
    assert contents(tmp_path) == before


FOLDED = (
    "g (float[1,4,8,8] x) => (float[N] z) <float[4,4,1,1] w, float[4,4,1,1] v, float[4] one> {"
    " e = Exp(v) a = Conv(x, e) n = BatchNormalization(a, one, one, one, one) r = Relu(n)"
    " b = Conv(r, w) c = Relu(b) z = Conv(c, w) }"
)
CHANGES: list[tuple[str, ...]] = [
    ("--fold-constants",),
    ("--fold-bn",),
    ("--fold-constants", "--fold-bn"),
    ("--requantize",),
    ("--condition", "equalize,smooth,shift,clip", "--data", "d.npz", "--keep-float", "0"),
]


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_a_dry_run_is_of_what_is_written(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_of(FOLDED)
    ones = onnx.numpy_helper.from_array(np.ones(4, np.float32), "one")  # a variance is not negative
    next(tensor for tensor in model.graph.initializer if tensor.name == "one").CopyFrom(ones)
    onnx.save(model, "m.onnx")
    np.savez("d.npz", x=np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32))
    if "--requantize" in words:
        run(capsys, "insert", "m.onnx", "--float-heads", "all", "-o", "m.onnx")
    planned = json.loads(run(capsys, "insert", "m.onnx", "--dry-run", "--json", *words).out)
    tensor = planned["points"][-1]["tensor"]
    explained = run(capsys, "insert", "m.onnx", "--explain", tensor, *words)
    made = json.loads(run(capsys, "insert", "m.onnx", "-o", "q.onnx", "--json", *words).out)
    assert planned == {key: made[key] for key in planned} and planned["points"]
    assert explained.code == 0 and f"{tensor}: " in explained.out


def test_dry_run_needs_neither_data_nor_their_options(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "insert", write_net(tmp_path), "--dry-run", "--float-heads", "all")
    assert said.code == 0 and "pairs on 2 activations" in said.out and "float-head" in said.out


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("r1", ["activation quantized by rule"]),
        ("w1", ["weight quantized by rule"]),
        ("c1", ["in the group of rule"]),
    ],
)
def test_explain_one_name(capsys: Capsys, tmp_path: Path, name: str, parts: list[str]) -> None:
    said = run(capsys, "insert", write_net(tmp_path), "--explain", name)
    assert said.code == 0 and "warning" not in said.err and all(part in said.out for part in parts)
    assert not (tmp_path / "m.qdq.onnx").exists()


def test_explain_a_name_that_is_not_there(capsys: Capsys, tmp_path: Path) -> None:
    refused(run(capsys, "insert", write_net(tmp_path), "--explain", "r11"), "r11: ", "r1")


def test_json_of_the_plan_is_stable(capsys: Capsys, tmp_path: Path) -> None:
    """Fields are a contract: new ones may come, these stay."""
    said = run(capsys, "insert", write_net(tmp_path), "--dry-run", "--json")
    facts = json.loads(said.out)
    assert said.err == "" and facts["schema"] == 1
    assert {"points", "refusals", "heads", "groups"} <= facts.keys()
    first = facts["points"][0]
    assert {"tensor", "role", "consumers", "rule", "reason", "shared_scale"} <= first.keys()
    by_name = {point["tensor"]: point for point in facts["points"]}
    assert by_name["x"]["role"] == "activation" and by_name["w1"]["role"] == "weight"
    assert by_name["r1"]["consumers"] == ["c2:0"] and by_name["r1"]["shared_scale"] == "r1"
    assert {"node", "label", "evidence", "float"} <= facts["heads"][0].keys()
    assert {"rule", "nodes", "output"} <= facts["groups"][0].keys()
    assert run(capsys, "insert", tmp_path / "m.onnx", "--dry-run", "--json").out == said.out


def test_json_of_a_run(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "insert", write_net(tmp_path), "--json")
    facts = json.loads(said.out)
    assert facts["file"] == str(tmp_path / "m.qdq.onnx")
    assert (facts["added"], facts["kept"]) == (7, 0)


def test_quiet_says_nothing(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "insert", write_net(tmp_path), "-q")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_lifting_is_said_on_stderr(capsys: Capsys, tmp_path: Path) -> None:
    said = run(capsys, "insert", write_net(tmp_path, 11), "--scales", write_all(tmp_path / "s.json"))
    assert said.code == 0 and "opset 11 to 13" in said.err


def test_pairs_that_stand_are_kept(capsys: Capsys, tmp_path: Path) -> None:
    table = write_all(tmp_path / "s.json")
    run(capsys, "insert", write_net(tmp_path), "--scales", table)
    said = run(capsys, "insert", tmp_path / "m.qdq.onnx", "--scales", table, "-o", tmp_path / "again.onnx")
    assert said.code == 0 and "kept 7 pairs" in said.out
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "m.qdq.onnx").read_bytes()


def test_a_conflict_is_refused_and_requantize_replaces(capsys: Capsys, tmp_path: Path) -> None:
    run(capsys, "insert", write_net(tmp_path), "--scales", write_all(tmp_path / "s.json"))
    other = write_all(tmp_path / "t.json", 0.25)
    again = ["insert", tmp_path / "m.qdq.onnx", "--scales", other, "-o", tmp_path / "again.onnx"]
    refused(run(capsys, *again), " 3f000000, ", " 3e800000", "--requantize")
    assert not (tmp_path / "again.onnx").exists()
    assert run(capsys, *again, "--requantize").code == 0
    run(capsys, "insert", tmp_path / "m.onnx", "--scales", other, "-o", tmp_path / "fresh.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "fresh.onnx").read_bytes()


def test_a_model_without_weights_has_nothing_to_quantize(capsys: Capsys, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(model_of("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }").SerializeToString())
    data = tmp_path / "d.npz"
    np.savez(data, x=np.ones((2, 4), np.float32))
    for words in ([], ["--data", data]):
        refused(run(capsys, "insert", model, *words), "nothing to quantize", "no Conv", "--allow-empty")
        assert not (tmp_path / "m.qdq.onnx").exists()
    said = run(capsys, "insert", model, "--allow-empty")
    assert said.code == 0 and "nothing was quantized" in said.out
    assert (tmp_path / "m.qdq.onnx").read_bytes() == model.read_bytes()
    assert run(capsys, "insert", model, "--dry-run").code == 0


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--data", "{}/d.npz", "--scales", "{}/s.json"], ["both data and scales"]),
        (["--scales", "{}/no.json"], ["no.json: ", "cannot be read"]),
        (["--scales", "{}/m.onnx"], ["m.onnx: "]),
        (["--scales", "{}/d.npz"], ["d.npz: "]),
        (["--data", "{}/no.npz"], ["no.npz: does not exist"]),
        (["--method", "max"], ["--method", "give --data"]),
        (["--preprocess", "imagenet"], ["--preprocess", "give --data"]),
        (["--data", "{}/d.npz", "--method", "mes"], ["mes"]),
        (["--input-range", "1:0"], ["--input-range 1:0", "write it like 0:1"]),
        (["--input-range", "zero:one"], ["--input-range zero:one"]),
        (["--input-range", "0"], ["--input-range 0"]),
        (["--input-range", "nan:1"], ["--input-range nan:1"]),
        (["--trt-version", "next"], ["next"]),
        (["--trt-version", "8.5"], ["8.5", "8.5.2"]),
        (["--rules", "{}/no.toml"], ["no.toml"]),
        (["--rules", "{}/m.onnx"], ["m.onnx"]),
        (["--heads", "nothing_like_this"], ["--heads nothing_like_this", "matches no weighted operator"]),
        (["--not-heads", "c1"], ["--not-heads c1", "matches no weighted operator"]),
        (["--heads", "("], ["--heads (", "not a regular expression"]),
        (["-o", "{}/m.onnx"], ["never overwritten"]),
        (["-o", "{}/no/q.onnx"], ["no/q.onnx"]),
        (["-o", "{}"], ["cannot be written"]),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    capsys: Capsys, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    model = write_net(tmp_path)
    write_all(tmp_path / "s.json")
    before = contents(tmp_path)
    refused(run(capsys, "insert", model, *(word.format(tmp_path) for word in words)), *parts)
    assert contents(tmp_path) == before


def test_the_input_is_not_overwritten_by_another_name_for_it(capsys: Capsys, tmp_path: Path) -> None:
    model = write_net(tmp_path)
    (tmp_path / "link.onnx").symlink_to(model)
    (tmp_path / "hard.onnx").hardlink_to(model)
    before = contents(tmp_path)
    for name in ("link.onnx", "hard.onnx", "sub/../m.onnx"):
        (tmp_path / "sub").mkdir(exist_ok=True)
        refused(run(capsys, "insert", model, "-o", tmp_path / name), "never overwritten")
    (tmp_path / "sub").rmdir()
    assert contents(tmp_path) == before


def test_the_table_is_not_overwritten_either(capsys: Capsys, tmp_path: Path) -> None:
    model, table = write_net(tmp_path), write_all(tmp_path / "s.json")
    before = contents(tmp_path)
    refused(run(capsys, "insert", model, "--scales", table, "-o", table), "never overwritten")
    refused(run(capsys, "insert", model, "--data", tmp_path / "d.npz", "-o", tmp_path / "d.npz"), "never overwritten")
    assert contents(tmp_path) == before


def test_an_older_output_is_replaced_whole(capsys: Capsys, tmp_path: Path) -> None:
    model, table = write_net(tmp_path), write_all(tmp_path / "s.json")
    (tmp_path / "m.qdq.onnx").write_bytes(b"old" * 100_000)
    assert run(capsys, "insert", model, "--scales", table).code == 0
    assert pairs_of(tmp_path / "m.qdq.onnx") == POINTS


def test_rules_of_ones_own(capsys: Capsys, tmp_path: Path) -> None:
    """A file that extends the target's and takes nothing away changes nothing; it is no place for the output."""
    (tmp_path / "mine.toml").write_text('schema = 1\nextends = "gpu"\n')
    model = write_net(tmp_path)
    mine = run(capsys, "insert", model, "--dry-run", "--rules", tmp_path / "mine.toml")
    assert mine.code == 0 and mine.out == run(capsys, "insert", model, "--dry-run").out
    words = ["--rules", tmp_path / "mine.toml", "-o", tmp_path / "mine.toml"]
    refused(run(capsys, "insert", model, *words), "never overwritten")


def test_input_range_moves_the_first_scale(capsys: Capsys, tmp_path: Path) -> None:
    model = write_net(tmp_path)
    assert run(capsys, "insert", model, "--input-range", "-2:8").code == 0
    graph = onnx.load(tmp_path / "m.qdq.onnx").graph
    scale = next(onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name == "x_estimated_scale")
    assert scale.tobytes() == (np.float32(8) / np.float32(127)).tobytes()


def test_fold_bn_folds(capsys: Capsys, tmp_path: Path) -> None:
    text = NET.replace("r1 = Relu(c1)", "n1 = BatchNormalization(c1, s, s, s, s)\n r1 = Relu(n1)")
    text = text.replace("<float[4,4,3,3] w1,", "<float[4] s, float[4,4,3,3] w1,")
    model = model_of(text, 13)
    for tensor in model.graph.initializer:
        if tensor.name == "s":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(4, 0.5, np.float32), "s"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    said = run(capsys, "insert", tmp_path / "m.onnx", "--fold-bn")
    assert said.code == 0 and "folded 1 BatchNormalization" in said.err
    assert not any(n.op_type == "BatchNormalization" for n in onnx.load(tmp_path / "m.qdq.onnx").graph.node)


DETR = """g (float[1,16,8] x) => (float[1,5,4] z, float[1,5,6] c)
    <float[1,5,8] query, float[8,8] wm, float[8,8] wv, float[8,8] wo, float[8,4] wb, float[8,6] wc> {
    m = MatMul(x, wm) t = Transpose<perm=[0,2,1]>(m) a = MatMul(query, t) p = Softmax(a)
    v = MatMul(m, wv) s = MatMul(p, v) o = MatMul(s, wo) b = MatMul(o, wb) z = Sigmoid(b) c = MatMul(o, wc) }"""


def test_the_decoder_of_a_detector_by_queries_is_quantized_if_asked(capsys: Capsys, tmp_path: Path) -> None:
    model = tmp_path / "detr.onnx"
    model.write_bytes(model_of(DETR, 13).SerializeToString())
    said = run(capsys, "insert", model, "--dry-run")
    assert all(part in said.out for part in ("float: 3 layers ", "decoder; 1 detection head"))
    said = run(capsys, "insert", model, "--decoder", "int8", "--dry-run")
    assert "left in float: 1 detection head" in said.out
    refused(run(capsys, "insert", model, "--decoder", "fp16"), "--decoder: invalid choice: 'fp16'")


LEFTOVER = "g (float[1,8,8,8] x) => (float[N] y) <int8[8,8,3,3] q, float[8] s = {1,1,1,1,1,1,1,1}, int8[8] o> { w = DequantizeLinear(q, s, o) y = Conv(x, w) }"


def test_a_model_that_keeps_its_pairs_is_not_said_to_have_none(capsys: Capsys, tmp_path: Path) -> None:
    onnx.save(model_of(LEFTOVER), tmp_path / "m.onnx")
    said = run(capsys, "insert", tmp_path / "m.onnx", "--allow-empty")
    assert said.code == 0 and "nothing was quantized" not in said.out
    assert "nothing more" in said.out


INT4 = "g (float[2,8] x) => (float[N] y) <float s = {0.5}, float[8,8] v> { q = Identity(v) w = DequantizeLinear(q, s) h = MatMul(x, w) r = Relu(h) k = MatMul(r, v) y = Softmax(k) }"


def test_weights_of_other_formats_stay_with_their_products_unless_they_go(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_of(INT4, 21)
    del model.graph.node[0]
    model.graph.initializer.append(onnx.helper.make_tensor("q", onnx.TensorProto.INT4, [8, 8], [1, 2, -3, 4] * 16))
    onnx.save(model, "m.onnx")
    np.savez("d.npz", x=np.ones((2, 8), np.float32))
    assert run(capsys, "insert", "m.onnx", "--data", "d.npz").code == 0
    found = onnx.load("m.qdq.onnx").graph
    assert set(GraphView(found, None).pairs) - {"w"} == {"r", "v"}
    assert any(tensor.name == "q" and tensor.data_type == onnx.TensorProto.INT4 for tensor in found.initializer)
    for words in (("--requantize",), ("--requantize", "--data", "d.npz")):
        assert run(capsys, "insert", "m.onnx", *words).code == 0
        pairs = GraphView(onnx.load("m.qdq.onnx").graph, None).pairs
        assert set(pairs) == {"x", "r", "w", "v"}


@pytest.mark.parametrize("name", ["d\udcff.npz", "d\udcff/d.npz"])
def test_data_whose_name_is_no_utf8_are_named_with_escapes(tmp_path: Path, capsys: Capsys, name: str) -> None:
    """The model's metadata and a table hold text alone."""
    model, data = write_net(tmp_path), tmp_path / name
    data.parent.mkdir(exist_ok=True)
    (tmp_path / "d.npz").rename(data)
    said = run(capsys, "insert", model, "--data", data, "--keep-float", "0", "-o", tmp_path / "q.onnx")
    assert said.code == 0, said.err
    assert run(capsys, "calibrate", model, "--data", data, "-o", tmp_path / "t.json").code == 0
    assert run(capsys, "insert", model, "--scales", tmp_path / "t.json", "-o", tmp_path / "r.onnx").code == 0


INTEGERS = """g (int8[n,1,2,2] x) => (int8[n,2,2,2] z) <float s = {0.0078125}, int8 o = {-128}, float r = {0.5}, int8 m = {0}, int8[2,1,1,1] w = {3, -5}>
{
 t = Transpose<perm=[0,1,3,2]>(x)
 d = DequantizeLinear(t, s, o)
 v = DequantizeLinear(w, r, m)
 c = Conv(d, v)
 z = QuantizeLinear(c, r, m)
}"""


def test_requantize_takes_integers_at_the_ends_as_peel_does(capsys: Capsys, tmp_path: Path) -> None:
    model, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    model.write_bytes(model_of(INTEGERS).SerializeToString())
    pixels = np.random.default_rng(5).integers(0, 256, (8, 2, 2, 1), np.uint8)
    np.savez(tmp_path / "d.npz", x=pixels)
    again = [
        "insert",
        model,
        "--requantize",
        "--data",
        tmp_path / "d.npz",
        "--keep-float",
        "0",
        "--float-heads",
        "none",
        "-o",
        output,
    ]
    said = "the input x took int8 and takes floats now: 0.0078125 * (code + 128), from 0 to 1.99219"
    values = f"--data: feeds values from {int(pixels[0].min()) - 128} to {int(pixels[0].max()) - 128}, but {said}"
    refused(run(capsys, *again, "--preprocess", "scale=1,mean=128"), values, "--preprocess scale=0.0078125")
    assert not output.exists()
    done = run(capsys, *again, "--preprocess", "scale=0.0078125")
    assert done.code == 0 and said in done.err and "the output z gave int8 and gives floats now" in done.err
    plan = run(capsys, "insert", model, "--requantize", "--dry-run")
    assert plan.code == 0 and not plan.err.count("error")
    written = onnx.load(output)
    assert [value.type.tensor_type.elem_type for value in (*written.graph.input, *written.graph.output)] == [1, 1]
    run(
        capsys,
        "peel",
        model,
        "--target",
        "gpu",
        "--trt-version",
        "10.3",
        "--on-asymmetric",
        "widen",
        "-o",
        tmp_path / "p.onnx",
    )
    run(capsys, "insert", tmp_path / "p.onnx", *again[3:-1], tmp_path / "two.onnx", "--preprocess", "scale=0.0078125")
    assert (tmp_path / "two.onnx").read_bytes() == output.read_bytes()
