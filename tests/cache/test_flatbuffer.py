# SPDX-License-Identifier: Apache-2.0
"""The hand-written FlatBuffer: the package that defines the format reads it, and no damage breaks our reader."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cache.flatbuffer import read_pairs, write_pairs
from qdqtool.errors import QdqError

PAIRS = [("conv/Relu:0", "6.0"), ("input", "1.25"), ("é", "")]


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_a_damaged_flatbuffer_never_breaks_the_reader(place: int, patch: bytes) -> None:
    data = bytearray(write_pairs(PAIRS))
    place %= len(data)
    data[place : place + len(patch)] = patch
    try:
        read_pairs(bytes(data), "f")
    except QdqError as error:
        assert "\n" not in error.line()


def test_a_flatbuffer_whose_entries_share_one_long_text_is_refused() -> None:
    data = bytearray(write_pairs([("k" * 4000, "1")] * 200))
    first, count = 28 + 4 + 4 * 200, 200
    for index in range(1, count):  # let every entry point at the first one's key
        table = first + 12 * index
        key = first + 4 + struct.unpack_from("<I", data, first + 4)[0]
        struct.pack_into("<I", data, table + 4, (key - table - 4) % (1 << 32))
    with pytest.raises(QdqError):
        read_pairs(bytes(data[: first + 12 * count + 5000]), "f")


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=9)), max_size=6))
def test_the_flatbuffers_package_reads_ours(pairs: list[tuple[str, str]]) -> None:
    table = pytest.importorskip("onnxruntime.quantization.CalTableFlatBuffers.TrtTable")
    data = write_pairs([(k, v.encode("utf-8", "replace").decode()) for k, v in pairs])
    read = table.TrtTable.GetRootAs(data, 0)
    theirs = [(read.Dict(i).Key().decode(), read.Dict(i).Value().decode()) for i in range(read.DictLength())]
    assert theirs == read_pairs(data, "x")
    assert [key for key, _ in theirs] == [key for key, _ in pairs]
