# SPDX-License-Identifier: Apache-2.0
"""Batches: what is held out, that every epoch shows every sample once, and that any place can be taken up again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import Batch, DataLoader, DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.training.batches import Batches, BatchOptions, MeasuredBatches, held_out, shuffled

FREE = Input("x", (None, 2), np.dtype(np.float32))


def samples(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((1, 2), number, np.float32)} for number in range(count)]


def feed(count: int, one: Input = FREE) -> DataLoader:
    return open_loader(lambda: iter(samples(count)), [one])


def numbers(batches: Iterator[Batch], count: int) -> list[int]:
    return [int(row[0]) for batch in itertools.islice(batches, count) for row in batch["x"]]


@pytest.mark.parametrize(
    ("total", "held"),
    [
        (1, [0]),
        (2, [1]),
        (4, [3]),
        (16, [4, 9, 14]),
        (39, [4, 9, 14, 19, 24, 29, 34]),
        (99, list(range(4, 99, 5))),
        (100, list(range(9, 100, 10))),
        (1000, list(range(9, 640, 10))),
    ],
)
def test_every_tenth_is_held_out_of_few_every_fifth(total: int, held: list[int]) -> None:
    assert list(held_out(total)) == held


def test_an_epoch_shows_every_sample_once_and_never_what_is_held_out() -> None:
    batches = Batches(feed(45), BatchOptions())
    assert batches.count == 36
    assert batches.held_samples == 9
    first, second = numbers(batches.from_sample(0), 72)[:36], numbers(batches.from_sample(0), 72)[36:]
    assert sorted(first) == sorted(second) == [k for k in range(45) if k % 5 != 4]
    assert first != second
    assert first != sorted(first)


def test_the_seed_decides() -> None:
    orders = [numbers(Batches(feed(45), BatchOptions(seed=seed)).from_sample(0), 30) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("memory", [1 << 20, 64])
@pytest.mark.parametrize("first", [0, 1, 40, 41, 42, 100])
def test_any_place_is_taken_up_again(first: int, memory: int) -> None:
    """Held in memory, and through a buffer of eight samples."""
    whole = numbers(Batches(feed(45), BatchOptions(memory=memory)).from_sample(0), 130)
    again = numbers(Batches(feed(45), BatchOptions(memory=memory)).from_sample(first), 130 - first)
    assert again == whole[first:]


def test_a_buffer_shows_every_sample_once_too() -> None:
    batches = Batches(feed(45), BatchOptions(memory=64))
    assert sorted(numbers(batches.from_sample(0), 36)) == [k for k in range(45) if k % 5 != 4]
    assert any("through a buffer" in note for note in batches.notes)
    assert int(batches.held[1]["x"][0, 0]) == 9


def test_a_buffer_mixes_and_holds_no_more_than_it_may() -> None:
    held: list[int] = []

    def counted() -> Iterator[Batch]:
        for number, sample in enumerate(samples(20)):
            held.append(number)
            yield sample

    found = []
    for sample in shuffled(counted(), np.random.default_rng(0), 4 * 8):
        assert len(held) - len(found) <= 5
        found.append(int(sample["x"][0, 0]))
    assert sorted(found) == list(range(20))
    assert found != list(range(20))


def test_batches_go_on_across_epochs() -> None:
    batches = Batches(feed(45), BatchOptions(batch=4))
    shapes = {batch["x"].shape for batch in itertools.islice(batches.from_sample(0), 21)}
    assert shapes == {(4, 2)}
    assert numbers(batches.from_sample(0), 21)[:82] == numbers(Batches(feed(45), BatchOptions()).from_sample(0), 82)


def test_what_is_held_out_fills_its_last_batch() -> None:
    batches = Batches(feed(16), BatchOptions(batch=2))
    assert [batch["x"][:, 0].tolist() for batch in batches.held] == [[4, 9], [14, 4]]


def noisy(sample: Batch, draw: np.random.Generator) -> Batch:
    """The sample and a part of one, drawn."""
    return {"x": sample["x"] + np.float32(draw.uniform(0.1, 0.9))}


@pytest.mark.parametrize("batch", [1, 4])
def test_changed_copies_are_held_out_behind_the_samples_as_they_are(batch: int) -> None:
    found = Batches(feed(16), BatchOptions(batch=batch, augment=noisy, held_copies=2))
    rows = [float(row[0]) for one in found.held for row in one["x"]]
    assert rows[:3] == [4, 9, 14] and np.floor(rows[3:9]).tolist() == [4, 9, 14] * 2
    assert len(set(rows[:9])) == 9, "each copy is drawn for by itself"
    assert len(rows) == -(-9 // batch) * batch and rows[9:] == rows[: len(rows) - 9], "the last batch is filled up"
    assert found.held_samples == 3
    again = Batches(feed(16), BatchOptions(batch=batch, augment=noisy, held_copies=2))
    assert all(np.array_equal(one["x"], other["x"]) for one, other in zip(found.held, again.held, strict=True))
    other = Batches(feed(16), BatchOptions(batch=batch, augment=noisy, held_copies=2, seed=1))
    assert any(not np.array_equal(one["x"], two["x"]) for one, two in zip(found.held, other.held, strict=True))


def test_without_changes_there_are_no_copies() -> None:
    assert numbers(iter(Batches(feed(16), BatchOptions(held_copies=2)).held), 3) == [4, 9, 14]
    assert len(Batches(feed(16), BatchOptions(held_copies=2)).held) == 3
    assert len(Batches(feed(16), BatchOptions(augment=noisy)).held) == 3


def test_a_batch_far_beyond_the_data_is_refused() -> None:
    assert Batches(feed(4), BatchOptions(batch=8)).count == 3
    with pytest.raises(QdqError, match=r"--batch: 100000 .* 4 samples"):
        Batches(feed(4), BatchOptions(batch=100_000))


def test_rows_of_a_larger_item_are_samples() -> None:
    rows = [
        {"x": np.arange(10, dtype=np.float32).reshape(5, 2)},
        {"x": np.arange(10, 14, dtype=np.float32).reshape(2, 2)},
    ]
    batches = Batches(open_loader(lambda: rows, [FREE]), BatchOptions())
    assert batches.count == 6
    assert [int(one["x"][0, 0]) for one in batches.every()] == [0, 2, 4, 6, 8, 10, 12]


def test_a_fixed_batch_stays_whole() -> None:
    fixed = Input("x", (2, 2), np.dtype(np.float32))
    items = [{"x": np.full((2, 2), number, np.float32)} for number in range(3)]
    batches = Batches(open_loader(lambda: items, [fixed]), BatchOptions())
    assert batches.count == 2
    assert next(batches.from_sample(0))["x"].shape == (2, 2)
    assert (batches.batch, batches.samples_per_batch) == (1, 2)
    whole = numbers(batches.from_batch(0), 6)
    assert numbers(batches.from_batch(4), 2) == whole[8:], "an item of the feed is one batch: 4 of them, not 8"


def test_batches_are_counted_in_samples_of_the_feed() -> None:
    batches = Batches(feed(45), BatchOptions(batch=4))
    assert (batches.batch, batches.samples_per_batch) == (4, 4)
    assert numbers(batches.from_batch(3), 5) == numbers(batches.from_sample(12), 5)


def test_one_sample_is_both_and_says_so() -> None:
    batches = Batches(feed(1), BatchOptions())
    assert numbers(batches.from_sample(0), 2) == [0, 0]
    assert any("one sample" in note for note in batches.notes)


def test_samples_of_several_shapes_are_refused() -> None:
    wide = Input("x", (None, None), np.dtype(np.float32))
    items = [{"x": np.zeros((1, 2 + number), np.float32)} for number in range(4)]
    batches = Batches(open_loader(lambda: items, [wide]), BatchOptions(batch=2))
    with pytest.raises(QdqError, match=r"input 'x' comes as \[1, \d\] and as \[1, \d\]"):
        next(batches.from_sample(0))


def test_a_nan_is_refused_before_training() -> None:
    items = [*samples(3), {"x": np.full((1, 2), np.nan, np.float32)}]
    with pytest.raises(QdqError, match="input 'x' holds NaN"):
        Batches(open_loader(lambda: items, [FREE]), BatchOptions())


def test_what_is_drawn_depends_on_the_place_alone() -> None:
    def shifted(sample: Batch, draw: np.random.Generator) -> Batch:
        return {"x": sample["x"] + np.float32(draw.uniform(0, 0.5))}

    batches = Batches(feed(45), BatchOptions(augment=shifted))
    whole = [batch["x"][0, 0] for batch in itertools.islice(batches.from_sample(0), 60)]
    later = [batch["x"][0, 0] for batch in itertools.islice(batches.from_sample(20), 40)]
    assert later == whole[20:]
    assert len({value % 1 for value in whole}) > 40
    assert all(batch["x"][0, 0] % 1 == 0 for batch in batches.held)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number in range(12):
        image.fromarray(np.full((4, 4, 3), number * 10, np.uint8)).save(tmp_path / f"{number:02}.png")
    return tmp_path


@pytest.mark.parametrize("memory", [1 << 20, 300])
def test_images_are_shuffled_whether_they_fit_or_not(folder: Path, memory: int) -> None:
    one = Input("x", (None, 3, 4, 4), np.dtype(np.float32))
    opened: Any = open_loader(folder, [one], DataOptions(preprocess="size=4x4"))
    batches = Batches(opened, BatchOptions(memory=memory))
    assert batches.count == 10
    order = [int(batch["x"].mean()) // 10 for batch in itertools.islice(batches.from_sample(0), 20)]
    assert sorted(order[:10]) == sorted(order[10:]) == [k for k in range(12) if k not in (4, 9)]
    again = [int(batch["x"].mean()) // 10 for batch in itertools.islice(batches.from_sample(15), 5)]
    assert again == order[15:]
    assert not batches.notes


def test_measured_batches_are_all_samples_and_full() -> None:
    data = {"x": np.arange(5, dtype=np.float32).reshape(5, 1)}
    measured = MeasuredBatches(open_loader(data, [Input("x", (None, 1), np.dtype(np.float32))], DataOptions()), 2)
    assert (measured.samples, len(measured)) == (5, 3)
    for _ in range(2):
        assert [batch["x"].ravel().tolist() for batch in measured] == [[0, 1], [2, 3], [4, 0]]
