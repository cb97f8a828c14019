# SPDX-License-Identifier: Apache-2.0
"""Runs an engine with the TensorRT that is installed, by Polygraphy's runner. Needs its GPU. Builds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.calibration.tensorrt.installed import load_tensorrt
from qdqtool.calibration.tensorrt.log_capture import Said, quiet_polygraphy
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.runtime.installed import one_line

Array = npt.NDArray[Any]
_TODO = "an engine runs where it was built: with that TensorRT, on that kind of GPU"


class RunningEngine:
    """An engine on this machine's GPU."""

    def __init__(self, path: Path) -> None:
        from polygraphy.backend.trt import EngineFromBytes, TrtRunner
        from polygraphy.exception import PolygraphyException

        _, self.version, _ = load_tensorrt("an engine runs on it alone; evaluate --cache simulates on a CPU")
        self.path = path
        self.last_seconds = 0.0
        try:
            data = path.read_bytes()
        except OSError as error:
            raise QdqError(path, f"cannot be read ({error.strerror})", "give the file of an engine") from error
        with quiet_polygraphy() as said:
            try:
                self._runner = TrtRunner(EngineFromBytes(data))
                self._runner.activate()
                metadata = self._runner.get_input_metadata(use_numpy_dtypes=False)
            except (PolygraphyException, RuntimeError, TypeError) as error:
                raise QdqError(
                    path, f"TensorRT {self.version} cannot load it ({_reason(said, error)})", _TODO
                ) from error
        self.inputs = tuple(_input(name, one) for name, one in metadata.items())

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of one batch, by name.

        Raises:
            QdqError: shapes that no profile of the engine takes.
        """
        from polygraphy.exception import PolygraphyException

        with quiet_polygraphy() as said:
            try:
                found = self._runner.infer(dict(feed))
            except (PolygraphyException, RuntimeError, TypeError) as error:
                reason = f"TensorRT does not run it on this batch ({_reason(said, error)})"
                raise QdqError(self.path, reason, "give --batch and images of a size that it was built for") from error
        self.last_seconds = float(self._runner.last_inference_time())
        return {name: np.array(value) for name, value in found.items()}

    def close(self) -> None:
        """Give the GPU's memory back."""
        with quiet_polygraphy():
            self._runner.deactivate()


def open_engine(path: str | Path) -> RunningEngine:
    """Load an engine and make it ready.

    Raises:
        MissingPackageError: TensorRT is not installed.
        QdqError: it cannot be read, or TensorRT does not load it.
    """
    return RunningEngine(Path(path))


def _reason(said: Said, error: Exception) -> str:
    return said.last or one_line(error)


def _input(name: str, metadata: Any) -> Input:
    from polygraphy.datatype import DataType

    sides = tuple(side if isinstance(side, int) and side >= 0 else None for side in metadata.shape)
    return Input(name, sides, np.dtype(DataType.to_dtype(metadata.dtype, "numpy")))
