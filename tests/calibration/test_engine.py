# SPDX-License-Identifier: Apache-2.0
"""From data to a scale table: the numbers, their independence of order and grouping, and what gets no scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.calibration.engine import WantedScales
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.scales import ScaleTable

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.calibration.engine import CalibrationOptions, calibrate, calibrate_scales
from qdqtool.data.loader import DataOptions, inputs_of, open_loader

STABLE = ["mse", "max", "percentile=99.9", "entropy-stable"]


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 13]>\n' + text)


NET = model("g (float[N, 64] x) => (float[N, 64] y) { d = Mul(x, x)  r = Relu(x)  y = Sub(r, d) }")


def samples(count: int = 12) -> npt.NDArray[np.float32]:
    r = np.random.default_rng(11)
    return (r.normal(size=(count, 64)) * r.uniform(0.1, 4, size=(count, 1))).astype(np.float32)


def table_of(
    data: npt.NDArray[np.float32], method: str = "mse", batch: int = 1, proto: onnx.ModelProto = NET
) -> ScaleTable:
    items = [{"x": row[np.newaxis]} for row in data]
    return calibrate(proto, items, CalibrationOptions(method), DataOptions(batch=batch))


def bits(table: ScaleTable) -> dict[str, Any]:
    return {name: scale.hex() for name, scale in table.scales.items()}


def test_max_is_the_largest_magnitude_over_127() -> None:
    data = samples()
    table = table_of(data, "max")
    relu, square = np.maximum(data, 0), data * data
    for name, values in {"x": data, "d": square, "r": relu, "y": relu - square}.items():
        want = np.abs(values).max() / np.float32(127)
        assert table[name].bits.tobytes() == want.tobytes()
    assert list(table) == ["x", "d", "r", "y"]


def test_each_scale_says_where_it_is_from() -> None:
    table = table_of(samples(5), "percentile=99.9")
    assert {(s.origin, s.method, s.samples) for s in table.scales.values()} == {("ptq", "percentile=99.9", 5)}
    assert table.facts_json() == {"method": "percentile=99.9", "samples": 5, "data": {"kind": "python", "batch": 1}}


@pytest.mark.parametrize("method", STABLE)
def test_order_and_grouping_do_not_matter(method: str) -> None:
    data = samples()
    want = bits(table_of(data, method))
    assert bits(table_of(data[::-1], method)) == want
    assert bits(table_of(data, method, batch=5)) == want
    assert bits(table_of(data[np.random.default_rng(0).permutation(len(data))], method, batch=7)) == want


def test_clipping_methods_lie_below_the_maximum() -> None:
    data = samples(40)
    largest = table_of(data, "max")
    for method in ("percentile=99", "mse", "entropy-stable"):
        table = table_of(data, method)
        assert all(table[name].bits <= largest[name].bits for name in largest), method
        assert table["d"].bits < largest["d"].bits, method  # squares have a long tail


def test_tensorrt_entropy_is_fed_batch_by_batch() -> None:
    from qdqtool.amax.trt_entropy import EntropyHistogram

    data = samples()
    histogram = EntropyHistogram()
    for row in data:
        histogram.add(row[np.newaxis])
    amax = histogram.search()
    assert amax is not None
    table = table_of(data, "entropy")
    assert table["x"].bits.tobytes() == (amax / np.float32(127)).tobytes()


def test_table_is_the_same_bytes_each_time() -> None:
    assert table_of(samples()).to_json() == table_of(samples()).to_json()


# ------------------------------------------------------------------ what gets no scale

ODD = model("""g (float[N, 4] x) => (float[N, 4] y) {
    zero = Sub(x, x)
    log = Log(zero)
    hard = Exp(log)
    y = Add(x, hard)
}""")


def test_all_zero_and_inf_are_recorded_with_the_reason() -> None:
    table = table_of(np.ones((2, 4), np.float32), proto=ODD)
    assert table.unscaled == {"zero": "is all zero", "log": "holds Inf", "hard": "is all zero"}
    assert list(table) == ["x", "y"]


@pytest.mark.parametrize("method", ["mse", "entropy", "max"])
def test_at_a_point_inf_is_an_error_and_zeros_are_none(method: str) -> None:
    feed = open_loader([{"x": np.ones((1, 4), np.float32)}], inputs_of(ODD.graph))
    with pytest.raises(QdqError, match="holds Inf") as caught:
        calibrate_scales(Model(ODD), feed, CalibrationOptions(method), WantedScales(points=("x", "log")))
    assert caught.value.where == "log"
    table = calibrate_scales(Model(ODD), feed, CalibrationOptions(method), WantedScales(points=("x", "zero", "y")))
    assert {"x", "y"} <= set(table) and "zero" in table.all_zero and "log" not in table.all_zero


@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_nan_names_the_first_tensor_in_graph_order(method: str) -> None:
    proto = model("g (float[N, 4] x) => (float[N, 4] y) { a = Abs(x)  bad = Sqrt(x)  y = Add(bad, a) }")
    data = np.ones((3, 4), np.float32)
    data[2, 1] = -1
    with pytest.raises(QdqError, match=r"holds NaN \(batch from sample 2 on") as caught:
        table_of(data, method, proto=proto)
    assert caught.value.where == "bad"


def test_empty_tensor() -> None:
    proto = model(
        "g (float[N, 4] x) => (float[N, 0] y) <int64[1] a = {0}, int64[1] ax = {1}> { y = Slice(x, a, a, ax) }"
    )
    assert table_of(np.ones((1, 4), np.float32), proto=proto).unscaled == {"y": "has no elements"}


def test_behind_a_plugin() -> None:
    proto = model("g (float[N, 4] x) => (float[N, 4] y) { a = Abs(x)  y = Clever_TRT(a) }")
    table = table_of(np.ones((1, 4), np.float32), proto=proto)
    assert table.unscaled.keys() == {"y"} and table.unscaled["y"].startswith("after Clever_TRT")
    assert list(table) == ["x", "a"]


# ------------------------------------------------------------------ the doors


def test_path_adds_the_model_s_digest_and_no_place(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "m.onnx"
    path.write_bytes(NET.SerializeToString())
    np.savez(tmp_path / "d.npz", x=samples(3))
    table = calibrate(path, tmp_path / "d.npz")
    assert table.provenance.model_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert table.provenance.data == {"kind": "npz", "name": "d.npz", "batch": 1}
    assert str(tmp_path) not in table.to_json()


def test_wanted_tensors_only() -> None:
    feed = open_loader([{"x": samples(1)}], inputs_of(NET.graph))
    assert list(calibrate_scales(Model(NET), feed, wanted=WantedScales(["r"]))) == ["r"]


def test_plain_iterable_will_do() -> None:
    table = calibrate_scales(Model(NET), [{"x": samples(3)}, {"x": samples(2)}])
    assert table.facts_json() == {"method": "mse", "samples": 5}
    with pytest.raises(QdqError, match="no samples"):
        calibrate_scales(Model(NET), [])


def test_unknown_method_before_the_model_is_read() -> None:
    with pytest.raises(QdqError, match="--method"):
        calibrate("no_such_file.onnx", [], CalibrationOptions("mes"))


def test_run_failure_names_the_model(tmp_path: Path) -> None:
    proto = model("g (float[N, 2] a, float[M, 2] b) => (float[N, 2] y) { y = Add(a, b) }")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    data = [{"a": np.ones((2, 2), np.float32), "b": np.ones((3, 2), np.float32)}]
    with pytest.raises(QdqError, match="cannot run it") as caught:
        calibrate(path, data)
    assert caught.value.where == str(path)


def test_bar_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    table_of(samples(2))
    assert capsys.readouterr().err == ""
    calibrate(NET, [{"x": samples(2)}], CalibrationOptions(progress=True))
    captured = capsys.readouterr()
    assert "calibrate" in captured.err
    assert captured.out == ""


# ------------------------------------------------------------------ real models


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "zeros"),
    [("gtcrn", 1), ("bert_toy", 0), ("silero_vad_16k", 0), ("cifar_resnet20_bn", 0), ("rten_mnist_external", 0)],
)
def test_odd_models_get_their_scales(shared: Path, name: str, zeros: int) -> None:
    """Initial states of zeros, integer inputs, scalars and free axes, external data."""
    path = next(shared.glob(f"corpus/*/{name}.onnx"))
    inputs = inputs_of(onnx.load(path, load_external_data=False).graph)

    def load() -> Any:
        r = np.random.default_rng(0)
        for _ in range(2):
            item = {}
            for one in inputs:
                shape = [
                    d if isinstance(d, int) else (1 if k == 0 or one.name == "state" else 512)
                    for k, d in enumerate(one.shape or ())
                ]
                is_state = one.name == "state" or "cache" in one.name
                floats = np.zeros(shape, np.float32) if is_state else r.normal(size=shape).astype(np.float32)
                item[one.name] = floats if one.dtype.kind == "f" else np.full(shape, 16000 if one.name == "sr" else 1)
            if name == "bert_toy":
                item = {key: value[:, :16] for key, value in item.items()}
            yield item

    table = calibrate(path, load, CalibrationOptions("max" if name == "gtcrn" else ""))  # which has many tensors
    assert len(table) > 10
    assert (len([n for n in table.unscaled if "cache" in n]) >= zeros) or not zeros
    assert set(table.unscaled.values()) <= {"is all zero"}
