# SPDX-License-Identifier: Apache-2.0
"""What `peel` says of weights that TensorRT quantizes to other integers than their pairs did."""

from __future__ import annotations

import pytest

from qdqtool.passes.bake_weights import Baked
from qdqtool.verbs.peel import notes_of_weights

OTHER_RANGE = "range was clipped, learned, or that of the whole tensor"
TIES = "by rounding ties: values half way between two integers, which Q/DQ rounds to even and TensorRT does not"


@pytest.mark.parametrize(
    ("ties", "why"),
    [
        (0, f", whose {OTHER_RANGE}"),
        (25, f" {TIES}"),
        (5, f": 5 {TIES}; of the 20 others the {OTHER_RANGE}"),
    ],
)
def test_rounding_ties_are_called_ties(ties: int, why: str) -> None:
    baked = Baked(15232, 15207, agreeing=25, weights=("w",), ties=ties)
    (note,) = notes_of_weights(baked, baking=False)
    said = "TensorRT would quantize 25 of 15232 weight channels to other integers than their Q/DQ"
    assert note == f"{said}{why}; with --bake-weights 25 of them get the integers of their Q/DQ"


def test_nothing_is_said_where_the_integers_are_the_same() -> None:
    assert notes_of_weights(Baked(9, 9), baking=False) == []


def test_weights_of_one_scale_are_said_to_get_one_for_each_channel() -> None:
    baked = Baked(3736, 28, agreeing=14, nearest=3694, weights=("w",), coarse=3708)
    (note,) = notes_of_weights(baked, baking=False)
    said = "TensorRT quantizes 3708 of 3736 weight channels by a scale for each channel"
    assert note == f"{said}; their Q/DQ have one scale for a whole weight"
    assert "to other integers" in notes_of_weights(baked, baking=True)[0]
