# SPDX-License-Identifier: Apache-2.0
"""The clipping values that are worth a trial for one histogram, each with the name of what proposes it. Pure functions.

Not which of them is taken: that is decided by what the consumers of the tensor feel (scale_choice.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import amax_entropy_stable, amax_max, amax_mse, amax_percentile

# Of two candidates nearer to one another than this share the one that comes first in `candidates` stands for both:
# their errors differ by less than what the choice of the images changes.
_ALIKE = 0.02
# Of a longer list, evenly spread ones: more cost time and gain nothing that survives other images.
MOST = 12

# Best clipping values of int8, in mean |x| of a Laplacian and in standard deviations of a normal.
_LAPLACE, _NORMAL = 9.8968, 3.9240


@dataclass(frozen=True)
class Candidate:
    """A clipping value and the method that proposes it."""

    method: str
    amax: np.float32


def candidates(hist: Histogram) -> list[Candidate]:
    """One per method: mse, max, three percentiles, entropy-stable, aciq; alike ones once, in this order of preference.

    A histogram without a value other than 0 has none.
    """
    proposed = [
        Candidate("mse", amax_mse(hist)),
        Candidate("max", amax_max(hist)),
        *(Candidate(f"percentile={percent!r}", amax_percentile(hist, percent)) for percent in (99.99, 99.9, 99.999)),
        Candidate("entropy-stable", amax_entropy_stable(hist)),
        Candidate("aciq", amax_aciq(hist)),
    ]
    return distinct([one for one in proposed if one.amax > 0])


def distinct(proposed: list[Candidate]) -> list[Candidate]:
    """Without those that are alike to one before them, and at most `MOST`, the outermost two among them."""
    kept: list[Candidate] = []
    for one in proposed:
        if all(abs(math.log(float(one.amax) / float(other.amax))) > _ALIKE for other in kept):
            kept.append(one)
    if len(kept) > MOST:
        by_size = sorted(kept, key=lambda one: float(one.amax))
        spread = {round(index * (len(kept) - 1) / (MOST - 1)) for index in range(MOST)}
        chosen = [by_size[index] for index in sorted(spread)]
        kept = [one for one in kept if one in chosen]
    return kept


def amax_aciq(hist: Histogram) -> np.float32:
    """The best clipping value for int8 if |x| were spread as a Laplacian's or a normal's around 0.

    For a Laplacian with mean |x| = b, clipping at a costs 2 b^2 exp(-a / b) and rounding a^2 / (3 * 4^8); the least sum
    lies at a = 9.897 b. For a normal one with root mean square s it lies at a = 3.924 s. Of the two the one whose ratio
    b / s is nearer is taken: 0.7071 of the Laplacian, 0.7979 of the normal. Zeros are left out: those of a Relu say
    nothing about the spread. Source: Banner 2019, Post-training 4-bit quantization of convolution networks (ACIQ).
    """
    if not hist.amax > 0:
        return hist.amax
    # Means of |x| and x^2 over the values that are not 0
    counts, width = hist.folded()
    middle = (np.arange(counts.size) + 0.5) * width
    many = max(int(counts.sum()), 1)
    magnitude, square = float(counts @ middle) / many, float(counts @ middle**2) / many
    laplacian = magnitude < math.sqrt(square) * (math.sqrt(0.5) + math.sqrt(2.0 / math.pi)) / 2.0
    return np.float32(min(_LAPLACE * magnitude if laplacian else _NORMAL * math.sqrt(square), float(hist.amax)))
