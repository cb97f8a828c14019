# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A plain model and data to a cache over every float tensor: whose bits, which ties, what is refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.cache.sidecar import read_sidecar
from qdqtool.cache.text import read_cache
from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.observers.options import CalibrationOptions
from qdqtool.passes.insert import insert_pairs
from qdqtool.trtversion import TrtVersion, parse
from qdqtool.verbs.ptq import ptq
from qdqtool.verbs.ptq_options import PtqOptions, PtqResult
from tests.graphs import model_of, plan_of, table_of
from tests.ort_session import PLAIN, session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
V8_6 = TrtVersion(8, 6, 1)
NET = """g (float[N,4,8,8] x) => (float[N,3] z) <float[4,4,3,3] w1, float[4] b, float[4,4,1,1] w2, float[32,3] fc> {
 c = Conv<pads=[1,1,1,1]>(x, w1, b) r = Relu(c) d = Conv(r, w2) a = Add(d, r) k = Concat<axis=1>(a, r) p = GlobalAveragePool(k)
 m = MaxPool<kernel_shape=[4,4], strides=[4,4]>(a) i = Flatten(m) j = Flatten(p) q = Concat<axis=1>(i, i) z = MatMul(q, fc) }"""
FLOATS = ["x", "c", "r", "d", "a", "k", "p", "m", "i", "j", "q", "z"]
GROUPED_NET = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,1,1,1] w = {1, 1, 1, 1}> { z = Conv<group=4>(x, w) }"


def net(opset: int = 13) -> onnx.ModelProto:
    """The network with weights in halves: with data in quarters every sum is exact, however it is computed."""
    model = model_of(NET, opset)
    for tensor in model.graph.initializer:
        halves = np.rint(onnx.numpy_helper.to_array(tensor) * 2) / 2
        tensor.CopyFrom(onnx.numpy_helper.from_array(halves.astype(np.float32), tensor.name))
    return model


def samples(count: int = 6) -> np.ndarray:
    """Seeded images, the later ones larger: the first batch does not settle a range."""
    data = np.random.default_rng(4).normal(size=(count, 4, 8, 8)) * np.linspace(0.3, 3, count)[:, None, None, None]
    return (np.rint(data * 4) / 4).astype(np.float32)


def batches(data: np.ndarray, size: int = 1) -> list[dict[str, np.ndarray]]:
    return [{"x": data[start : start + size]} for start in range(0, len(data), size)]


@functools.cache
def made(
    version: TrtVersion = V8_6,
    target: str = "gpu",
    *,
    shared_scales: bool = True,
    method: str = "entropy",
    size: int = 1,
) -> PtqResult:
    options = PtqOptions(version, target, CalibrationOptions(method), DataOptions(), shared_scales)
    return ptq(net(), batches(samples(), size), options)


def observed(model: onnx.ModelProto, feed: Iterable[dict[str, np.ndarray]]) -> dict[str, list[np.ndarray]]:
    """Every tensor of every run, by onnxruntime with no help of ours."""
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    known = {value.name for value in whole.graph.output}
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=n.output[0]) for n in whole.graph.node if n.output[0] not in known
    )
    session = session_of(whole, PLAIN)
    names = [value.name for value in session.get_outputs()]
    found: dict[str, list[np.ndarray]] = {}
    for batch in feed:
        for name, array in [*batch.items(), *zip(names, session.run(names, batch), strict=True)]:
            found.setdefault(name, []).append(array)
    return found


# ---------------------------------------------------------------------- whose bits


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_tensor_has_the_bits_of_tensorrts_search_batch_by_batch_in_order(size: int) -> None:
    feed = batches(samples(), size)
    result = made(shared_scales=False, size=size)
    assert list(result.cache.entries) == FLOATS
    for name, arrays in observed(net(), feed).items():
        histogram = EntropyHistogram()
        for array in arrays:
            histogram.add(array)
        amax = histogram.search()
        assert amax is not None
        assert result.cache.entries[name].tobytes() == (amax / np.float32(127)).tobytes(), name


