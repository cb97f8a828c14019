# SPDX-License-Identifier: Apache-2.0
"""What is said of products whose inputs have two ranges: how many, the first, what to do."""

from __future__ import annotations

import numpy as np

from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.dla_range_notes import WANTED, notes_of_two_ranges
from tests.graphs import view_of

TEXT = "g (float[1,4] x) => (float[1,4] z) { s = Sigmoid(x) [gate] y = Mul(x, s) z = Mul(y, s) }"
V8_5 = TrtVersion(8, 5, 2)


def notes(target: str, **scales: float) -> list[str]:
    given = {name: np.float32(scale) for name, scale in scales.items()}
    return notes_of_two_ranges(view_of(TEXT), load_rules(target, V8_5), given, V8_5)


def test_the_first_is_named_and_the_others_are_counted() -> None:
    reported = "run them in FP16: --emit trtexec writes a script that sets that"
    assert notes("dla", x=0.5, s=0.25) == [f"{WANTED}, and 1 operator reads two ranges, gate (Mul); {reported}"]
    assert notes("dla", x=0.5, s=0.25, y=1) == [
        f"{WANTED}, and 2 operators read two ranges, such as gate (Mul); {reported}"
    ]


def test_nothing_is_said_of_one_range_or_of_a_gpu() -> None:
    assert notes("dla", x=0.5, s=0.5, y=0.5) == []
    assert notes("gpu", x=0.5, s=0.25) == []
