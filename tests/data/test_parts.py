# SPDX-License-Identifier: Apache-2.0
"""Parts of data: every sample is in one of them, by what it holds, whatever its order, name or batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data import sources
from qdqtool.data.loader import DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.data.options import DataPart, parse_part
from qdqtool.data.parts import cut_parts, items_in_part, sample_digest, samples_in
from qdqtool.data.sources import digests_of, open_source
from qdqtool.errors import QdqError

FREE = (Input("x", (None, 4), np.dtype("float32")),)
FIXED = (Input("x", (2, 4), np.dtype("float32")),)
HALVES = (DataPart("", "8"), DataPart("8", ""))


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def taken(data: Any, part: DataPart, inputs: tuple[Input, ...] = FREE, **more: Any) -> np.ndarray[Any, Any]:
    """All rows of a part, as the loader gives them."""
    return np.concatenate([batch["x"] for batch in open_loader(data, inputs, DataOptions(part=part, **more))])


def test_every_sample_is_in_one_part() -> None:
    data = rows(40)
    found = np.concatenate([taken(data, part) for part in HALVES])
    assert sorted(map(tuple, found)) == sorted(map(tuple, data))
    assert 0 < len(taken(data, HALVES[0])) < 40


def test_the_order_and_the_batch_of_the_data_do_not_matter() -> None:
    data = rows(24)
    want = sorted(map(tuple, taken(data, HALVES[0])))
    assert sorted(map(tuple, taken(data[::-1], HALVES[0]))) == want

    def batches() -> list[dict[str, Any]]:
        return [{"x": data[start : start + 5]} for start in range(0, 24, 5)]

    assert sorted(map(tuple, taken(batches, HALVES[0]))) == want
    assert sorted(map(tuple, taken(data, HALVES[0], batch=3))) == want


def test_equal_samples_are_in_one_part() -> None:
    twice = np.concatenate([rows(10), rows(10)])
    parts = cut_parts(digests_of(open_source(twice, FREE, None, 1 << 20), FREE), (0.5, 0.5), (99, 99))
    sets = [{row.tobytes() for row in taken(twice, part)} for part, _ in parts]
    assert not sets[0] & sets[1] and len(sets[0] | sets[1]) == 10


def test_a_fixed_batch_is_filled_with_samples_of_the_part() -> None:
    data = rows(40)
    batches = list(open_loader(data, FIXED, DataOptions(part=HALVES[0])))
    assert all(batch["x"].shape == (2, 4) for batch in batches)
    alone = {row.tobytes() for row in taken(data, HALVES[0])}
    assert {row.tobytes() for batch in batches for row in batch["x"]} <= alone


def test_limit_counts_the_samples_of_the_part() -> None:
    assert len(taken(rows(40), HALVES[0], limit=3)) == 3


def test_the_part_is_told_in_the_description_and_changes_the_fingerprint() -> None:
    one, other = (open_loader(rows(9), FREE, DataOptions(part=part)) for part in HALVES)
    assert one.description["part"] == ":8" and one.fingerprint != other.fingerprint
    assert "part" not in open_loader(rows(9), FREE).description


def test_arrays_without_a_common_first_axis_are_one_sample() -> None:
    batch = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((5,), np.float32)}
    assert samples_in(batch) == [batch]
    scalar = {"a": np.zeros((2, 3), np.float32), "b": np.float32(1) * np.ones(())}
    assert samples_in(scalar) == [scalar]
    inputs = (Input("a", (2, 3), np.dtype("float32")), Input("b", (5,), np.dtype("float32")))
    assert len(list(items_in_part([batch], inputs, DataPart()))) == 1


def test_images_are_told_apart_by_their_bytes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(8):
        image.new("RGB", (4, 4), (number * 20, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "again.png").write_bytes((tmp_path / "0.png").read_bytes())
    inputs = (Input("x", (None, 3, 4, 4), np.dtype("float32")),)
    source = open_source(str(tmp_path), inputs, "scale=1", 1 << 20)
    digests = digests_of(source, inputs)
    assert len(digests) == 9 and len(set(digests)) == 8
    parts = cut_parts(digests, (0.5, 0.5), (99, 99))
    opened = [open_source(str(tmp_path), inputs, "scale=1", 1 << 20, part) for part, _ in parts]
    names = [{file.name for file in one.files} for one in opened]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 9
    assert any({"0.png", "again.png"} <= one for one in names)


@pytest.mark.parametrize("count", [3, 4, 5, 12, 100])
def test_no_part_is_empty_and_the_counts_are_right(count: int) -> None:
    digests = [sample_digest({"x": row}) for row in rows(count)]
    parts = cut_parts(digests, (0.5, 0.25, 0.25), (999, 999, 999))
    held = [sum(part.holds(one) for one in digests) for part, _ in parts]
    assert held == [number for _, number in parts] and sum(held) == count and min(held) > 0


def test_a_part_has_no_more_than_it_may() -> None:
    digests = [sample_digest({"x": row}) for row in rows(100)]
    parts = cut_parts(digests, (0.5, 0.5), (10, 20))
    assert [sum(part.holds(one) for one in digests) for part, _ in parts] == [10, 20]
    assert parts[0][0].high < parts[1][0].low


def test_fewer_different_samples_than_parts_are_refused() -> None:
    with pytest.raises(QdqError, match="holds 2 different samples, and 3 parts"):
        cut_parts(["a", "b", "a"], (0.5, 0.25, 0.25), (9, 9, 9))


def test_digests_that_differ_late_are_parted_all_the_same() -> None:
    ordered = ["a" * 63 + end for end in "013"]
    parts = cut_parts(ordered, (0.4, 0.3, 0.3), (9, 9, 9))
    assert [[part.holds(one) for one in ordered] for part, _ in parts] == np.eye(3, dtype=bool).tolist()


@pytest.mark.parametrize("text", [":", ":8", "8:", "12:8a3f", "00:FF"])
def test_text_of_a_part_is_read_back(text: str) -> None:
    assert str(parse_part(text)) == text.lower()


@pytest.mark.parametrize("text", ["", "8", "8:g", "a:b:c", "9:1", f":{'a' * 65}"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(QdqError, match="--part"):
        parse_part(text)


@pytest.mark.parametrize(("most", "walks"), [(1 << 20, 1), (100, 3)])
def test_a_file_is_searched_once_for_a_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, walks: int
) -> None:
    np.save(tmp_path / "x.npy", rows(40))
    monkeypatch.setattr(sources, "_HELD", most)
    searched, search = list[DataPart](), sources.items_in_part
    monkeypatch.setattr(sources, "items_in_part", lambda *given: searched.append(given[2]) or search(*given))
    loader = open_loader(tmp_path / "x.npy", FREE, DataOptions(part=HALVES[0]))
    found = [np.concatenate([batch["x"] for batch in loader]) for _ in range(3)]
    assert len(searched) == walks and found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_a_script_is_walked_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "import numpy as np\nrng = np.random.default_rng(0)\n"
        "def load_data():\n    for _ in range(20):\n        yield {'x': rng.normal(size=(1, 4)).astype(np.float32)}\n"
    )
    loader = open_loader(tmp_path / "drawn.py", FREE, DataOptions(part=HALVES[0]))
    first, second = ([batch["x"].tobytes() for batch in loader] for _ in range(2))
    assert not set(first) & set(second)
