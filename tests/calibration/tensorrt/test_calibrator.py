# SPDX-License-Identifier: Apache-2.0
"""Every trap on the way to TensorRT's calibrator, sprung by the stand-in: each has an answer, which is held here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.calibration.tensorrt.backend import Request
from qdqtool.calibration.tensorrt.calibrator import TensorrtBackend
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from tests.calibration.tensorrt.backend_subjects import INDEXED, NET, Batch, batches, model
from tests.fake_tensorrt import Behavior, Fake, installed
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

V10 = "10.13.3.9"
OPEN = "net (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
WIDE = "net (float[2,4] x, float[2,4] z) => (float[2,4] y) { y = Add(x, z) }"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with installed(V10) as one:
        yield one


def request(text: str = NET, method: str = "entropy") -> Request:
    return Request(Model(model(text)), where="net", method=method)


def small(count: int = 2) -> list[Batch]:
    return batches(count, (2, 4))


def refused(*parts: str, text: str = NET, data: Any = None, **options: Any) -> QdqError:
    """Calibrating ends with one line that holds all the parts."""
    with pytest.raises(QdqError) as caught:
        TensorrtBackend(**options).calibrate(request(text), batches() if data is None else data)
    for part in parts:
        assert part in caught.value.line(), caught.value.line()
    return caught.value


# ---------------------------------------------------------------------------------------------------- lost errors


def test_a_batch_that_polygraphy_gives_up_on_is_not_the_end_of_the_data() -> None:
    with installed(V10, room=100) as fake:
        refused("TensorRT stopped calibrating at batch 1", "CUDA Error: 2")
    assert fake.calls.count("get_batch") == 1 and fake.builds == 1, "TensorRT itself went on"


def test_ctrl_c_in_a_callback_is_raised_after_the_build(fake: Fake) -> None:
    def interrupted() -> Iterator[Batch]:
        yield batches()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TensorrtBackend().calibrate(request(), interrupted())
    assert fake.builds == 1 and fake.cuda.alive == {}


def test_a_build_that_fails_because_of_a_batch_tells_of_the_batch() -> None:
    with installed(V10, Behavior(fails="Calibration failure occurred with no scaling factors detected.")):
        refused("holds nothing for the input 'x'", data=[{"z": batches()[0]["x"]}])


def test_a_build_that_fails_by_itself_tells_what_tensorrt_said() -> None:
    with installed(V10, Behavior(fails="Error Code 10: Could not find any implementation for node c1.")):
        refused("TensorRT cannot build it", "Could not find any implementation for node c1")


def test_a_network_that_asks_for_no_batch_is_an_error(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fake_tensorrt import builder

    monkeypatch.setattr(builder, "calibrate", lambda *_: None)
    refused("TensorRT asked for no batch")


@pytest.mark.parametrize("swallows", [True, False])
def test_the_bad_batch_is_named_with_its_shape(swallows: bool) -> None:
    data = [*small(), {"x": np.zeros((1, 4), np.float32)}]
    with installed(V10, Behavior(swallows=swallows)):
        refused("x: has the shape [1, 4] in batch 3", "[2, 4]", text=OPEN.replace("N", "2"), data=data)


# ---------------------------------------------------------------------------------------------------- caches


def test_a_cache_in_memory_is_never_given_and_always_asked_back(fake: Fake) -> None:
    found = TensorrtBackend().calibrate(request(), batches())
    assert fake.calls.count("read_calibration_cache") == 2 and fake.calls.count("get_batch") == 4
    assert found.cache is not None and found.cache.header == "TRT-101303-EntropyCalibration2"


@pytest.mark.parametrize(
    ("behavior", "parts"),
    [
        (Behavior(header="TRT-8601-EntropyCalibration2"), ("has the header TRT-8601", "TRT-101303-Entropy")),
        (Behavior(header="TRT-101303-MinMaxCalibration"), ("has the header TRT-101303-MinMax",)),
        (Behavior(header="garbage"), ("garbage", "is not the header of a calibration cache")),
        (Behavior(rename=lambda name: f"(Unnamed Layer* {name})"), ("names none of the 6 float tensors of net",)),
        (Behavior(rename=lambda name: f"{name}\n"), ("does not end in",)),
        (Behavior(writes_cache=False), ("TensorRT calibrated and wrote no cache",)),
    ],
    ids=["version", "algorithm", "header", "names", "line breaks", "nothing"],
)
def test_what_tensorrt_wrote_is_not_trusted_unseen(behavior: Behavior, parts: tuple[str, ...]) -> None:
    with installed(V10, behavior):
        refused(*parts)


def test_names_that_tensorrt_makes_up_stay_in_the_cache_alone() -> None:
    with installed(V10, Behavior(rename=lambda name: "(Unnamed Layer* 3) [Shuffle]_output" if name == "f" else name)):
        found = TensorrtBackend().calibrate(request(), batches())
    assert "f" not in found.table and found.table.unscaled.keys() == {"f"}
    assert found.cache is not None and "(Unnamed Layer* 3) [Shuffle]_output" in found.cache.entries


# ---------------------------------------------------------------------------------------------------- networks


QDQ = """net (float[2,4] x) => (float[2,4] y) <float s = {0.1}, int8 z = {0}>
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"""
HIDDEN = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> net (float[2,4] x) => (float[2,4] y) { y = own.F(x) }
<domain: "own", opset_import: ["" : 17]> F (x) => (y)
{ s = Constant<value_float = 0.5>() q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"""


