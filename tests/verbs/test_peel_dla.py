# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Peeling for the DLA: every float tensor has a scale, each tells where it comes from, and none is made up."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from qdqtool.amax.method_table import parse_method
from qdqtool.cache.sidecar import read_sidecar
from qdqtool.calibration.engine import CalibrationOptions, calibrate
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.metadata import store_table, stored_table
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import TrtVersion, parse
from qdqtool.verbs.insert import insert, plan
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions, PeelResult
from tests.graphs import model_of, table_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

V8_6 = TrtVersion(8, 6, 1)
W = "float[4,4,3,3] w1, float[4] b, float[4,4,1,1] w2, float[4,3] fc"
NET = f"""g (float[N,4,8,8] x) => (float[N,3] z) <{W}> {{
 c = Conv<pads=[1,1,1,1]>(x, w1, b) r = Relu(c) d = Conv(r, w2) a = Add(d, r) u = Relu(a) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(u)
 e = Conv(m, w2) s = Sigmoid(e) p = Mul(e, s) g = GlobalAveragePool(p) f = Flatten(g) y = MatMul(f, fc) z = Softmax(y) }}"""
FLOATS = ["x", "c", "r", "d", "a", "u", "m", "e", "s", "p", "g", "f", "y", "z"]
TIED_GROUPS = [{"d", "r"}, {"u", "m"}, {"p", "g", "f"}]
HEADS = PlanOptions(float_heads="none")
FAST = InsertOptions(calibration=CalibrationOptions("mse"), keep_float=0)
OWN = CalibrationOptions(inner=False)


def feed(count: int = 4) -> list[dict[str, np.ndarray]]:
    data = np.random.default_rng(6).normal(size=(count, 4, 8, 8)).astype(np.float32)
    return [{"x": row[None]} for row in data]


def scales_of_points(model: onnx.ModelProto, factor: float = 0.011) -> ScaleTable:
    """Another scale for each point, none of which any calibration would find."""
    return ScaleTable(table_of(plan(model, HEADS), factor))


def placed(*, text: str = NET, table: bool = True, opset: int = 17) -> onnx.ModelProto:
    """The network with pairs; with the table of all tensors in its metadata, or with scales of the points alone."""
    return onnx.ModelProto.FromString(_placed(text, table, opset))


@functools.cache
def _placed(text: str, table: bool, opset: int) -> bytes:
    model, options = model_of(text, opset), replace(FAST, plan=HEADS)
    given = {"data": feed()} if table else {"scales": scales_of_points(model)}
    result: onnx.ModelProto = insert(model, options=options, **given).model
    return result.SerializeToString()


def dla(model: onnx.ModelProto, **options: object) -> PeelResult:
    return peel(model, PeelOptions(V8_6, "dla", **options))  # type: ignore[arg-type]


def origins(result: PeelResult) -> dict[str, str]:
    return {name: scale.origin for name, scale in result.table.scales.items()}


# ---------------------------------------------------------------------- complete, and nothing else


@pytest.mark.parametrize("table", [True, False], ids=["table in the metadata", "data"])
def test_every_float_tensor_is_in_the_cache_and_nothing_else(table: bool) -> None:
    result = dla(placed(table=table), data=None if table else feed())
    assert list(result.cache.entries) == FLOATS
    assert result.table.unscaled == {} and result.float_outputs == ()
    assert result.cache.header == "TRT-8601-EntropyCalibration2"
    assert result.model == model_of(NET)


def test_each_source_is_reported() -> None:
    result = dla(placed(), shared_scales=False)
    points = {point.tensor for point in plan(model_of(NET), HEADS).activations}
    reported = origins(result)
    assert {name for name, origin in reported.items() if origin == "qdq"} == points
    assert (reported["s"], reported["z"]) == ("bound", "bound")
    assert reported["f"] == "equal" and "g" in points, "the same values on the other side of Flatten"
    assert {reported[name] for name in ("d", "e", "y")} == {"ptq"}
    assert {reported[name] for name in ("c", "a")} == {"derived"}, (
        "what only a Relu reads takes the scale of what it makes"
    )
    assert result.origins == {o: list(reported.values()).count(o) for o in set(reported.values())}


def test_points_keep_their_bits_before_ties() -> None:
    model = placed()
    known = insert(model_of(NET), data=feed(), options=InsertOptions(plan=HEADS)).inserted.scales
    loose = dla(model, shared_scales=False)
    for name, scale in known.items():
        assert loose.cache.entries[name].tobytes() == scale.bits.tobytes(), name
    tied = dla(model)
    for name, scale in known.items():
        assert tied.cache.entries[name] >= scale.bits, name