def test_entropy_is_the_default_and_depends_on_the_order_of_batches() -> None:
    options = PtqOptions(V8_6, shared_scales=False)
    first = ptq(net(), batches(samples()), options)
    assert first.cache.entries == made(shared_scales=False).cache.entries
    assert {s.method for s in first.table.scales.values()} == {"entropy"}
    turned = ptq(net(), batches(samples()[::-1].copy()), options)
    assert turned.cache.entries["x"] != first.cache.entries["x"]


def test_max_is_the_largest_value_that_onnxruntime_gives() -> None:
    result = made(shared_scales=False, method="max")
    for name, arrays in observed(net(), batches(samples())).items():
        amax = np.float32(max(np.abs(array).max() for array in arrays))
        assert result.cache.entries[name].tobytes() == (amax / np.float32(127)).tobytes(), name


def test_the_table_says_where_each_scale_comes_from() -> None:
    scale = made(shared_scales=False).table["r"]
    assert (scale.origin, scale.method, scale.samples) == ("ptq", "entropy", 6)


# ---------------------------------------------------------------------- ties


@pytest.mark.parametrize(
    ("version", "target", "together"),
    [
        ("8.0.1", "gpu", [{"r", "a", "k", "p", "j", "m", "i", "q"}]),
        ("8.5.1", "gpu", [{"k", "p", "j"}, {"a", "m", "i", "q"}]),
        ("8.6.1", "dla", [{"d", "r", "a", "k", "p", "j", "m", "i", "q"}]),
    ],
)
def test_ties_follow_target_and_version(version: str, target: str, together: list[set[str]]) -> None:
    alone, result = made(parse(version), target, shared_scales=False), made(parse(version), target)
    tied = set().union(*together)
    for names in together:
        largest = max(alone.cache.entries[name] for name in names)
        assert {result.cache.entries[name].tobytes() for name in names} == {largest.tobytes()}, names
    for name in set(FLOATS) - tied:
        assert result.cache.entries[name].tobytes() == alone.cache.entries[name].tobytes(), name
    assert set(result.shared_scales) <= tied and alone.shared_scales == {}


def test_a_tied_tensor_names_where_its_scale_came_from() -> None:
    result = made(target="dla")
    for name, source in result.shared_scales.items():
        assert result.table[name].same_bits(result.table[source])
        assert result.table[name].origin == "equal" and result.table[name].method.endswith(f" {source}")


def test_the_sidecar_keeps_the_bits_that_tied_ones_had(tmp_path: Path) -> None:
    alone = made(target="dla", shared_scales=False)
    result = ptq(net(), batches(samples()), PtqOptions(V8_6, "dla"), cache=tmp_path / "c.cache")
    side = read_sidecar(tmp_path / "c.cache")
    assert side is not None and side.fresh and side.verb == "ptq" and side.header == "TRT-8601-EntropyCalibration2"
    assert {name for name, facts in side.tensors.items() if "bits" in facts} == set(result.shared_scales) != set()
    for name in result.shared_scales:
        assert side.tensors[name]["bits"] == alone.table[name].hex()
        assert side.tensors[name]["method"].endswith(f" {result.shared_scales[name]}")
    assert (side.options["method"], side.options["samples"], side.options["ties"]) == ("entropy", 6, True)


# ---------------------------------------------------------------------- models and doors


@pytest.mark.parametrize("opset", [7, 9, 13, 17])
def test_any_opset_unlifted_and_untouched(opset: int) -> None:
    model = net(opset)
    before = model.SerializeToString(deterministic=True)
    result = ptq(model, batches(samples()), PtqOptions(V8_6))
    assert model.SerializeToString(deterministic=True) == before
    assert list(result.cache.entries) == FLOATS
    assert result.path is None


