# SPDX-License-Identifier: Apache-2.0
"""How NVIDIA's bindings call a calibrator written in Python: what is raised in it is printed and lost."""

from __future__ import annotations

import sys
from typing import Any

from tests.fake_tensorrt.state import Callbacks, Fake


class PythonCallbacks:
    """Calls the methods of a calibrator object as the bindings' trampolines do."""

    def __init__(self, calibrator: Any, *, swallows: bool) -> None:
        self._calibrator, self._swallows = calibrator, swallows

    def algorithm(self) -> int:
        """What its base class is."""
        return int(self._call("get_algorithm") or 0)

    def batch_size(self) -> int:
        """What it says; TensorRT from 10 on takes no notice."""
        return int(self._call("get_batch_size") or 0)

    def batch(self, names: list[str]) -> list[int] | None:
        """Pointers, or None for an end or an exception: the bindings cannot tell them apart."""
        pointers = self._call("get_batch", list(names))
        if not pointers:
            return None
        if not all(isinstance(pointer, int) for pointer in pointers):
            raise TypeError(f"get_batch returned {pointers!r}, not device pointers as int")
        return list(pointers)

    def read_cache(self) -> bytes | None:
        """The bytes of a cache, or None."""
        found = self._call("read_calibration_cache")
        return None if found is None else bytes(found)

    def write_cache(self, text: bytes) -> None:
        """Hand the cache over as a memoryview."""
        self._call("write_calibration_cache", memoryview(text))

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._calibrator, name)(*arguments)
        except BaseException as error:
            if not self._swallows:
                raise
            sys.stderr.write(f"[ERROR] Exception caught in {name}(): {type(error).__name__}: {error}\n")
            return None


class Recorded:
    """Callbacks whose names go to the record of the stand-in."""

    def __init__(self, inner: Callbacks, fake: Fake) -> None:
        self._inner, self._fake = inner, fake

    def algorithm(self) -> int:
        """See `Callbacks`."""
        self._fake.calls.append("get_algorithm")
        return self._inner.algorithm()

    def batch_size(self) -> int:
        """See `Callbacks`."""
        self._fake.calls.append("get_batch_size")
        return self._inner.batch_size()

    def batch(self, names: list[str]) -> list[int] | None:
        """See `Callbacks`."""
        self._fake.calls.append("get_batch")
        return self._inner.batch(names)

    def read_cache(self) -> bytes | None:
        """See `Callbacks`."""
        self._fake.calls.append("read_calibration_cache")
        return self._inner.read_cache()

    def write_cache(self, text: bytes) -> None:
        """See `Callbacks`."""
        self._fake.calls.append("write_calibration_cache")
        self._inner.write_cache(text)