def test_the_table_gives_what_calibration_found() -> None:
    table = calibrate(model_of(NET), feed())
    result = dla(placed(), shared_scales=False)
    for name in ("c", "d", "a", "e", "y"):
        assert result.table[name].same_bits(table[name])
        assert result.table[name].method == {"c": "as r", "a": "as u", "e": "mse after the SiLU: p"}.get(name, "mse")


def test_the_table_is_used_before_data() -> None:
    louder = [{"x": 5 * batch["x"]} for batch in feed()]
    assert dla(placed(), data=louder).cache.entries == dla(placed()).cache.entries


# ---------------------------------------------------------------------- ties


@pytest.mark.parametrize("table", [True, False])
def test_ties_take_the_largest_and_name_it(table: bool) -> None:
    model, data = placed(table=table), None if table else feed()
    alone, result = dla(model, shared_scales=False, data=data), dla(model, data=data)
    for names in TIED_GROUPS:
        largest = max(alone.cache.entries[name] for name in names)
        assert {result.cache.entries[name].tobytes() for name in names} == {largest.tobytes()}
    for name in set(FLOATS) - set().union(*TIED_GROUPS):
        assert result.cache.entries[name].tobytes() == alone.cache.entries[name].tobytes()
    assert alone.shared_scales == {} and result.shared_scales
    for name, source in result.shared_scales.items():
        assert origins(result)[name] == "equal" and result.table[name].method.endswith(f" {source}")
    assert result.origins == alone.origins, "ties are not counted as sources"


