# SPDX-License-Identifier: Apache-2.0
"""Polygraphy's inputs as JSON: byte for byte what its own writer writes, and read as its own reader reads."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.json_inputs import JsonInputs, write_json_inputs
from qdqtool.data.loader import DataOptions, Input, open_loader
from qdqtool.data.polygraphy_loader import read_json
from qdqtool.errors import QdqError

INPUTS = [Input("x", (None, 3), np.dtype(np.float32))]
LIMIT = 1 << 20


def samples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    values = np.random.default_rng(seed)
    return [{"x": values.normal(size=(1, 3)).astype(np.float32)} for _ in range(count)]


def odd() -> list[dict[str, Any]]:
    """Every kind of array that inputs may be."""
    values = np.random.default_rng(5)
    return [
        {
            "half": values.normal(size=(2, 3)).astype(np.float16),
            "fortran": np.asfortranarray(values.normal(size=(3, 4))),
            "strided": np.arange(24, dtype=np.int64).reshape(4, 6)[::2, 1::2],
            "scalar": np.array(7, np.int32),
            "empty": np.zeros((0, 5), np.float32),
            'quoted "é"/:0': np.array([[True, False]]),
            "big": np.array([1, 2], ">f4"),
        },
        {"half": np.full((1, 1), np.inf, np.float16)},
    ]


def same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for name, array in other.items():
            assert (one[name].dtype, one[name].shape) == (array.dtype, array.shape), name
            assert one[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("items", [samples(3), odd(), samples(1), []], ids=["three", "odd", "one", "none"])
def test_bytes_are_those_of_polygraphy(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    polygraphy = pytest.importorskip("polygraphy.json")
    polygraphy.save_json(items, str(tmp_path / "theirs.json"))
    assert write_json_inputs(tmp_path / "ours.json", items) == len(items)
    assert (tmp_path / "ours.json").read_bytes() == (tmp_path / "theirs.json").read_bytes()
    same(polygraphy.load_json(str(tmp_path / "ours.json")), items)


@pytest.mark.parametrize("items", [samples(3), odd()], ids=["three", "odd"])
def test_file_and_folder_read_back(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    write_json_inputs(tmp_path / "file.json", items)
    same(read_json(tmp_path / "file.json", LIMIT), items)
    assert write_json_inputs(tmp_path / "folder", items) == len(items)
    files = JsonInputs((tmp_path / "folder",)).files()
    assert [file.name for file in files] == [f"{index:010d}.json" for index in range(len(items))]
    same([sample for file in files for sample in read_json(file, LIMIT)], items)


def test_folder_is_that_of_polygraphy(tmp_path: Path) -> None:
    serde = pytest.importorskip("polygraphy.json.serde")
    comparator = pytest.importorskip("polygraphy.comparator")
    with serde.IterationWriter(str(tmp_path / "theirs")) as writer:
        for item in samples(3):
            writer.append(item)
    write_json_inputs(tmp_path / "ours", samples(3))
    ours, theirs = (sorted((tmp_path / name).iterdir()) for name in ("ours", "theirs"))
    assert [(file.name, file.read_bytes()) for file in ours] == [(file.name, file.read_bytes()) for file in theirs]
    same(list(comparator.StreamingDataLoader(str(tmp_path / "ours"))), samples(3))


def test_several_paths_are_chained_in_order_as_polygraphy_does(tmp_path: Path) -> None:
    comparator = pytest.importorskip("polygraphy.comparator")
    write_json_inputs(tmp_path / "z.json", samples(2, seed=1))
    write_json_inputs(tmp_path / "a", samples(2, seed=2))
    write_json_inputs(tmp_path / "m.txt", samples(1, seed=3))
    (tmp_path / "a" / ".hidden.json").write_text("broken")
    (tmp_path / "a" / "notes.md").write_text("broken")
    paths = (tmp_path / "z.json", tmp_path / "a", tmp_path / "m.txt")
    feed = open_loader(JsonInputs(paths), INPUTS)
    same(list(feed), list(comparator.StreamingDataLoader([str(path) for path in paths])))
    same(list(feed), [*samples(2, seed=1), *samples(2, seed=2), *samples(1, seed=3)])
    assert feed.description == {"kind": "json", "batch": 1}


def test_one_file_is_what_data_names(tmp_path: Path) -> None:
    write_json_inputs(tmp_path / "in.json", samples(4))
    write_json_inputs(tmp_path / "in", samples(4))
    spelled = [JsonInputs((tmp_path / "in.json",)), tmp_path / "in.json", str(tmp_path / "in.json"), tmp_path / "in"]
    feeds = [open_loader(data, INPUTS, DataOptions(batch=2)) for data in spelled]
    assert [len(batch["x"]) for batch in feeds[0]] == [2, 2]
    assert feeds[0].description == feeds[1].description == {"kind": "json", "name": "in.json", "batch": 2}
    for feed in feeds[1:]:
        same(list(feed), list(feeds[0]))


def test_an_older_mark_is_read(tmp_path: Path) -> None:
    constants = pytest.importorskip("polygraphy.constants")
    serde = pytest.importorskip("polygraphy.json")
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3, dtype=np.float32))
    array = {
        "array": base64.b64encode(buffer.getvalue()).decode(),
        "__polygraphy_encoded_ndarray": constants.LEGACY_TYPE_MARKER,
    }
    (tmp_path / "old.json").write_text(json.dumps([{"x": array}]))
    same(read_json(tmp_path / "old.json", LIMIT), serde.load_json(str(tmp_path / "old.json")))


def test_a_fault_in_the_data_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("before")

    def broken() -> Iterator[Any]:
        yield from samples(2)
        yield {"x": "text"}

    with pytest.raises(QdqError, match="input 'x' of sample 2 "):
        write_json_inputs(tmp_path / "in.json", broken())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("in.json", "before")]


def test_items_are_written_as_they_come(tmp_path: Path) -> None:
    """Each item is on the disk before the next one is asked for; all of them arrive together."""
    held: list[int] = []

    def watched() -> Iterator[dict[str, Any]]:
        for item in samples(3):
            held.append(len(list(tmp_path.glob(".qdqtool-*.tmp/*.json"))))
            yield item

    write_json_inputs(tmp_path / "out", watched())
    assert held == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list(tmp_path.glob("out/*.json"))) == 3


def test_places_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.json").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, part in (("full", "something in it"), ("file", "is a file"), ("no/where", "cannot be made")):
        with pytest.raises(QdqError, match=part) as caught:
            write_json_inputs(tmp_path / name, samples(1))
        assert caught.value.where == str(tmp_path / name)
    assert (tmp_path / "full" / "mine.json").read_text() == (tmp_path / "file").read_text() == "mine"
    with pytest.raises(QdqError, match=r"in\.json: .*folder"):
        write_json_inputs(tmp_path / "no" / "in.json", samples(1))


def test_paths_without_inputs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, part in (("empty", "holds no .json"), ("no.json", "does not exist")):
        with pytest.raises(QdqError, match=part) as caught:
            open_loader(JsonInputs((tmp_path / name,)), INPUTS)
        assert caught.value.where == str(tmp_path / name)
