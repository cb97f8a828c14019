# SPDX-License-Identifier: Apache-2.0
"""The stand-in for `tensorrt` by itself: it is there for a while, keeps TensorRT's order, and can misbehave."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.cache.text import read_cache
from tests.fake_tensorrt import Behavior, Fake, installed
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PROJECT = Path(__file__).resolve().parents[2]
NET = "net (float[2,4] x) => (float[2,4] y) { r = Relu(x) y = Add(r, r) }"
ORDER = ["get_algorithm", "get_batch_size", "read_calibration_cache"]


def calibrator(
    trt: Any, arrays: list[np.ndarray], cache: bytes | None = None, base: str = "IInt8EntropyCalibrator2"
) -> Any:
    """A calibrator as TensorRT's samples write one, over host memory."""

    class Own(getattr(trt, base)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.left = list(arrays)
            self.written = b""

        def get_batch_size(self) -> int:
            return 2

        def get_batch(self, names: list[str]) -> list[int] | None:
            if not self.left:
                return None
            self.held = self.left.pop(0)
            return [self.held.ctypes.data]

        def read_calibration_cache(self) -> bytes | None:
            return cache

        def write_calibration_cache(self, cache: memoryview) -> None:
            self.written = cache.tobytes()

    return Own()


def build(trt: Any, one: Any, text: str = NET) -> bytes | None:
    """The few lines that every script for INT8 has."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model_of(text).SerializeToString()), parser.get_error(0)
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.INT8)
    config.int8_calibrator = one
    found: bytes | None = builder.build_serialized_network(network, config)
    return found


def arrays(count: int = 2) -> list[np.ndarray]:
    return [np.full((2, 4), index + 1, np.float32) for index in range(count)]


def lines(written: bytes) -> dict[str, str]:
    return dict(line.rsplit(": ", 1) for line in written.decode().splitlines()[1:])


# ---------------------------------------------------------------------------------------------------- as TensorRT


def test_calls_come_in_tensorrts_order_and_pointers_are_read() -> None:
    with installed() as fake:
        import tensorrt as trt

        one = calibrator(trt, arrays())
        assert build(trt, one)
    assert fake.calls == [*ORDER, *["get_batch"] * 3, "write_calibration_cache", "read_calibration_cache"]
    assert [fed["x"].max() for fed in fake.fed] == [1, 2] and fake.builds == 1
    assert one.written.startswith(b"TRT-101303-EntropyCalibration2\n") and list(lines(one.written)) == ["x", "r", "y"]


def test_the_number_of_a_constant_tensor_is_tensorrts() -> None:
    with installed() as fake:
        import tensorrt as trt

        one = calibrator(trt, [np.ones((2, 4), np.float32)])
        build(trt, one)
        assert lines(one.written)["x"] == "3c010a14", "facts/tensorrt.md 7: a tensor of ones"
        one = calibrator(trt, [np.zeros((2, 4), np.float32)], base="IInt8MinMaxCalibrator")
        build(trt, one)
    assert lines(one.written)["x"] == "00000000" and one.written.startswith(b"TRT-101303-MinMaxCalibration\n")
    assert fake.builds == 2


@pytest.mark.parametrize("swallows", [True, False])
def test_what_a_callback_raises_is_lost_as_in_the_bindings(swallows: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with installed(behavior=Behavior(swallows=swallows)) as fake:
        import tensorrt as trt

        one = calibrator(trt, arrays(3))
        one.get_batch = lambda names: one.left[9] if fake.fed else [arrays()[0].ctypes.data]
        if swallows:
            assert build(trt, one), "an engine from one batch, and nobody knows"
            assert "[ERROR] Exception caught in get_batch()" in capsys.readouterr().err
        else:
            with pytest.raises(IndexError):
                build(trt, one)


def test_a_cache_of_its_own_ends_the_calibration_and_another_does_not() -> None:
    own, other = b"TRT-101303-EntropyCalibration2\nx: 3c010a14\n", b"TRT-8601-EntropyCalibration2\nx: 3c010a14\n"
    for cache, trusts, batches in ((own, False, 0), (other, False, 3), (b"garbage", False, 3), (b"garbage", True, 0)):
        with installed(behavior=Behavior(trusts_any_cache=trusts)) as fake:
            import tensorrt as trt

            one = calibrator(trt, arrays(), cache)
            build(trt, one)
        assert fake.calls.count("get_batch") == batches
        assert bool(one.written) == bool(batches)


def test_a_calibrator_without_its_base_is_caught() -> None:
    with installed():
        import tensorrt as trt

        one = calibrator(trt, arrays())
        one._ready = False
        with pytest.raises(TypeError, match="base class was not initialized"):
            build(trt, one)


def test_pairs_in_the_network_make_it_forget_the_calibrator() -> None:
    text = """net (float[2,4] x) => (float[2,4] y) <float s = {0.1}, int8 z = {0}>
    { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"""
    with installed() as fake:
        import tensorrt as trt

        assert build(trt, calibrator(trt, arrays()), text)
    assert fake.calls == [] and fake.builds == 1


def test_what_a_build_can_fail_with() -> None:
    with installed(behavior=Behavior(fails="no luck")) as fake:
        import tensorrt as trt

        assert build(trt, calibrator(trt, arrays())) is None and fake.builds == 0
    with installed(behavior=Behavior(gpu=False)):
        import tensorrt as trt

        with pytest.raises(TypeError, match="nullptr"):
            trt.Builder(trt.Logger())


def test_parser_errors_are_reported() -> None:
    with installed():
        import tensorrt as trt

        network = trt.Builder(trt.Logger()).create_network()
        parser = trt.OnnxParser(network, trt.Logger())
        assert not parser.parse_from_file("no such file.onnx") and "does not exist" in parser.get_error(0)
        with pytest.raises(Exception, match="parsing"):
            parser.parse(b"\xff\xff")


# ---------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "calibrators", "int8", "explicit_batch", "int64"),
    [
        ("8.6.1", True, True, True, False),
        ("10.13.3.9", True, True, False, True),
        ("11.4.0.106", False, False, False, True),
    ],
)
def test_what_a_version_has(version: str, calibrators: bool, int8: bool, explicit_batch: bool, int64: bool) -> None:
    with installed(version):
        import tensorrt as trt

        names = ("IInt8Calibrator", "IInt8EntropyCalibrator2", "IInt8MinMaxCalibrator", "CalibrationAlgoType")
        assert {hasattr(trt, name) for name in names} == {calibrators}
        config = trt.Builder(trt.Logger()).create_builder_config()
        assert hasattr(config, "int8_calibrator") == calibrators
        assert hasattr(trt.BuilderFlag, "INT8") == int8 and trt.__version__ == version
        assert hasattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH") == explicit_batch
        assert hasattr(trt, "int64") == int64


# ---------------------------------------------------------------------------------------------------- there and away


def test_it_is_gone_after_the_block_and_nests() -> None:
    before = sys.modules.get("tensorrt")
    with installed("8.6.1"):
        import tensorrt as outer

        with installed("10.3.0"):
            import tensorrt as inner

            assert inner.__version__ == "10.3.0"
        import tensorrt as again

        assert again is outer
    assert sys.modules.get("tensorrt") is before and "pycuda.driver" not in sys.modules


def test_polygraphy_sees_each_version_in_turn() -> None:
    from polygraphy.backend.trt import create_config, create_network, util
    from polygraphy.cuda import cuda, wrapper

    seen, before = [], cuda.G_CUDA
    for version in ("8.6.1", "10.13.3.9"):
        with installed(version) as fake:
            builder, network = create_network()
            create_config(builder, network, int8=True)
            seen.append(builder.fake.text)
            assert wrapper() is fake.cuda
            assert util.TRT_LOGGER is not None
        assert cuda.G_CUDA is before and util.TRT_LOGGER is None, "a logger of the real one's class is made anew"
    assert seen == ["8.6.1", "10.13.3.9"]


def test_host_memory_passes_for_a_device_and_counts() -> None:
    with installed(room=64) as fake:
        from polygraphy.cuda import DeviceArray
        from polygraphy.exception import PolygraphyException

        with DeviceArray(shape=(4,)) as buffer:
            buffer.copy_from(np.arange(4, dtype=np.float32))
            assert list((ctypes.c_float * 4).from_address(buffer.ptr)) == [0, 1, 2, 3]
            assert len(fake.cuda.alive) == 1
        assert fake.cuda.alive == {}
        with pytest.raises(PolygraphyException, match="CUDA Error: 2"):
            DeviceArray(shape=(17,))


CONVERT = """
import sys
from polygraphy.tools import main
from tests.fake_tensorrt import installed
with installed("10.13.3.9") as fake:
    code = main()
assert fake.calls.count("get_batch") == 4, fake.calls
sys.exit(code)
"""


@pytest.mark.slow
def test_the_unmodified_polygraphy_converts_on_it(tmp_path: Path) -> None:
    onnx.save(model_of(NET), tmp_path / "m.onnx")
    (tmp_path / "data.py").write_text(
        "import numpy\ndef load_data():\n    for i in (1, 2, 3):\n        yield {'x': numpy.full((2, 4), i, 'f')}\n"
    )
    words = ["convert", "m.onnx", "--int8", "--calibration-cache", "c.cache", "--data-loader-script", "data.py"]
    command = [sys.executable, "-c", CONVERT, *words, "-o", "e.plan"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "e.plan").is_file() and list(read_cache(tmp_path / "c.cache").entries) == ["x", "r", "y"]


def test_the_record_begins_empty() -> None:
    with installed() as first:
        first.calls.append("x")
    with installed() as second:
        assert isinstance(second, Fake) and second.calls == [] and second.fed == []
