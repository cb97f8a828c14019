# SPDX-License-Identifier: Apache-2.0
"""Threads that count one walk: whose turn it is, which fault is raised. That they count the same: test_collect.py."""

from __future__ import annotations

import random
import threading
import time

import pytest

from qdqtool.data.loader import Task
from qdqtool.observers.worker_pool import OrderedGate, TaskSource


def test_places_pass_in_order() -> None:
    gate, passed, places = OrderedGate(), [], list(range(12))
    random.Random(2).shuffle(places)

    def pass_on(place: int) -> None:
        with gate.place(place) as wait:
            time.sleep(random.Random(place).random() / 100)
            if wait():
                passed.append(place)

    threads = [threading.Thread(target=pass_on, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == list(range(12))


def test_nobody_passes_behind_one_that_fails() -> None:
    gate, passed = OrderedGate(), []

    def pass_on(place: int) -> None:
        try:
            with gate.place(place) as wait:
                if place == 3:
                    raise ValueError
                if wait():
                    passed.append(place)
        except ValueError:
            pass

    threads = [threading.Thread(target=pass_on, args=(place,)) for place in (5, 3, 4, 2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert passed == [0, 1, 2]


def test_source_raises_the_first_fault_in_file_order() -> None:
    source = TaskSource(Task(index, index, 1, dict) for index in (0, 2, 4, 6))
    taken = [source.take() for _ in range(3)]
    for index in (4, 2):
        with source.recording(index):
            raise KeyError(index)
    assert [one[1].index for one in taken if one] == [0, 2, 4]
    assert source.take() is None
    with pytest.raises(KeyError, match="2"):
        source.raise_first()