def test_pairs_are_refused_before_and_hidden_ones_after_parsing(fake: Fake) -> None:
    with pytest.raises(QdqError, match=r"already has Q/DQ.*qdqtool peel"):
        TensorrtBackend().check(Request(Model(model_of(QDQ))))
    hidden = Request(Model(onnx.parser.parse_model(HIDDEN)), where="net")
    TensorrtBackend().check(hidden)
    with pytest.raises(QdqError, match=r"already has Q/DQ.*qdqtool peel"):
        TensorrtBackend().calibrate(hidden, small())
    assert fake.calls == [] and fake.builds == 0


def test_open_shapes_must_be_fixed(fake: Fake) -> None:
    refused("x: is [N, 4], and TensorRT calibrates at one fixed shape", "--shapes x:1x4", text=OPEN, data=small())
    assert fake.calls == []
    found = TensorrtBackend(shapes={"x": (2, 4)}).calibrate(request(OPEN), small())
    assert found.table.provenance.samples == 4 and fake.fed[0]["x"].shape == (2, 4)
    refused("takes [?, 4], not 2x5".replace("?", "N"), text=OPEN, shapes={"x": (2, 5)})
    profile = fake.config.get_calibration_profile()
    assert profile.get_shape("x") == [(2, 4)] * 3 and fake.config.num_optimization_profiles == 1


def test_an_input_that_is_a_shape_is_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fake_tensorrt.network import Tensor

    monkeypatch.setattr(Tensor, "is_shape_tensor", True)
    original = Tensor.__init__

    def shape(self: Tensor, name: str, dtype: Any, sides: tuple[int, ...]) -> None:
        original(self, name, dtype, sides, True)

    monkeypatch.setattr(Tensor, "__init__", shape)
    refused("x: is a shape tensor, whose values would decide")


def test_a_file_is_parsed_from_its_place_with_its_external_data(fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(NET), path, save_as_external_data=True, location="m.data", size_threshold=0)
    opened = open_model(path)
    from_file = TensorrtBackend().calibrate(Request(opened, str(path)), batches())
    assert from_file.written == TensorrtBackend().calibrate(request(), batches()).written
    with pytest.raises(QdqError, match=r"external data, .*TensorRT"):
        TensorrtBackend().check(Request(Model(opened.proto, opened.folder)))


def test_a_model_that_the_parser_refuses_is_reported_in_its_words(fake: Fake, tmp_path: Path) -> None:
    good, bad = request(), tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model")
    with pytest.raises(QdqError, match=r"bad.onnx: TensorRT's parser refuses it \(In node -1: .+\)"):
        TensorrtBackend().calibrate(Request(replace(good.model, path=bad), "bad.onnx"), batches())


def test_no_gpu_is_reported_in_one_line() -> None:
    with installed(V10, Behavior(gpu=False)):
        refused("does not start a builder (CUDA initialization failure with error: 35)", "nvidia-smi")


# ---------------------------------------------------------------------------------------------------- what is passed on


@pytest.mark.parametrize(
    ("method", "base", "algo"),
    [
        ("entropy", "IInt8EntropyCalibrator2", "ENTROPY_CALIBRATION_2"),
        ("max", "IInt8MinMaxCalibrator", "MINMAX_CALIBRATION"),
    ],
)
def test_class_and_algorithm_are_said_and_no_cache_is(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, method: str, base: str, algo: str
) -> None:
    import polygraphy.backend.trt as theirs
    import tensorrt

    given: dict[str, Any] = {}
    make = theirs.Calibrator

    def spy(batches: Any, **options: Any) -> Any:
        given.update(options)
        return make(batches, **options)

    monkeypatch.setattr(theirs, "Calibrator", spy)
    TensorrtBackend().calibrate(request(method=method), batches())
    assert given["BaseClass"] is getattr(tensorrt, base) and given["cache"] is None
    assert given["algo"] is getattr(tensorrt.CalibrationAlgoType, algo)


def test_the_gpu_gets_int8_alone(fake: Fake) -> None:
    TensorrtBackend().calibrate(request(), batches())
    assert fake.config.flags == {"INT8"} and fake.config.DLA_core == -1


