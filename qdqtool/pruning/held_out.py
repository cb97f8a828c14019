# SPDX-License-Identifier: Apache-2.0
"""Pruned models on samples that nothing was taken from: how far their outputs lie from the original's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqtool.display import finite_only
from qdqtool.graph.model import Model
from qdqtool.pruning.probe import Feed, ProbeRun
from qdqtool.runtime.executor import out_of_reach

_EXACT, _SAME = 100.0, 0.05  # dB: what lies beyond is float32's rounding; differences that count for nothing


@dataclass(frozen=True)
class HeldOutput:
    """One output of a pruned model against the original's: SQNR in dB."""

    output: str
    plain: float
    corrected: float
    reconstructed: float

    @property
    def ways(self) -> tuple[float, float, float]:
        """The three, in that order."""
        return self.plain, self.corrected, self.reconstructed

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it; null for what is not a number."""
        ends = {"plain_db": self.plain, "corrected_db": self.corrected, "reconstructed_db": self.reconstructed}
        return {"output": self.output, **finite_only(ends)}


def judge_pruned(run: ProbeRun, pruned: Sequence[Model], held: Sequence[Feed]) -> tuple[HeldOutput, ...]:
    """Each float output of pruned models against the original's; empty without samples.

    Raises:
        QdqError: onnxruntime cannot run one of them.
    """
    lacking = out_of_reach(run.model)
    names = [value.name for value in run.model.graph.output if value.name not in lacking]
    if not held or not names:
        return ()
    executors = [run.executor(model, names) for model in (run.model, *pruned)]
    signal = dict.fromkeys(names, 0.0)
    noise = [dict.fromkeys(names, 0.0) for _ in pruned]
    for feed in held:
        exact, *others = (executor.run(feed) for executor in executors)
        for name in names:
            if exact[name].dtype.kind != "f":
                continue
            value = exact[name].astype(np.float64)
            signal[name] += float(np.square(value).sum())
            for sums, other in zip(noise, others, strict=True):
                sums[name] += float(np.square(other[name].astype(np.float64) - value).sum())
    return tuple(HeldOutput(name, *(_decibels(signal[name], sums[name]) for sums in noise)) for name in names)


def best_way(judged: Sequence[HeldOutput]) -> int:
    """Which of the three does best on average over outputs, with less edited where that does as well.

    Biases alone where nothing was held out: weights may be fitted to what is in these samples alone.
    """
    ways = np.array([one.ways for one in judged])
    if not len(ways):
        return 1
    means = np.where(np.isnan(ways), -np.inf, np.minimum(ways, _EXACT)).mean(axis=0)
    return next(place for place in range(len(means)) if means[place] >= means.max() - _SAME)


def _decibels(signal: float, noise: float) -> float:
    if noise <= 0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")
