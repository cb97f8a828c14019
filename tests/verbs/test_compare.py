# SPDX-License-Identifier: Apache-2.0
"""`compare`: a model against another over data; figures, culprits, what differs in name or shape, what is refused."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.graph.model import Model
from tests.graphs import model_of
from tests.verbs.small_net import NET, write_net

sys.path.insert(0, str(Path(__file__).parent.parent / "conditioning"))

import qdqtool
from qdqtool import ConditionOptions, condition
from qdqtool.errors import QdqError
from qdqtool.graph.edit import CONDITIONED, FINETUNED, set_metadata
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import CONCAT, feed_of, spread

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.runtime.executor import Executor

SCALES = ("x", "r1", "r2", "g", "f")


def data(count: int = 4) -> npt.NDArray[np.float32]:
    return np.random.default_rng(6).normal(size=(count, 4, 8, 8)).astype(np.float32)


def batches(array: npt.NDArray[Any], size: int = 1) -> list[dict[str, npt.NDArray[Any]]]:
    return [{"x": array[start : start + size]} for start in range(0, len(array), size)]


def compare(reference: Any, other: Any, array: Any = None, size: int = 1, **options: Any) -> qdqtool.Comparison:
    given = batches(data() if array is None else array, size)
    return qdqtool.compare(reference, other, given, qdqtool.CompareOptions(progress=False, **options))


def quantized(**scales: float) -> onnx.ModelProto:
    """The net in Q/DQ, with the scales given and good ones for the rest."""
    known = {**dict.fromkeys(SCALES, 0.15), "x": 0.04, **scales}
    cache = qdqtool.Cache.of(qdqtool.TrtVersion(8, 5, 2), {name: np.float32(s) for name, s in known.items()})
    return qdqtool.graft(model_of(NET), cache).model


def test_the_figures_of_every_tensor_both_have() -> None:
    plain, model = model_of(NET), quantized()
    result = compare(plain, model)
    assert [one.tensor for one in result.tensors] == ["c1", "r1", "c2", "r2", "g", "f", "y"]
    assert [one.tensor for one in result.outputs] == ["y"]
    names = [one.tensor for one in result.tensors]
    runs = (Executor(Model(plain), outputs=names), Executor(Model(model), outputs=names))
    for one in result.tensors:
        ref, x = (np.concatenate([e.run(b)[one.tensor] for b in batches(data())]).astype(float) for e in runs)
        assert one.sqnr == pytest.approx(10 * np.log10((ref**2).sum() / ((ref - x) ** 2).sum()), abs=1e-9)
        assert one.largest_error == np.abs(ref - x).max()
    assert (result.samples, result.broken, result.only, result.uncompared) == (4, (), ((), ()), {})


def test_what_is_observed_beside_it_changes_no_output() -> None:
    """BASIC merges Conv and BatchNormalization only where nobody looks between them."""
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y)
        <float[4,4,3,3] w, float[4] s, float[4] b, float[4] m, float[4] v = {1.1, 0.9, 2.3, 0.7}> {
        c = Conv<pads=[1,1,1,1]>(x, w)
        d = BatchNormalization(c, s, b, m, v)
        a = Abs(d)
        y = Conv<pads=[1,1,1,1]>(a, w)
    }"""
    scale = qdqtool.Cache.of(qdqtool.TrtVersion(8, 5, 2), {"x": np.float32(0.03), "a": np.float32(0.1)})
    other = qdqtool.graft(model_of(text), scale).model
    every, alone = (compare(model_of(text), other, tensors=wanted) for wanted in ("all", "outputs"))
    assert every.outputs == alone.outputs


def test_batch_size_and_order_change_nothing() -> None:
    plain, model = model_of(NET), quantized()
    want = compare(plain, model)
    assert compare(plain, model, data()[::-1]) == want
    for size in (2, 4):
        got = compare(plain, model, size=size)
        assert [one.sqnr for one in got.tensors] == pytest.approx([one.sqnr for one in want.tensors], abs=1e-4)


def test_the_culprit_is_where_the_error_is_born() -> None:
    """A scale far too large on r1: its reader is to blame, though all that follow are as bad."""
    result = compare(model_of(NET), quantized(r1=6.0))
    worst = result.error_sources[0]
    assert (worst.site.inputs, worst.site.output) == (("r1",), "r2")
    assert worst.sqnr_in > 25 and worst.sqnr_read < 10, "good before its Q/DQ, bad after it"
    assert worst.sqnr_out < 15 and worst.drop > 10
    good = compare(model_of(NET), quantized())
    assert good.error_sources[0].drop < worst.drop


