# SPDX-License-Identifier: Apache-2.0
"""What a search for operators in float did not test, and why, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

GROUPS = 32  # of one round, the cheapest first


@dataclass
class SearchReport:
    """What was tried and what was not, by first outputs of operators and labels of groups."""

    groups: set[str] = field(default_factory=set)
    too_dear: set[str] = field(default_factory=set)
    beyond_count: set[str] = field(default_factory=set)
    beyond_macs: set[str] = field(default_factory=set)
    together: set[str] = field(default_factory=set)
    without_scale: set[str] = field(default_factory=set)

    def phrases(self, alone: int, share: float) -> tuple[str, ...]:
        """What was not tested, with `alone` operators off the list and groups of up to a share of the multiply-adds."""
        counts = (
            (alone, "single operators with a smaller loss"),
            (len(self.together), "operators and groups in sets that reduce the loss too little"),
            (len(self.too_dear - self.groups), f"groups with more than {share:.0%} of the multiply-adds"),
            (len(self.beyond_count - self.groups), f"groups beyond the limit of {GROUPS} runs"),
            (len(self.beyond_macs - self.groups), "beyond the time limit of the search"),
            (len(self.without_scale), "that need scales that were not calibrated"),
        )
        return tuple(f"{count} {what}" for count, what in counts if count)
