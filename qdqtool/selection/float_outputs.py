# SPDX-License-Identifier: Apache-2.0
"""What the float model gives for a few samples, taken by a pass that runs them anyway. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


class FloatOutputs:
    """The outputs of the first samples; `None` in `samples` until a pass has run them.

    Attributes:
        names: the tensors that are taken.
    """

    def __init__(self, names: Sequence[str], count: int) -> None:
        """Nothing is known yet."""
        self.names, self._count = tuple(names), count
        self._taken: dict[int, dict[str, Array]] = {}

    def take(self, at: int, values: Mapping[str, Array]) -> None:
        """Take what of these values is an output."""
        if at < self._count:
            self._taken.setdefault(at, {}).update({name: values[name] for name in self.names if name in values})

    def of(self, samples: int) -> list[tuple[Array, ...]] | None:
        """Per sample an array per name; None where one is missing."""
        taken = [self._taken.get(at, {}) for at in range(samples)]
        if not all(name in one for one in taken for name in self.names):
            return None
        return [tuple(one[name] for name in self.names) for one in taken]
