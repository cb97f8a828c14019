# SPDX-License-Identifier: Apache-2.0
"""How arrays get to the device: by the CUDA runtime, by pycuda, or as pointers that are there already."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqtool.calibration.tensorrt.device_memory import open_place, pointer_of
from qdqtool.errors import MissingPackageError, QdqError
from tests.fake_tensorrt import Fake, installed


@pytest.fixture
def fake() -> Iterator[Fake]:
    with installed() as one:
        yield one


def read(pointer: int, count: int) -> list[float]:
    return list((ctypes.c_float * count).from_address(pointer))


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_pycuda_keeps_one_buffer_per_input_which_grows(fake: Fake) -> None:
    driver: Any = sys.modules["pycuda.driver"]
    with open_place("pycuda") as place:
        assert driver.context.depth == 1
        first, other = place.put("x", values(1, 2)), place.put("z", values(3, 4))
        assert place.put("x", values(5, 6)) == first != other, "the buffer is used again"
        assert read(int(first), 2) == [5, 6] and read(int(other), 2) == [3, 4]
        grown = int(place.put("x", values(*range(100))))
        assert read(grown, 100) == list(range(100)) and len(fake.cuda.alive) == 2
        assert isinstance(place.put("x", values()), int)
    assert fake.cuda.alive == {} and (driver.context.depth, driver.context.retained) == (0, 0)


def test_pycuda_copies_what_lies_scattered(fake: Fake) -> None:
    with open_place("pycuda") as place:
        assert read(int(place.put("x", np.arange(6, dtype=np.float32)[::2])), 3) == [0, 2, 4]


def test_a_fault_in_the_middle_gives_everything_back(fake: Fake) -> None:
    driver: Any = sys.modules["pycuda.driver"]
    with pytest.raises(ZeroDivisionError), open_place("pycuda") as place:
        place.put("x", values(1))
        raise ZeroDivisionError
    assert fake.cuda.alive == {} and driver.context.depth == 0


def test_no_device_no_pycuda_no_runtime(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead() -> None:
        raise RuntimeError("cuInit failed: no CUDA-capable device is detected")

    monkeypatch.setattr("pycuda.driver.init", dead)
    with pytest.raises(QdqError, match=r"no CUDA-capable device") as caught, open_place("pycuda"):
        pass
    assert caught.value.exit_code == 2
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pycuda.driver", None)
        with pytest.raises(MissingPackageError, match=r"--cuda pycuda .*pip install .*--cuda cudart"):
            open_place("pycuda")

    def gone() -> None:
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr("polygraphy.cuda.wrapper", gone)
    with pytest.raises(MissingPackageError, match=r"libcudart: .*--cuda pycuda"):
        open_place("cudart")
    with pytest.raises(QdqError, match="cudart, pycuda"):
        open_place("opencl")


def test_cudart_leaves_arrays_to_polygraphy(fake: Fake) -> None:
    array = values(1, 2)
    with open_place("cudart") as place:
        assert place.put("x", array) is array
    assert fake.cuda.alive == {}


def test_pointers_of_every_library_and_none_of_host_memory() -> None:
    class Allocation:
        def __int__(self) -> int:
            return 4096

    class Cupy:
        __cuda_array_interface__ = {"data": (8192, False), "shape": (2,), "typestr": "<f4"}  # noqa: RUF012
        ptr = 1

    assert pointer_of(4096) == 4096
    assert pointer_of(Allocation()) == 4096
    assert pointer_of(SimpleNamespace(ptr=Allocation())) == 4096
    assert pointer_of(Cupy()) == 8192, "what tells most goes first"
    for host in (values(1), np.float32(1), np.array(5), True, None, "x", [1.0]):
        assert pointer_of(host) is None


@pytest.mark.gpu
def test_polygraphy_copies_to_a_device_by_the_real_cudart() -> None:
    """As its calibrator does with what `Cudart.put` leaves to it: a buffer for each input, an array copied into it."""
    cuda = pytest.importorskip("polygraphy.cuda", reason="polygraphy is not installed")
    polygraphy_error = pytest.importorskip("polygraphy.exception").PolygraphyException
    try:
        place = open_place("cudart").__enter__()
        buffer = cuda.DeviceArray(shape=(1, 3), dtype=np.float32)
    except (MissingPackageError, polygraphy_error) as error:
        pytest.skip(f"no CUDA runtime, or no device ({str(error).splitlines()[0]})")
    with buffer:
        array = place.put("x", values(1, 2, 3))
        buffer.copy_from(np.asarray(array, np.float32).reshape(1, 3))
        assert pointer_of(buffer) == int(buffer.ptr) > 0
        assert buffer.numpy().tolist() == [[1, 2, 3]]
    place.__exit__(None, None, None)


@pytest.mark.gpu
def test_the_real_pycuda_copies_to_a_device() -> None:
    driver = pytest.importorskip(
        "pycuda.driver", reason="pycuda is not installed, or finds no driver", exc_type=ImportError
    )
    try:
        place = open_place("pycuda").__enter__()
    except QdqError as error:
        pytest.skip(error.line())
    back = np.empty(3, np.float32)
    driver.memcpy_dtoh(back, int(place.put("x", values(1, 2, 3))))
    place.__exit__(None, None, None)
    assert back.tolist() == [1, 2, 3]
