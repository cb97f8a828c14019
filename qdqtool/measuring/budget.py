# SPDX-License-Identifier: Apache-2.0
"""The multiply-adds that a measurement may cost: counted, not timed, so that no result depends on a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Multiply-adds that a measurement may always cost, two seconds of one core, for a network of up to `_SMALL` a sample:
# 107 samples of it or more. A network of n times that may always cost 64e9 / n^2: its walk over a few samples is n
# times as long, and long enough to measure by. Beyond, a share of what the walk over the calibration data costs.
_ALWAYS, _SMALL = 64e9, 0.6e9


@dataclass(frozen=True)
class MacBudget:
    """Multiply-adds, at most; without a number any."""

    macs: float = math.inf

    @classmethod
    def beside_walk(cls, macs: int, samples: int, share: float) -> MacBudget:
        """What may be spent beside a calibration: a share of the walk over so many samples of so many multiply-adds."""
        return cls(max(_ALWAYS * min(1.0, _SMALL / max(macs, 1)) ** 2, share * samples * macs))
