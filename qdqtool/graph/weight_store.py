# SPDX-License-Identifier: Apache-2.0
"""A temporary file for the large weights that edits write: protobuf gives back no memory of one that is replaced.

A tensor whose value lies there is as one that was left in its model's file (`model_file.py`), in all that reads, copies
and writes models.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdqtool.graph.model_file import forget_file, leave_in_file, own_file

_LEAST_BYTES = 1 << 20  # smaller weights stay in the model
_MOST_BYTES = 0x7FFFF000  # that the system reads at once


class WeightStore:
    """A temporary file of weights; it goes with the store, and with the process however that ends."""

    def __init__(self) -> None:
        self._token = ""  # of the file, once there is one
        self._number, self._end = -1, 0  # its descriptor, its bytes

    def put(self, tensor: TensorProto, value: npt.NDArray[Any]) -> bool:
        """Let a tensor have a value that lies in the file.

        Args:
            tensor: without a value; name, type and shape are the caller's.
            value: in C order, little-endian.
        """
        if not _LEAST_BYTES <= value.nbytes < _MOST_BYTES or value.dtype.kind not in "fiu" or os.name != "posix":
            return False
        try:
            self._token = self._token or self._open()
            begin, left = self._end, value.reshape(-1).view(np.uint8).data
            while left:
                many = os.pwrite(self._number, left, self._end)
                self._end, left = self._end + many, left[many:]
        except OSError:  # no room; memory will do
            return False
        leave_in_file(tensor, self._token, begin, value.nbytes)
        return True

    def _open(self) -> str:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the store is
        self._number = file.fileno()
        token = own_file(self._number)
        weakref.finalize(self, _close, file, token)
        return token


def _close(file: IO[bytes], token: str) -> None:
    forget_file(token)
    file.close()
