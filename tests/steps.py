# SPDX-License-Identifier: Apache-2.0
"""How many steps a call takes: the same number on every machine, however busy, so that a test can hold its growth."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(call: Callable[[], object]) -> int:
    """Lines of Python that a call runs, those of every function below it included; what C code does counts nothing."""
    steps = 0

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def assert_linear(make: Callable[[int], Callable[[], object]], size: int) -> None:
    """Twice the size takes at most a little over twice the steps; `make` builds the call for a size.

    The call runs once before it is counted: rules are read from their files the first time.
    """
    make(1)()
    small, large = (count_steps(make(one)) for one in (size, 2 * size))
    assert small >= size
    assert large <= 2.2 * small, f"{small} steps for a size of {size}, {large} for twice that"
