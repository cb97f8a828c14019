# SPDX-License-Identifier: Apache-2.0
"""The digest of a file: that of its bytes, however many pieces they are read in; one line where there is none."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from qdqtool import file_digest
from qdqtool.errors import QdqError
from qdqtool.file_digest import file_sha256


@pytest.mark.parametrize("content", [b"", b"one", b"three pieces"])
def test_it_is_that_of_the_bytes(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "_PIECE", 5)
    (tmp_path / "f").write_bytes(content)
    assert file_sha256(tmp_path / "f") == file_sha256(str(tmp_path / "f")) == hashlib.sha256(content).hexdigest()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"gone: .*\(No such file or directory\); copy it"):
        file_sha256(tmp_path / "gone", "copy it")
    with pytest.raises(QdqError, match=r"cannot be read \(Is a directory\)$"):
        file_sha256(tmp_path)