def test_a_broken_weight_is_found_as_well() -> None:
    other = quantized()
    name = next(t for t in other.graph.initializer if t.name == "w2")
    name.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(name)[::-1].copy(), "w2"))
    worst = compare(model_of(NET), other).error_sources[0]
    assert worst.site.output == "r2" and worst.sqnr_read > 20 > worst.sqnr_out


def test_two_qdq_models_and_a_model_with_itself() -> None:
    result = compare(quantized(), quantized(r1=0.5))
    assert result.error_sources[0].site.output == "r2"
    same = compare(quantized(), quantized())
    assert [one.sqnr for one in same.tensors] == [math.inf] * 7
    assert same.error_sources == ()


def test_outputs_only_and_by_pattern() -> None:
    outputs = compare(model_of(NET), quantized(), tensors="outputs")
    assert [one.tensor for one in outputs.tensors] == ["y"] and outputs.error_sources == ()
    some = compare(model_of(NET), quantized(), tensors="^r")
    assert [one.tensor for one in some.tensors] == ["r1", "r2"] and some.outputs == ()
    assert [one.site.output for one in some.error_sources] and {one.site.output for one in some.error_sources} <= {
        "r1",
        "r2",
    }


def test_names_and_shapes_that_differ_are_listed() -> None:
    one = "g (float[2] x) => (float[2] y, int64[1] s) { a = Neg(x)  b = Abs(a)  y = Relu(b)  s = Shape(b) }"
    two = """g (float[2] x) => (float[2] y, int64[1] s) <int64[2] p = {1, 2}> {
        a = Reshape(x, p)  c = Abs(x)  y = Relu(c)  s = Shape(c) }"""
    result = compare(model_of(one), model_of(two), np.ones(2, np.float32), size=2)
    assert result.only == (("b",), ("c",))
    assert result.uncompared == {"a": "of shape [2] and [1, 2]", "s": "of type int64"}
    assert [m.tensor for m in result.outputs] == ["y"]


def test_what_lies_behind_a_plugin_is_listed_and_the_rest_is_compared() -> None:
    text = "g (float[1, 2] x) => (float[1, 2] y) { a = Neg(x)  n = trt.Plugin(a)  y = Abs(n) }"
    result = compare(model_of(text), model_of(text), np.ones((1, 2), np.float32))
    assert [one.tensor for one in result.tensors] == ["a"] and result.outputs == ()
    assert result.uncompared["y"].startswith("after trt::Plugin")
    with pytest.raises(QdqError, match=r"y: cannot be compared: .*trt::Plugin"):
        compare(model_of(text), model_of(text), np.ones((1, 2), np.float32), tensors="outputs")


def test_nan_is_named() -> None:
    log = model_of("g (float[1, 2] x) => (float[1, 2] y) { a = Neg(x)  y = Sqrt(a) }")
    other = model_of("g (float[1, 2] x) => (float[1, 2] y) { a = Abs(x)  y = Sqrt(a) }")
    result = compare(other, log, np.array([[1.0, -4.0]], np.float32))
    assert result.broken == ("y",)
    measure = result.outputs[0]
    assert (measure.broken, measure.elements, measure.sqnr) == (1, 1, math.inf)
    assert result.to_json()["broken"] == ["y"] and result.to_json()["outputs"][0]["identical"] is False