def test_the_sidecar_keeps_the_bits_from_before(tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(placed().SerializeToString())
    alone = dla(placed(), shared_scales=False)
    result = peel(tmp_path / "q.onnx", PeelOptions(V8_6, "dla"))
    side = read_sidecar(tmp_path / "q.cache")
    assert side is not None and side.fresh
    assert {name: facts["bits"] for name, facts in side.tensors.items() if "bits" in facts} == {
        name: alone.table[name].hex() for name in result.shared_scales
    }
    assert {name: facts["origin"] for name, facts in side.tensors.items()} == origins(result)
    assert (side.options["target"], side.options["fill"]) == ("dla", "ptq")


# ---------------------------------------------------------------------- what is missing


def test_without_table_and_data_the_missing_are_listed() -> None:
    with pytest.raises(QdqError) as caught:
        dla(placed(table=False))
    error = caught.value
    assert f" of {len(FLOATS)} tensors " in error.reason and ": c, d, a" in error.reason
    assert "--data" in error.todo and "--fill none" in error.todo


def test_nothing_is_written_then(tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(placed(table=False).SerializeToString())
    with pytest.raises(QdqError, match="have no scale"):
        peel(tmp_path / "q.onnx", PeelOptions(V8_6, "dla"))
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


def test_fill_none_writes_what_there_is() -> None:
    result = dla(placed(table=False), fill="none")
    missing = {"c", "d", "a", "e", "y"}
    assert set(result.cache.entries) == set(FLOATS) - missing
    assert result.table.unscaled.keys() == missing & set(FLOATS)


def test_fill_propagate_goes_into_fused_groups() -> None:
    text = f"g (float[N,4,8,8] x) => (float[N,4,6,6] z) <{W}> {{ c = Conv(x, w1) n = Conv(c, w2) a = Add(n, c) r = Relu(a) z = Conv(r, w2) }}"
    plain = dla(placed(text=text, table=False), fill="none")
    assert "a" in plain.table.unscaled
    with pytest.raises(QdqError, match=r"2 of 6 tensors .*: n, z"):
        dla(placed(text=text, table=False), fill="propagate")
    result = dla(placed(text=text), fill="propagate", shared_scales=False)
    assert result.table["a"].method == "as r", "what the table tells comes before what peel derives"


def test_propagation_alone_can_be_enough() -> None:
    text = f"g (float[N,4,8,8] x) => (float[N,4] z) <{W}> {{ r = Relu(x) m = MaxPool<kernel_shape=[8,8]>(r) f = Flatten(m) k = MatMul(f, sq) z = Sigmoid(k) }}".replace(
        "fc>", "fc, float[4,4] sq>"
    )
    result = dla(placed(text=text, table=False), fill="none", shared_scales=False)
    assert result.origins.keys() <= {"qdq", "equal", "bound"}


def test_data_calibrates_what_is_missing_and_nothing_else() -> None:
    result = dla(placed(table=False), data=feed(), shared_scales=False)
    table = calibrate(model_of(NET), feed(), OWN)
    reported = origins(result)
    assert {name for name, origin in reported.items() if origin == "ptq"} == {"c", "d", "a", "e", "y"}
    for name in ("c", "d", "a", "e", "y"):
        assert result.table[name].same_bits(table[name])
        method = "mse after the SiLU: p" if name == "e" else "mse"
        assert (result.table[name].method, result.table[name].samples) == (method, 4)


def test_data_adds_to_a_table_with_gaps() -> None:
    model = placed()
    table = stored_table(model)
    assert table is not None
    gaps = {name: scale for name, scale in table.scales.items() if name not in ("c", "e")}
    store_table(model, replace(table, scales=gaps))
    with pytest.raises(QdqError, match=rf"2 of {len(FLOATS)} tensors .*: c, e"):
        dla(model)
    louder = [{"x": 5 * batch["x"]} for batch in feed()]
    result, want = dla(model, data=louder, shared_scales=False), calibrate(model_of(NET), louder, OWN)
    for name in ("c", "e"):  # another set of tensors is fetched, and kernels of onnxruntime may round otherwise
        np.testing.assert_allclose(result.table[name].bits, want[name].bits, rtol=1e-6)
    assert all(result.table[name].same_bits(table[name]) for name in ("d", "a", "y"))


@pytest.mark.parametrize("fill", ["propagate", "none"])
def test_data_is_not_used_where_it_was_not_asked_for(fill: str) -> None:
    model = placed(table=False)
    if fill == "none":
        assert dla(model, fill=fill, data=feed()).table.unscaled
    else:
        with pytest.raises(QdqError, match="have no scale"):
            dla(model, fill=fill, data=feed())


def test_the_method_is_that_of_insert_unless_another_is_given() -> None:
    options = InsertOptions(plan=HEADS, calibration=CalibrationOptions("percentile=99"))
    model = insert(model_of(NET), data=feed(), options=options).model
    assert dla(model, shared_scales=False).table["d"].method == str(parse_method("percentile=99"))
    assert (
        dla(placed(table=False), data=feed(), calibration=CalibrationOptions("max"), shared_scales=False)
        .table["c"]
        .method
        == "max"
    )


def test_tensors_without_a_scale_by_nature_are_listed_and_left_out() -> None:
    text = f"g (float[N,4,8,8] x) => (float[N,4,6,6] z) <{W}> {{ c = Conv(x, w1) o = Sub(c, c) i = Log(o) a = Add(c, o) z = Relu(a) y = Exp(i) }}"
    for table in (True, False):
        result = dla(placed(text=text, table=table), data=None if table else feed())
        assert result.table.unscaled == {"o": "is all zero", "i": "holds Inf", "y": "is all zero"}
        assert list(result.cache.entries) == ["x", "c", "a", "z"]


# ---------------------------------------------------------------------- force


def test_force_ptq_drops_the_pairs_scales() -> None:
    result = dla(placed(table=False), force_ptq=True, data=feed(), shared_scales=False)
    table = calibrate(model_of(NET), feed(), CalibrationOptions("entropy"))
    assert list(result.cache.entries) == FLOATS
    assert "qdq" not in result.origins
    for name in set(FLOATS) - {"s", "z"}:
        assert result.table[name].same_bits(table[name]), name
        assert (result.table[name].origin, result.table[name].method) == ("ptq", "entropy")


def test_force_ptq_ignores_the_table_and_takes_a_method() -> None:
    louder = [{"x": 5 * batch["x"]} for batch in feed()]
    result = dla(placed(), force_ptq=True, data=louder, calibration=CalibrationOptions("max"), shared_scales=False)
    want = calibrate(model_of(NET), louder, CalibrationOptions("max"))
    assert all(result.table[name].same_bits(want[name]) for name in FLOATS if name not in "sz")


def test_force_ptq_needs_data() -> None:
    with pytest.raises(QdqError, match=r"no data.*give --data"):
        dla(placed(), force_ptq=True)


def test_force_ptq_takes_estimated_pairs_for_what_they_are() -> None:
    estimated = insert(model_of(NET), options=InsertOptions(plan=HEADS)).model
    for fill in ("ptq", "propagate", "none"):
        with pytest.raises(QdqError, match=r"estimated without data.*--allow-estimated"):
            dla(estimated, fill=fill, data=feed())
    assert dla(estimated, data=feed(), allow_estimated=True).origins["estimated"] > 0
    assert "estimated" not in dla(estimated, force_ptq=True, data=feed()).origins


# ---------------------------------------------------------------------- doors, versions


@pytest.mark.parametrize("opset", [7, 11])
def test_an_old_source_comes_back_and_its_tensors_are_those_of_the_cache(opset: int) -> None:
    source = model_of(NET, opset)
    model = placed(opset=opset)
    result = dla(model, source=source)
    assert result.model == source and list(result.cache.entries) == FLOATS
    assert dla(placed(opset=opset, table=False), source=source, data=feed()).model == source


def test_a_graph_of_graphsurgeon_has_lost_the_table_and_says_so() -> None:
    graph = gs.import_onnx(placed())
    with pytest.raises(QdqError, match="have no scale"):
        peel(graph, PeelOptions(V8_6, "dla"))
    result = peel(graph, PeelOptions(V8_6, "dla", data=feed()))
    assert isinstance(result.model, gs.Graph) and set(result.cache.entries) == set(FLOATS)


def test_a_product_of_two_ranges_is_warned_of_unless_a_builder_is_reported(tmp_path: Path) -> None:
    """NvInfer.h, IElementWiseLayer: one range for both inputs on the DLA; the gate of a SiLU has another than its input."""
    model = placed()
    (note,) = [note for note in dla(model).notes if "one range" in note]
    assert "1 operator reads two ranges, p (Mul)" in note and "--emit trtexec" in note
    assert not [note for note in dla(model, emit=("json",)).notes if "one range" in note]
    assert not [note for note in peel(model, PeelOptions(V8_6)).notes if "one range" in note]


def test_several_products_are_counted() -> None:
    text = NET.replace("p = Mul(e, s)", "o = Mul(e, s) t = Sigmoid(o) p = Mul(o, t)")
    (note,) = [note for note in dla(placed(text=text)).notes if "one range" in note]
    assert "2 operators read two ranges, such as o (Mul)" in note


def test_11_4_1_takes_the_model_with_pairs_instead_of_a_cache() -> None:
    options = replace(FAST, plan=PlanOptions("dla", TrtVersion(11, 4, 1), float_heads="none"))
    made = insert(model_of(NET), data=feed(), options=options)
    assert {point.tensor for point in made.plan.activations} == set(FLOATS)
    with pytest.raises(QdqError, match=r"strongly typed .*qdqtool insert --target dla"):
        peel(made.model, PeelOptions(TrtVersion(11, 4, 1), "dla"))
    with pytest.raises(QdqError, match=r"11\.2\.0: supports no DLA on Jetson"):
        insert(model_of(NET), options=replace(options, plan=PlanOptions("dla", TrtVersion(11, 2, 0))))


@pytest.mark.parametrize("version", ["10.8.0", "10.16.0", "11.0.0"])
def test_versions_without_int8_on_the_dla_are_refused_with_those_that_have_it(version: str, tmp_path: Path) -> None:
    with pytest.raises(QdqError) as caught:
        peel(tmp_path / "never read.onnx", PeelOptions(parse(version), "dla"))
    assert ("8502" in caught.value.line()) == (version != "11.0.0")
    assert re.search("no calibration caches|10.7 is the last", caught.value.line())


@pytest.mark.parametrize("version", ["7.1.3", "8.5.2", "10.3.0", "10.7.0"])
def test_versions_with_it(version: str) -> None:
    assert set(peel(placed(), PeelOptions(parse(version), "dla")).cache.entries) == set(FLOATS)


def test_the_gpu_is_as_it_was() -> None:
    result = peel(placed(), PeelOptions(V8_6))
    assert set(result.origins) <= {"qdq", "equal"} and result.shared_scales == {}
    assert not {"c", "d", "a", "e", "s", "z"} & set(result.cache.entries)


def test_external_weights_are_calibrated_where_they_lie(tmp_path: Path) -> None:
    onnx.save(placed(table=False), tmp_path / "q.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    result = peel(tmp_path / "q.onnx", PeelOptions(V8_6, "dla", data=feed()))
    assert result.cache.entries == dla(placed(table=False), data=feed()).cache.entries
