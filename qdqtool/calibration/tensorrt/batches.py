# SPDX-License-Identifier: Apache-2.0
"""Batches on their way into TensorRT's callback, where an error is lost: here it is kept, and every batch is counted.

NVIDIA's bindings print what a callback raises and end the calibration; Polygraphy's calibrator takes its own errors for
the end of the data. Both then go on with the batches there were (facts/interfaces.md 1.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.calibration.tensorrt.device_memory import DeviceMemory, pointer_of
from qdqtool.calibration.tensorrt.log_capture import Said
from qdqtool.errors import QdqError

Array = npt.NDArray[Any]
Expected = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]

GUIDE = "run with -v, and see its messages"
_TODO = "give every batch the calibration shape"


class WatchedBatches:
    """What Polygraphy's calibrator takes its batches from.

    Attributes:
        error: what went wrong in a batch, None while nothing has.
        batches: how many were handed out.
        samples: how many samples were in them.
        ended: whether TensorRT asked until there were no more.
    """

    def __init__(
        self, batches: Iterable[Mapping[str, Any]], expected: Expected, place: DeviceMemory, where: str
    ) -> None:
        """Take batches that are walked when TensorRT asks for them."""
        self.error: BaseException | None = None
        self.batches = self.samples = 0
        self.ended = False
        self._source, self._expected, self._place, self._where = batches, expected, place, where

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Walk them once; an error ends the walk and stays in `error`."""
        try:
            for batch in self._source:
                ready, samples = self._ready(batch)
                self.batches += 1
                self.samples += samples
                yield ready
            self.ended = True
        except GeneratorExit:
            raise
        except BaseException as error:  # Ctrl-C too: the caller raises it again when the build is over
            self.error = error

    def raise_lost(self, said: Said) -> None:
        """Raise what was lost on the way through TensorRT.

        Raises:
            BaseException: the error of a batch, as it was.
            QdqError: TensorRT asked for no batch at all, or stopped before the last one; no batches.
        """
        if self.error is not None:
            raise self.error
        if not self.ended:
            reason = f"stopped calibrating at batch {self.batches}" if self.batches else "asked for no batch"
            detail = f" ({said.last})" if said.last else ""
            raise QdqError(self._where, f"TensorRT {reason}{detail}", GUIDE) from said.messages()
        if not self.batches:
            raise QdqError("data", "gives no samples", "calibration needs data")

    def _ready(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        missing = [name for name in self._expected if name not in batch]
        if missing:
            raise QdqError("data", f"holds nothing for the input {missing[0]!r}", "give every input")
        ready = {name: self._one(name, batch[name]) for name in self._expected}
        shape = next(iter(self._expected.values()))[1] if self._expected else ()
        return ready, shape[0] if shape else 1

    def _one(self, name: str, value: Any) -> Array | int:
        dtype = self._expected[name][0]
        pointer = pointer_of(value)
        if pointer is not None:
            self._check_device(name, value)
            return pointer
        array = np.asarray(value)
        self._check_shape(name, array.shape)
        with np.errstate(over="ignore"):
            cast = np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(array.shape)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise QdqError(name, f"holds NaN or Inf in batch {self.batches + 1}", "leave such samples out")
        if array.dtype != dtype and not np.array_equal(cast, array):
            raise QdqError(name, f"has values beyond {dtype}, which TensorRT's input is", f"save it as {dtype}")
        return self._place.put(name, cast)

    def _check_device(self, name: str, value: Any) -> None:
        """What a device array says of itself; a bare pointer is empty."""
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            return
        self._check_shape(name, tuple(interface["shape"]))
        dtype = self._expected[name][0]
        if np.dtype(interface["typestr"]) != dtype or interface.get("strides") is not None:
            reason = f"is {interface['typestr']} on the device; TensorRT needs contiguous {dtype}"
            raise QdqError(name, reason, f"make it contiguous and {dtype}")

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        wanted = self._expected[name][1]
        if tuple(shape) != wanted:
            reason = f"has the shape {list(shape)} in batch {self.batches + 1}, TensorRT calibrates at {list(wanted)}"
            raise QdqError(name, reason, _TODO)
