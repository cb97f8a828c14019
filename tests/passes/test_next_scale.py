# SPDX-License-Identifier: Apache-2.0
"""The next larger float32 as a scale, and the way back to what a Concat joins."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.view import GraphView
from qdqtool.passes.next_scale import first_scales, next_scale
from qdqtool.scales import Scale
from tests.graphs import model_of

ABOVE = np.nextafter(np.float32(0.1), np.float32(1))
NET = "k = Concat<axis=1>(x, y) l = Concat<axis=1>(k, y) m = Relu(l)"


def test_it_is_the_float_behind_it_and_keeps_what_is_known_of_the_scale() -> None:
    scale = Scale(np.float32(0.1), None, "ptq", "entropy", "concat", 3)
    above = next_scale(scale)
    assert above.bits == ABOVE and above.bits.dtype == np.float32
    assert (above.origin, above.method, above.rule, above.samples) == ("ptq", "entropy", "concat", 3)


CASES = {
    "a concat": ({"x": 0.1, "k": ABOVE}, {"x": 0.1, "k": 0.1}),
    "the largest of what is joined": ({"x": 0.05, "y": 0.1, "k": ABOVE}, {"x": 0.05, "y": 0.1, "k": 0.1}),
    "a concat of a concat": ({"x": 0.1, "l": ABOVE}, {"x": 0.1, "l": 0.1}),
    "another scale": ({"x": 0.1, "k": 0.2}, {"x": 0.1, "k": 0.2}),
    "no concat": ({"l": 0.1, "m": ABOVE}, {"l": 0.1, "m": ABOVE}),
    "nothing before it": ({"k": ABOVE}, {"k": ABOVE}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scale_of_a_concat_is_that_of_what_it_joins(name: str) -> None:
    given, wanted = CASES[name]
    model = model_of(f"g (float[1,2,4,4] x, float[1,2,4,4] y) => (float[1,6,4,4] m) {{ {NET} }}")
    scales = {key: Scale(np.float32(value)) for key, value in given.items()}
    found = first_scales(GraphView(model.graph), scales)
    assert {key: one.bits for key, one in found.items()} == {key: np.float32(value) for key, value in wanted.items()}


def test_scales_per_channel_are_left_alone() -> None:
    model = model_of(f"g (float[1,2,4,4] x, float[1,2,4,4] y) => (float[1,6,4,4] m) {{ {NET} }}")
    scales = {"x": Scale(np.float32(0.1)), "k": Scale(np.full(4, ABOVE, np.float32), 1)}
    assert first_scales(GraphView(model.graph), scales) == scales
