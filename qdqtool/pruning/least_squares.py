# SPDX-License-Identifier: Apache-2.0
"""Weights by least squares, drawn towards those that are there: what makes up best for channels that went.

With rows x of what is left and y of what is wanted, W minimizes sum ||y - W x||^2 + r ||W - W0||^2 (ridge regression
towards W0). r is the one of a few that does best on samples that W was not made from; then W is made from all. With
`intercept` the means of x and y are taken off first, and the bias makes them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)  # of the mean square of a value of x
_DEFAULT = 1e-2  # where nothing can be held out
_HELD = 4  # every so many samples one is held out to choose r


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """What came out.

    Attributes:
        weights: [channels, values of a row].
        bias: [channels]; zeros without an intercept.
        before: mean square of y - W0 x, on what r was chosen on, by bias alone.
        after: the same of W, made without what r was chosen on.
    """

    weights: Float64
    bias: Float64
    before: float
    after: float


def joined(parts: Sequence[FittedWeights | None]) -> FittedWeights:
    """Those of the groups of an operator, one after the other."""
    found = [part for part in parts if part is not None]
    weights, bias = np.concatenate([one.weights for one in found]), np.concatenate([one.bias for one in found])
    return FittedWeights(weights, bias, sum(one.before for one in found), sum(one.after for one in found))


class _Sums:
    """Sums of products of rows, about a point near their means so that float32 products do."""

    def __init__(self, x: npt.NDArray[Any], y: npt.NDArray[Any], *, intercept: bool) -> None:
        self.x0 = x.mean(axis=0) if intercept and len(x) else np.zeros(x.shape[1], np.float32)
        self.y0 = y.mean(axis=0) if intercept and len(y) else np.zeros(y.shape[1], np.float32)
        self.count = 0
        self.x, self.y = np.zeros(x.shape[1]), np.zeros(y.shape[1])
        self.xx, self.xy = np.zeros((x.shape[1], x.shape[1])), np.zeros((x.shape[1], y.shape[1]))
        self.yy = np.zeros(y.shape[1])

    def add(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        x, y = x - self.x0, y - self.y0
        self.count += len(x)
        self.x += x.sum(axis=0, dtype=np.float64)
        self.y += y.sum(axis=0, dtype=np.float64)
        self.xx += x.T @ x
        self.xy += x.T @ y
        self.yy += np.square(y, dtype=np.float64).sum(axis=0)


@dataclass(frozen=True, eq=False)
class _Moments:
    """Means of products, of centered rows where there is an intercept."""

    x: Float64
    y: Float64
    xx: Float64
    xy: Float64
    yy: Float64


class LeastSquares:
    """Collects rows and solves.

    Attributes:
        start: the weights that the result is drawn towards: [channels, values of a row].
        intercept: whether there is a bias.
    """

    def __init__(self, start: npt.NDArray[Any], *, intercept: bool) -> None:
        self.start = start.astype(np.float64)
        self.intercept = intercept
        self._parts: list[_Sums] | None = None
        self._seen = 0

    def add(self, x: npt.NDArray[Any], y: npt.NDArray[Any], samples: npt.NDArray[np.int64]) -> None:
        """Rows of one batch.

        Args:
            x: float32 [rows, values].
            y: float32 [rows, channels].
            samples: of each row, the number of its sample within the batch.
        """
        if self._parts is None:
            self._parts = [_Sums(x, y, intercept=self.intercept) for _ in range(2)]
        held = (samples + self._seen) % _HELD == _HELD - 1
        self._seen += int(samples.max(initial=-1)) + 1
        for part, chosen in zip(self._parts, (~held, held), strict=True):
            if chosen.any():
                part.add(x[chosen], y[chosen])

    def solve(self) -> FittedWeights | None:
        """The weights; None where no row was given or a value is not a number."""
        if self._parts is None:
            return None
        first, held = self._parts
        both = _moments([first, held], intercept=self.intercept)
        if both is None or not np.isfinite(both.xx).all() or not np.isfinite(both.xy).all():
            return None
        made, judged = (_moments([part], intercept=self.intercept) for part in (first, held))
        ridge, before, after = _DEFAULT, float("nan"), float("nan")
        if made is not None and judged is not None:
            whole = _judged(judged, made, self.start)
            errors = [_judged(judged, made, self._weights(made, one)) for one in _RIDGES]
            before, after = whole, min(errors)
            if not after < before:
                return self._fitted(both, self.start, before, before)
            ridge = _RIDGES[int(np.argmin(errors))]
        return self._fitted(both, self._weights(both, ridge), before, after)

    def _weights(self, moments: _Moments, ridge: float) -> Float64:
        added = ridge * max(float(np.trace(moments.xx)) / len(moments.xx), 1e-30)
        wanted = moments.xy - moments.xx @ self.start.T
        solved = np.linalg.solve(moments.xx + added * np.eye(len(moments.xx)), wanted)
        return np.asarray(self.start + solved.T)

    def _fitted(self, moments: _Moments, weights: Float64, before: float, after: float) -> FittedWeights:
        bias = moments.y - weights @ moments.x if self.intercept else np.zeros(len(weights))
        return FittedWeights(weights, bias, before, after)


def _moments(parts: list[_Sums], *, intercept: bool) -> _Moments | None:
    """Of rows that were collected about one point; None without any."""
    count = sum(part.count for part in parts)
    if not count:
        return None
    x, y = sum(part.x for part in parts) / count, sum(part.y for part in parts) / count
    xx, xy, yy = (sum(getattr(part, name) for part in parts) / count for name in ("xx", "xy", "yy"))
    if not intercept:
        return _Moments(np.zeros_like(x), np.zeros_like(y), xx, xy, yy)
    xx, xy, yy = xx - np.outer(x, x), xy - np.outer(x, y), yy - y * y
    return _Moments(np.asarray(parts[0].x0 + x), np.asarray(parts[0].y0 + y), xx, xy, yy)


def _judged(judged: _Moments, made: _Moments, weights: Float64) -> float:
    """Mean square of y - W x - b over the rows of `judged`, b by the means of `made`; summed over channels."""
    shift = (judged.y - made.y) - weights @ (judged.x - made.x)
    inner = judged.yy.sum() - 2 * (weights * judged.xy.T).sum() + ((weights @ judged.xx) * weights).sum()
    return float(inner + (shift * shift).sum())
