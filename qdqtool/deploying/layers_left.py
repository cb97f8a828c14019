# SPDX-License-Identifier: Apache-2.0
"""Layers of a deployment that do not run in INT8, or not on the DLA, in words. Verbs find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdqtool.display import counted
from qdqtool.dla.assignment import DlaReport

_NAMED = 5  # layers that a line names


@dataclass(frozen=True)
class LayersLeft:
    """Layers that do not run in INT8, or not on the DLA.

    Attributes:
        in_float: layer -> why; of a model with Q/DQ convolutions and matrix products, beside a cache what builders are
            told to keep in float.
        on_gpu: node -> why the DLA does not run it; empty on a GPU.
        dla: where the nodes of what was written run; None on a GPU.
    """

    in_float: Mapping[str, str] = field(default_factory=dict)
    on_gpu: Mapping[str, str] = field(default_factory=dict)
    dla: DlaReport | None = None

    @property
    def warning(self) -> str:
        """What more DLA subgraphs than a core holds mean; "" where they fit, and on a GPU."""
        return "" if self.dla is None else "; ".join(self.dla.overflow())

    @property
    def guesses(self) -> str:
        """What of the DLA's part rests on guesses; "" where nothing does, and on a GPU."""
        return "" if self.dla is None else self.dla.guesses()

    def lines(self) -> list[str]:
        """What `deploy` prints of them: how many, and the first of them."""
        found = []
        if self.in_float:
            found.append(f"to stay in float: {_first(self.in_float, 'layer')}")
        if self.on_gpu:
            found.append(f"on the GPU, as the DLA does not run them: {_first(self.on_gpu, 'node')}")
        return found

    def to_json(self) -> dict[str, Any]:
        """All of them with the reasons, as JSON values."""
        named = {"in_float": self.in_float, "on_gpu": self.on_gpu}
        return {key: [{"name": name, "why": why} for name, why in of.items()] for key, of in named.items()}


def _first(layers: Mapping[str, str], what: str) -> str:
    names = list(layers)
    more = len(names) - _NAMED
    rest = f" and {more} more, which deploy.json names" if more > 0 else ""
    return f"{counted(len(names), what)}: {', '.join(names[:_NAMED])}{rest}"