def test_the_dla_gets_its_device_type_and_the_flags_of_its_version() -> None:
    with installed("10.3.0", Behavior(dla_cores=2)) as fake:
        TensorrtBackend(target="dla").calibrate(request(), batches())
    assert fake.config.default_device_type.name == "DLA" and fake.config.DLA_core == 0
    assert fake.config.flags == {"INT8", "FP16", "GPU_FALLBACK", "PREFER_PRECISION_CONSTRAINTS"}


def test_a_machine_without_a_dla_is_reported(fake: Fake) -> None:
    refused("this machine has no DLA", target="dla")
    assert fake.calls == []


def test_numbers_come_as_tensorrt_takes_them() -> None:
    data = [{**one, "at": np.array([3, 1, 2])} for one in small()]
    for version, kind in (("8.6.1", np.int32), (V10, np.int64)):
        with installed(version) as fake:
            TensorrtBackend().calibrate(request(INDEXED), data)
        assert fake.fed[0]["at"].dtype == kind and fake.fed[0]["x"].dtype == np.float32
    half = "net (float16[2,4] x) => (float[2,4] y) { y = Cast<to=1>(x) }"
    with installed(V10) as fake:
        TensorrtBackend().calibrate(request(half), [{"x": small()[0]["x"].astype(np.float16)}])
    assert fake.fed[0]["x"].dtype == np.float32
    with installed("8.6.1"):
        far = [{**small()[0], "at": np.array([1 << 40, 1, 2])}]
        refused("at: has values beyond int32", text=INDEXED, data=far)


# ---------------------------------------------------------------------------------------------------- pointers


class View:
    """A buffer that says where it is, in one of the ways there are."""

    def __init__(self, array: np.ndarray, way: str) -> None:
        self.kept = array
        if way == "ptr":
            self.ptr = array.ctypes.data
        elif way == "interface":
            self.__cuda_array_interface__ = array.__array_interface__
        self.way = way


class Number(View):
    def __int__(self) -> int:
        return int(self.kept.ctypes.data)


def test_device_pointers_go_through_untouched(fake: Fake) -> None:
    arrays = [one["x"] for one in small(4)]
    data = [
        {"x": arrays[0].ctypes.data},
        {"x": View(arrays[1], "ptr")},
        {"x": View(arrays[2], "interface")},
        {"x": Number(arrays[3], "int")},
    ]
    for cuda in ("cudart", "pycuda"):
        fake.fed.clear()
        found = TensorrtBackend(cuda=cuda).calibrate(request(OPEN.replace("N", "2")), data)
        assert [fed["x"].tolist() for fed in fake.fed] == [array.tolist() for array in arrays]
        assert found.table.provenance.samples == 8


def test_a_device_array_that_tells_its_shape_is_held_to_it(fake: Fake) -> None:
    text = OPEN.replace("N", "2")
    wrong = [{"x": View(np.zeros((2, 5), np.float32), "interface")}]
    refused("x: has the shape [2, 5] in batch 1", text=text, data=wrong)
    for gap in (np.zeros((2, 4)), np.zeros((2, 8), np.float32)[:, ::2]):
        refused("needs contiguous float32", text=text, data=[{"x": View(gap, "interface")}])


def test_inputs_of_one_batch_have_buffers_of_their_own(fake: Fake) -> None:
    data = [{"x": one["x"], "z": -one["x"]} for one in small()]
    for cuda in ("cudart", "pycuda"):
        fake.fed.clear()
        TensorrtBackend(cuda=cuda).calibrate(request(WIDE), data)
        assert all(np.array_equal(fed["x"], -fed["z"]) and fed["x"].any() for fed in fake.fed)
    assert fake.cuda.alive == {}


# ---------------------------------------------------------------------------------------------------- quiet


def test_nothing_reaches_stdout_and_nothing_is_installed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from polygraphy import config
    from polygraphy.logger import G_LOGGER

    monkeypatch.setattr(config, "AUTOINSTALL_DEPS", True)
    monkeypatch.setenv("POLYGRAPHY_AUTOINSTALL_DEPS", "1")
    before = (G_LOGGER.use_python_logging_system, G_LOGGER.colors, G_LOGGER.letter)
    seen = []

    def data() -> Iterator[Batch]:
        seen.append((config.AUTOINSTALL_DEPS, os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"]))
        print("a loader that prints")
        ctypes.CDLL(None).puts(b"a library that prints")
        yield from batches()

    with installed(V10, Behavior(says="[I] [TRT] Calibrated batch 0 in 0.1 seconds.\n")):
        TensorrtBackend().calibrate(request(), data())
    said = capfd.readouterr()
    assert said.out == "" and seen == [(False, "0")]
    for line in ("Calibrated batch 0", "a loader that prints", "a library that prints"):
        assert line in said.err
    assert config.AUTOINSTALL_DEPS and os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"] == "1"
    assert (G_LOGGER.use_python_logging_system, G_LOGGER.colors, G_LOGGER.letter) == before
    print("stdout is back")
    assert capfd.readouterr().out == "stdout is back\n"