@pytest.mark.slow
def test_a_file_a_graph_and_a_callable_give_the_same_cache(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(net().SerializeToString())
    want = made().cache
    graph = gs.import_onnx(net())
    sources = [path, str(path), graph, lambda: path, lambda: net()]
    for source in sources:
        assert ptq(source, batches(samples()), PtqOptions(V8_6)).cache == want
    assert read_cache(tmp_path / "m.cache") == want, "beside a path by default"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.cache", "m.cache.json", "m.onnx"]


def test_the_same_run_gives_the_same_bytes_and_the_data_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=samples())
    (tmp_path / "m.onnx").write_bytes(net().SerializeToString())
    for name in "ab":
        ptq(tmp_path / "m.onnx", tmp_path / "d.npz", PtqOptions(V8_6), cache=tmp_path / f"{name}.cache")
    assert (tmp_path / "a.cache").read_bytes() == (tmp_path / "b.cache").read_bytes()
    text = (tmp_path / "a.cache.json").read_text()
    assert text.replace("a.cache", "b.cache") == (tmp_path / "b.cache.json").read_text()
    assert json.loads(text)["data"] == {"kind": "npz", "name": "d.npz", "batch": 1}


def test_zeros_are_left_out_of_the_cache_and_listed() -> None:
    text = "g (float[N,4] x) => (float[N,4] z) { o = Sub(x, x) z = Add(x, o) }"
    result = ptq(model_of(text), [{"x": np.ones((2, 4), np.float32)}], PtqOptions(V8_6))
    assert list(result.cache.entries) == ["x", "z"] and result.table.unscaled == {"o": "is all zero"}


# ---------------------------------------------------------------------- predicted loss


@functools.cache
def smooth() -> tuple[list[dict[str, np.ndarray]], PtqResult]:
    """A run on values that lie on no grid, as those of real data do."""
    feed = batches(np.random.default_rng(5).normal(size=(6, 4, 8, 8)).astype(np.float32))
    return feed, ptq(model_of(NET), feed, PtqOptions(V8_6, shared_scales=False))


def test_the_loss_of_mse_is_predicted_beside_and_is_never_larger() -> None:
    predicted = smooth()[1].predicted()
    assert predicted is not None
    assert (predicted["method"], predicted["beside"]) == ("entropy", "mse")
    assert predicted["beside_db"] >= predicted["chosen_db"] > 0
    chosen, other = predicted["largest_loss_db"]
    assert predicted["largest_loss"] in FLOATS and other >= chosen


def test_the_prediction_is_near_what_rounding_leaves() -> None:
    feed, result = smooth()
    assert result.table.provenance.predicted is not None
    decibel = result.table.provenance.predicted.decibel
    assert list(decibel) == FLOATS
    for name, arrays in observed(model_of(NET), feed).items():
        x, scale = np.concatenate([a.reshape(-1) for a in arrays]).astype(np.float64), float(result.table[name].bits)
        if len(x) < 100:
            continue  # the rounding errors of a few values are no noise
        rounded = np.clip(np.rint(x / scale), -128, 127) * scale
        measured = 10 * np.log10((x**2).sum() / ((x - rounded) ** 2).sum())
        assert abs(decibel[name][0] - measured) < 1, name  # the histogram takes noise as uniform within a step


def test_beside_mse_itself_nothing_is_predicted() -> None:
    assert made(method="mse").predicted() is None


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("target", "notes"), [("dla", 1), ("gpu", 0)])
def test_a_product_of_two_ranges_is_warned_of_on_the_dla(target: str, notes: int) -> None:
    text = "g (float[N,4,8,8] x) => (float[N,4,8,8] z) { e = Abs(x) s = Sigmoid(e) z = Mul(e, s) }"
    said = ptq(model_of(text), batches(samples()), PtqOptions(V8_6, target)).notes
    assert len(said) == notes
    assert all(re.search(r"1 operator reads two ranges, z \(Mul\); .*FP16", note) for note in said)


