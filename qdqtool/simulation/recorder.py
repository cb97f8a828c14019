# SPDX-License-Identifier: Apache-2.0
"""Arrays to a .npz while batches pass: rows go to temporary files, nothing stays in memory. Not what they mean."""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError

Array = npt.NDArray[Any]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same arrays, the same bytes


class Recorder:
    """One array per name, its rows one batch after the other along the first axis."""

    def __init__(self) -> None:
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Take one batch in; a scalar counts as one row.

        Raises:
            QdqError: the rows of an array have another shape or type than before.
        """
        for name, array in arrays.items():
            rows = np.atleast_1d(array)
            kind = rows.dtype, rows.shape[1:]
            if name not in self._files:
                self._files[name] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
                self._kinds[name], self._rows[name] = kind, 0
            if kind != self._kinds[name]:
                before, now = ([*map(str, shape)] for shape in (self._kinds[name][1], kind[1]))
                reason = (
                    f"its rows are [{', '.join(now)}], those before [{', '.join(before)}]: one array cannot hold them"
                )
                raise QdqError(name, reason, "record inputs of one size, or one sample with --limit 1")
            self._rows[name] += len(rows)
            self._files[name].write(np.ascontiguousarray(rows).tobytes())

    def write(self, file: BinaryIO) -> None:
        """The archive, as `numpy.load` reads it."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, rows in self._files.items():
                dtype, shape = self._kinds[name]
                head = io.BytesIO()
                facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(head, {**facts, "shape": (self._rows[name], *shape)})
                rows.seek(0)
                with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as member:
                    member.write(head.getvalue())
                    shutil.copyfileobj(rows, member, 1 << 20)