def test_simulated_models_compare_by_the_names_of_the_plain_one() -> None:
    entries = {name: np.float32(0.05) for name in ("x", "c1", "r1", "c2", "r2", "g", "f", "y")}
    cache = qdqtool.Cache.of(qdqtool.TrtVersion(8, 5, 2), entries)
    one = qdqtool.simulated_model(model_of(NET), qdqtool.SimulateOptions("dla", cache=cache))
    result = compare(model_of(NET), one.model)
    assert [m.tensor for m in result.tensors] == ["c1", "r1", "c2", "r2", "g", "f", "y"]
    assert result.outputs[0].sqnr < 40


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (NET.replace("float[N,4,8,8] x", "float[N,4,8,9] x"), r"its input 'x' is \[N, 4, 8, 9\]"),
        (NET.replace("(float[N,4,8,8] x", "(float[N,4,8,8] z").replace("(x, w1", "(z, w1"), "has no input 'x'"),
        ("g (float[N,4,8,8] x) => (float[N,4,8,8] q) { q = Neg(x) }", "share no tensor's name"),
    ],
)
def test_models_that_do_not_go_together(other: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        compare(model_of(NET), model_of(other))


def test_nothing_is_written_or_changed(tmp_path: Path) -> None:
    path = write_net(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    qdqtool.compare(path, path, tmp_path / "d.npz", qdqtool.CompareOptions(progress=False))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_json_is_finite_and_says_that_there_is_no_task_metric() -> None:
    import json

    document = compare(model_of(NET), quantized()).to_json(top=2)
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["task_metric"] is None and len(document["culprits"]) == 2
    assert list(document) == [
        "schema", "samples", "outputs", "tensors", "culprits", "broken", "uncompared", "only_reference", "only_other",
        "task_metric", "notes",
    ]  # fmt: skip


@pytest.mark.shared
@pytest.mark.slow
def test_the_face_detector_has_the_figures_of_plain_sums(shared: Path, tmp_path: Path) -> None:
    """`compare` against plain sums over all samples at once."""
    images = shared / "corpus/datasets/ultraface_imgs/imgs"
    model = shared / "corpus/models/ultraface_rfb320_raw.onnx"
    cv2 = pytest.importorskip("cv2")
    files = sorted(images.glob("*.jpg"), key=lambda path: int(path.stem))
    pixels = [cv2.resize(cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB), (320, 240)) for file in files]
    samples = [{"input": ((image.astype(np.float32) - 127) / 128).transpose(2, 0, 1)[None]} for image in pixels]
    made = qdqtool.insert(
        onnx.load(model),
        data=samples[:16],
        options=qdqtool.InsertOptions(calibration=qdqtool.CalibrationOptions("mse")),
    )
    result = qdqtool.compare(model, made.model, samples[16:], qdqtool.CompareOptions("outputs", progress=False))
    runs = (Executor(Model(onnx.load(model))), Executor(Model(made.model)))
    for one in result.outputs:
        ref, x = (np.concatenate([e.run(s)[one.tensor] for s in samples[16:]]).astype(float) for e in runs)
        assert one.sqnr == pytest.approx(10 * np.log10((ref**2).sum() / ((ref - x) ** 2).sum()), abs=1e-9)


def left_out(one: onnx.ModelProto, other: onnx.ModelProto) -> list[str]:
    from qdqtool.verbs.compare import DIVIDED

    found = compare(one, other).uncompared
    assert set(found.values()) <= {DIVIDED}
    return list(found)


def test_tensors_whose_channels_were_divided_are_left_out() -> None:
    plain = model_of(NET)
    conditioned = onnx.ModelProto()
    conditioned.CopyFrom(plain)
    edits = [{"step": "equalize", "site": name} for name in ("r1", "gone")] + [{"step": "clip", "site": "w2"}]
    set_metadata(conditioned, CONDITIONED, json.dumps({"edits": edits}))
    assert left_out(plain, conditioned) == ["c1", "r1"] == left_out(conditioned, plain)
    assert left_out(conditioned, conditioned) == []
    set_metadata(conditioned, FINETUNED, json.dumps({"equalized": ["g"]}))
    assert left_out(plain, conditioned) == ["c1", "r1", "c2", "r2", "g", "f"]
    for text in ("of another hand", "[]", '{"equalized": 3}', "{}"):
        set_metadata(conditioned, FINETUNED, text)
        assert left_out(plain, conditioned) == ["c1", "r1"]
    set_metadata(conditioned, CONDITIONED, "of another hand")
    assert left_out(plain, conditioned) == []


@pytest.mark.parametrize("quantized", [False, True])
def test_what_moves_divided_channels_is_no_culprit(*, quantized: bool) -> None:
    """Concat and MaxPool of smoothed channels had -3 dB against the plain model, and nothing was wrong with them."""
    plain = spread(CONCAT, names=("w1", "w2"))
    plan = PlanOptions(float_heads="none")
    made = condition(plain, feed_of(plain), ConditionOptions(("smooth",), plan=plan)).model
    assert "Mul" in [node.op_type for node in made.graph.node][5:]
    if quantized:
        made = qdqtool.insert(made, data=feed_of(plain), options=qdqtool.InsertOptions(plan, keep_float=0)).model
    result = qdqtool.compare(plain, made, feed_of(plain), qdqtool.CompareOptions(progress=False))
    assert list(result.uncompared) == ["k", "p"] and len(result.only[1]) == 2
    assert all(one.sqnr > (20 if quantized else 100) for one in result.tensors)
    assert {one.site.output for one in result.error_sources} <= {"y"} or quantized
    assert not {"k", "p"} & {one.site.output for one in result.error_sources}
