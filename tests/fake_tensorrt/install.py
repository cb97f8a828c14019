# SPDX-License-Identifier: Apache-2.0
"""Putting the stand-in where `import tensorrt` finds it, and taking it away again; Polygraphy is told each time."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from qdqtool.trtversion import TrtVersion
from tests.fake_tensorrt.callbacks import PythonCallbacks
from tests.fake_tensorrt.cuda import pycuda_modules
from tests.fake_tensorrt.module import IInt8Calibrator, make_module
from tests.fake_tensorrt.state import Behavior, Callbacks, Fake

_NAME = "tensorrt"


@contextlib.contextmanager
def installed(
    version: str = "10.13.3.9",
    behavior: Behavior | None = None,
    *,
    calibrators: ModuleType | None = None,
    callbacks: Callable[[Any], Callbacks] | None = None,
    room: int | None = None,
) -> Iterator[Fake]:
    """Let `import tensorrt`, `import pycuda.driver` and Polygraphy's CUDA be stand-ins while the block runs.

    Args:
        version: which TensorRT is played, such as 8.6.1, 10.13.3.9 or 11.4.0.106.
        behavior: how it behaves; None for TensorRT's ways.
        calibrators: a module whose calibrator classes are shown instead of the stand-in's own.
        callbacks: makes the C++ side of a calibrator; None calls its Python methods.
        room: bytes that the device can give at once; None for any number.

    Yields:
        What it was told and what was done to it.
    """
    behavior = behavior or Behavior()
    swallows = behavior.swallows

    def python(calibrator: Any) -> Callbacks:
        if not getattr(calibrator, "_ready", False) and isinstance(calibrator, IInt8Calibrator):
            raise TypeError("the calibrator's base class was not initialized, which crashes TensorRT")
        return PythonCallbacks(calibrator, swallows=swallows)

    numbers = ".".join(version.split(".")[:3])
    fake = Fake(TrtVersion.parse(numbers), version, behavior, callbacks or python)
    fake.cuda.room = room
    modules = {_NAME: make_module(fake, calibrators), **pycuda_modules(fake.cuda)}
    with _modules(modules), _polygraphy(fake):
        yield fake


@contextlib.contextmanager
def _modules(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Modules in the place of those that were there, and of what lies below them."""
    roots = {name.split(".")[0] for name in modules}
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in roots}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(before)


@contextlib.contextmanager
def _polygraphy(fake: Fake) -> Iterator[None]:
    """Polygraphy without the TensorRT and the CUDA that it may know already, then without these."""
    from polygraphy.cuda import cuda

    before = cuda.G_CUDA
    _forget()
    cuda.G_CUDA = fake.cuda
    try:
        yield
    finally:
        cuda.G_CUDA = before
        _forget()


def _forget() -> None:
    """Take back what Polygraphy keeps of a TensorRT: its lazy imports of it, and the logger made from its class."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("polygraphy"):
            continue
        for value in _lazy_imports(module):
            if getattr(vars(value).get("module"), "__name__", "") == _NAME:
                vars(value)["module"] = None
        if name == "polygraphy.backend.trt.util":
            module.__dict__["TRT_LOGGER"] = None


@functools.cache
def _lazy_imports(module: ModuleType) -> tuple[Any, ...]:
    """Polygraphy's lazy imports in a module, which has all of them once it is imported."""
    return tuple(value for value in vars(module).values() if type(value).__name__ == "LazyModule")
