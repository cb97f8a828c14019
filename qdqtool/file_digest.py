# SPDX-License-Identifier: Apache-2.0
"""The SHA-256 of a file's bytes, read piece by piece. Not what it is held against, nor digests of what is in memory."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from qdqtool.errors import QdqError

_PIECE = 1 << 20


def file_sha256(path: str | PathLike[str], todo: str = "") -> str:
    """The digest of a file, as 64 hexadecimal digits.

    Raises:
        QdqError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return sha256_of(file)
    except OSError as error:
        raise QdqError(path, f"cannot be read ({error.strerror})", todo) from error


def sha256_of(file: BinaryIO) -> str:
    """The digest of an open file from where it stands, as 64 hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()
