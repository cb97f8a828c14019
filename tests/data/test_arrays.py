# SPDX-License-Identifier: Apache-2.0
"""Arrays read a few rows at a time: the same values as numpy reads, and damaged files refused by name."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from qdqtool.data.arrays import array_of_bytes, open_npy, open_npz
from qdqtool.errors import QdqError

BIG = 1 << 30


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
@pytest.mark.parametrize("compressed", [True, False])
def test_blocks_are_the_rows_in_order(tmp_path: Path, rows: int, compressed: bool) -> None:
    a, b = np.arange(42, dtype=np.float32).reshape(7, 2, 3), np.arange(7)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "d.npz", a=a, b=b)
    stored = open_npz(tmp_path / "d.npz", BIG)
    assert list(stored) == ["a", "b"]
    assert (stored["a"].shape, stored["a"].dtype) == (a.shape, a.dtype)
    for name, want in (("a", a), ("b", b)):
        blocks = list(stored[name].blocks(rows))
        assert [len(block) for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
        assert np.array_equal(np.concatenate(blocks), want)
        assert np.array_equal(stored[name].whole(), want)


def test_two_arrays_are_walked_side_by_side(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=np.arange(5), b=np.arange(5) * 10)
    stored = open_npz(tmp_path / "d.npz", BIG)
    pairs = [(int(a[0]), int(b[0])) for a, b in zip(stored["a"].blocks(1), stored["b"].blocks(1), strict=True)]
    assert pairs == [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40)]


def test_columns_first_and_scalars(tmp_path: Path) -> None:
    want = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "f.npy", want)
    np.savez(tmp_path / "s.npz", s=np.int64(16000))
    assert np.array_equal(np.concatenate(list(open_npy(tmp_path / "f.npy").blocks(3))), want)
    assert open_npz(tmp_path / "s.npz", BIG)["s"].whole() == 16000


def test_what_unpacks_to_too_much_is_refused_unread(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1_000_000, np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    with pytest.raises(QdqError, match="more than the 1000000 allowed; raise --max-data"):
        open_npz(tmp_path / "bomb.npz", 1_000_000)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(QdqError, match="holds objects"):
        open_npy(tmp_path / "o.npy")


def test_a_shape_that_the_bytes_do_not_hold(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10, 10), np.float32))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data.replace(b"(10, 10)", b"(90, 10)"))
    with pytest.raises(QdqError, match=r"claims shape \[90, 10\]"):
        open_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04" + bytes(60), b"\x93NUMPY\x09\x00"])
def test_files_of_another_kind(tmp_path: Path, data: bytes) -> None:
    for name, opened in (("d.npz", lambda p: open_npz(p, BIG)), ("d.npy", open_npy)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(QdqError, match="read as arrays") as caught:
            opened(tmp_path / name)
        assert caught.value.where == str(tmp_path / name)


def test_damage_inside_a_member_is_found_while_reading(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((64, 64), np.float32))
    data = bytearray(path.read_bytes())
    data[5000] ^= 0xFF  # the zip's checksum no longer holds
    path.write_bytes(bytes(data))
    stored = open_npz(path, BIG)["x"]
    with pytest.raises(QdqError, match="read as arrays"):
        list(stored.blocks(8))


def test_other_members_of_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("readme.txt", "hi")
    with pytest.raises(QdqError, match=r"'readme.txt' .*array"):
        open_npz(tmp_path / "d.npz", BIG)


def test_bytes_of_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6).reshape(2, 3))
    assert array_of_bytes(tmp_path, (tmp_path / "x.npy").read_bytes()).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(QdqError):
        array_of_bytes(tmp_path, b"\x93NUMPY")


def headed(header: bytes, data: bytes = b"") -> bytes:
    """The bytes of a .npy with any header."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), \n",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L,) \x00}",
        b"'''",
        b"(" * 5000,
        b"{'descr': [1, 2], 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': ('<f4', (-1,)), 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 0)}",
        b"{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}",
        b"{'descr': '<M8[s]', 'fortran_order': False, 'shape': ()}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        b"{'descr': {}, 'fortran_order': False, 'shape': (1,)}",
        b"{[]: 1}",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_damaged_header_is_one_line(tmp_path: Path, header: bytes, end: bytes) -> None:
    path = tmp_path / "d.npy"
    path.write_bytes(headed(header + end))
    with pytest.raises(QdqError) as caught:
        open_npy(path).whole()
    assert caught.value.exit_code == 2 and "\n" not in caught.value.line()


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_damaged_compression_is_one_line(tmp_path: Path, method: int) -> None:
    path, plain = tmp_path / "d.npz", tmp_path / "x.npy"
    np.save(plain, np.arange(4096, dtype=np.float32))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.write(plain, "x.npy")
    data = path.read_bytes()
    assert open_npz(path, BIG)["x"].whole()[9] == 9
    refused = 0
    for place in range(35, len(data) - 100, 97):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        with contextlib.suppress(QdqError):
            open_npz(path, BIG)["x"].whole()
            continue
        refused += 1
    assert refused > 5
