# SPDX-License-Identifier: Apache-2.0
"""Parts of the data of `prune`, and the bar with its time left."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from qdqtool.data.model_inputs import Input
from qdqtool.training.batches import held_out
from qdqtool.verbs.prune_samples import Feed, HeldOutSamples, Shown, not_held

FEEDS = [{"x": np.full((2,), number)} for number in range(12)]
FREE = [Input("x", (None, 3), np.dtype(np.float32))]
FIXED = [Input("x", (2, 3), np.dtype(np.float32))]


def batches(*sizes: int) -> list[Feed]:
    """Batches of so many samples, each sample filled with its number."""
    numbers = np.split(np.arange(sum(sizes), dtype=np.float32), np.cumsum(sizes)[:-1])
    return [{"x": np.repeat(one[:, None], 3, axis=1)} for one in numbers]


def numbers_of(walked: Iterable[Feed]) -> list[int]:
    return [int(row[0]) for batch in walked for row in batch["x"]]


@pytest.mark.parametrize("sizes", [(12,), (1,) * 12, (5, 5, 2), (3, 4, 5), (4, 1, 7)])
def test_every_fifth_sample_is_held_out_whatever_the_batch_is(sizes: tuple[int, ...]) -> None:
    held, used = (HeldOutSamples(batches(*sizes), FREE, held=one) for one in (True, False))
    assert numbers_of(held) == [4, 9]
    assert numbers_of(used) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11] == numbers_of(used), "walked again from the beginning"
    assert all(len(batch["x"]) for batch in (*held, *used)), "no batch is empty"


def test_a_batch_that_loses_nothing_is_the_one_that_came() -> None:
    given = batches(4, 1)
    assert next(iter(HeldOutSamples(given, FREE, held=False))) is given[0]
    assert next(iter(HeldOutSamples(given, FREE, held=True))) is given[1]


def test_where_the_model_fixes_the_batch_each_counts_as_one_sample() -> None:
    assert numbers_of(HeldOutSamples(batches(*[2] * 6), FIXED, held=True)) == [8, 9]


def test_a_batch_of_unlike_arrays_is_one_sample() -> None:
    both = [*FREE, Input("y", (None,), np.dtype(np.float32))]
    unlike: list[Feed] = [{"x": np.full((2, 3), number), "y": np.zeros(5)} for number in range(6)]
    assert numbers_of(HeldOutSamples(unlike, both, held=True)) == [4, 4]
    scalars: list[Feed] = [{"x": np.full((1, 3), number), "y": np.float32(0)} for number in range(6)]
    assert numbers_of(HeldOutSamples(scalars, both, held=True)) == [4]


@pytest.mark.parametrize("total", [5, 9, 12, 48, 99, 100, 256, 1000])
def test_what_finetune_measures_on_took_no_part_in_the_weights(total: int) -> None:
    held = numbers_of(HeldOutSamples(batches(total), FREE, held=True))
    assert set(held_out(total)) <= set(held)


@pytest.mark.parametrize(("count", "left"), [(12, 10), (24, 20), (4, 4), (None, None)])
def test_as_many_are_not_held_as_are_walked(count: int | None, left: int | None) -> None:
    assert not_held(count) == left
    if count:
        assert len(numbers_of(HeldOutSamples(batches(count), FREE, held=False))) == left


def test_the_bar_knows_how_many_come(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(Shown(FEEDS, 8, True, there=10))) == 8
    said = capsys.readouterr().err
    assert "importance" in said and "0/8" in said, "of the most that are taken"
    assert len(list(Shown(FEEDS, 20, True, there=12))) == 12
    assert "0/12" in capsys.readouterr().err
    assert len(list(Shown(FEEDS, 8, False))) == 8
    assert capsys.readouterr().err == ""