@pytest.mark.parametrize(
    ("version", "target", "parts"),
    [
        ("11.0.0", "gpu", ("reads no calibration caches", "qdqtool insert")),
        ("11.0.0", "dla", ("reads no calibration caches", "qdqtool insert")),
        ("10.8.0", "dla", ("runs no INT8 on the DLA", "8502")),
        ("10.16.0", "dla", ("runs no INT8 on the DLA", "10.7")),
    ],
)
def test_versions_that_read_no_such_cache(version: str, target: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(QdqError) as caught:
        ptq("no such file.onnx", [], PtqOptions(parse(version), target), cache=tmp_path / "c.cache")
    assert all(part in caught.value.line() for part in parts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("version", "target"), [("10.16.0", "gpu"), ("10.7.0", "dla"), ("7.1.3", "dla")])
def test_the_last_versions_that_do(version: str, target: str) -> None:
    assert made(parse(version), target).cache.header.startswith(f"TRT-{parse(version).header_number}-")


def test_a_model_with_pairs_is_sent_to_peel() -> None:
    model = net()
    view = GraphView(model.graph)
    insert_pairs(view, make_plan(view, PlanOptions(float_heads="none")), table_of(plan_of(model)))
    with pytest.raises(QdqError, match=r"has Q/DQ.*qdqtool peel"):
        ptq(model, batches(samples()), PtqOptions(V8_6))


def test_no_samples_and_nan() -> None:
    with pytest.raises(QdqError, match="no samples"):
        ptq(net(), [], PtqOptions(V8_6))
    bad = samples()
    bad[3] = np.nan
    with pytest.raises(QdqError, match="holds NaN"):
        ptq(net(), batches(bad), PtqOptions(V8_6))


def test_places_are_checked_before_any_data_is_read(tmp_path: Path) -> None:
    def never() -> Iterable[dict[str, np.ndarray]]:
        raise AssertionError("data was read")

    (tmp_path / "m.onnx").write_bytes(net().SerializeToString())
    (tmp_path / "theirs.cache.json").write_text("{}")
    places = {"m.onnx": "never overwritten", "gone/c.cache": "does not exist", "theirs.cache": "another name"}
    for place, reason in places.items():
        with pytest.raises(QdqError, match=reason):
            ptq(tmp_path / "m.onnx", never, PtqOptions(V8_6), cache=tmp_path / place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "theirs.cache.json"]


def test_a_name_that_no_cache_can_hold_writes_nothing(tmp_path: Path) -> None:
    model = model_of("g (float[N,4] x) => (float[N,4] z) { a = Abs(x) z = Abs(a) }")
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "two\nlines"
    with pytest.raises(QdqError):
        ptq(model, [{"x": np.ones((1, 4), np.float32)}], PtqOptions(V8_6), cache=tmp_path / "c.cache")
    assert not list(tmp_path.iterdir())


pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def cache_of_large_channel(largest: float) -> PtqResult:
    """A cache by four samples, the first channel of which is so much larger."""
    data = np.random.default_rng(1).normal(size=(4, 4, 8, 8)).astype(np.float32)
    data[:, 0] *= largest
    options = PtqOptions(TrtVersion(10, 3, 0), "gpu", CalibrationOptions("max", progress=False))
    return ptq(model_of(GROUPED_NET), [{"x": data[i : i + 1]} for i in range(4)], options)


def test_channels_that_one_range_does_not_fit_are_a_large_loss() -> None:
    found = cache_of_large_channel(2000.0).output_loss
    assert found is not None and found.large and found.samples == 4
    assert found.summary() in cache_of_large_channel(2000.0).summary()


def test_a_harmless_cache_loses_little() -> None:
    found = cache_of_large_channel(1.0).output_loss
    assert found is not None and found.value is not None and found.value < 0.01


def test_a_large_model_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.verbs.ptq.MOST_BYTES", 1)
    found = cache_of_large_channel(1.0).output_loss
    assert found is not None and found.value is None
    assert re.search("not measured, .*large", found.summary())
