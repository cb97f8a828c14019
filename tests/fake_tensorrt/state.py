# SPDX-License-Identifier: Apache-2.0
"""What a stand-in is told to do, and what was done to it. Nothing of TensorRT's interface is here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdqtool.trtversion import TrtVersion
from tests.fake_tensorrt.cuda import HostCuda


@dataclass(frozen=True)
class Behavior:
    """How the stand-in behaves; the defaults are TensorRT's ways as far as they are known.

    Attributes:
        swallows: an exception in a callback is printed and ends the calibration, as in the bindings; else it is raised.
        trusts_any_cache: whatever `read_calibration_cache` gives ends the calibration; else only a cache with its own
            header does, and any other is calibrated anew.
        writes_cache: whether `write_calibration_cache` is called.
        header: the first line of the cache that it writes, "" for its own.
        rename: what the cache calls a tensor.
        gpu: without one no builder starts.
        dla_cores: how many the machine has.
        fails: what the build fails with after calibrating, "" for a build that succeeds.
        says: what it writes to the process's stdout, below Python, while it builds.
        loads: whether its runtime loads the engine that it built.
    """

    swallows: bool = True
    trusts_any_cache: bool = False
    writes_cache: bool = True
    header: str = ""
    rename: Callable[[str], str] = str
    gpu: bool = True
    dla_cores: int = 0
    fails: str = ""
    says: str = ""
    loads: bool = True


class Callbacks(Protocol):
    """The C++ side of one calibrator: how the builder calls it."""

    def algorithm(self) -> int:
        """A number of `CalibrationAlgoType`."""
        ...

    def batch_size(self) -> int:
        """What it says, of which nobody takes notice."""
        ...

    def batch(self, names: list[str]) -> list[int] | None:
        """Pointers to the next batch in the order of names, None at the end."""
        ...

    def read_cache(self) -> bytes | None:
        """The cache that it has, None for none."""
        ...

    def write_cache(self, text: bytes) -> None:
        """Hand it the cache that was made."""
        ...


@dataclass
class Fake:
    """One stand-in while it is installed.

    Attributes:
        version: which TensorRT it plays.
        text: its `__version__`.
        behavior: what it was told.
        callbacks: makes the C++ side of a calibrator.
        calls: the callbacks that it called, in order.
        fed: the batches it read, input name -> a copy of the array.
        written: the last cache that it handed over.
        config: the configuration of the last build.
        network: what it was built from.
        builds: how many engines were built.
        cuda: the host memory that passes for a device.
    """

    version: TrtVersion
    text: str
    behavior: Behavior
    callbacks: Callable[[Any], Callbacks]
    calls: list[str] = field(default_factory=list)
    fed: list[dict[str, npt.NDArray[np.generic]]] = field(default_factory=list)
    written: bytes = b""
    config: Any = None
    network: Any = None
    builds: int = 0
    cuda: HostCuda = field(default_factory=HostCuda)
