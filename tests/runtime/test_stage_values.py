# SPDX-License-Identifier: Apache-2.0
"""What passes from one stage to the next waits in a file; no sample is held while the next one is made."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from qdqtool.runtime.array_file import place_of
from qdqtool.runtime.stage_models import Values, filed


class Tracked(np.ndarray):
    """An array that can be asked whether it still exists."""


def test_no_sample_is_held_while_the_next_one_is_made() -> None:
    held: list[int] = []
    made: list[weakref.ref[Tracked]] = []

    def samples() -> Iterator[Values]:
        for number in range(4):
            held.append(sum(one() is not None for one in made))
            array = np.full(1 << 16, number, np.float32).view(Tracked)
            made.append(weakref.ref(array))
            sample: Values = {"x": array, "small": np.full(3, number)}
            del array
            yield sample
            del sample

    values = filed(samples())
    assert held == [0, 0, 0, 0]
    assert [one() for one in made] == [None] * 4
    assert [float(one["x"][-1]) for one in values] == [0.0, 1.0, 2.0, 3.0]
    assert all(place_of(one["x"]) is not None and place_of(one["small"]) is None for one in values)


def test_what_is_no_array_passes_as_it_is() -> None:
    sequence = [np.zeros(2)]
    (values,) = filed([{"s": sequence}])  # type: ignore[dict-item]
    assert values["s"] is sequence
