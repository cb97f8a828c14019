# SPDX-License-Identifier: Apache-2.0
"""What `peel` says of weights: TensorRT quantizes them by itself, to other integers than their Q/DQ here and there."""

from __future__ import annotations

from qdqtool.passes.bake_weights import Baked


def notes_of_weights(baked: Baked, *, baking: bool) -> list[str]:
    """What is to be said of weights that TensorRT quantizes to other integers than their pairs did."""
    other, notes = baked.agreeing + baked.nearest, []
    if other:
        note = (
            f"TensorRT would quantize {other} of {baked.channels} weight channels to other integers than their Q/DQ"
            f"{_why_other(baked, other)}"
        )
        if baked.weights and not baking:
            note += f"; with --bake-weights {baked.agreeing} of them get the integers of their Q/DQ"
        elif baked.weights:
            change = f"by at most {baked.largest_change:.3g} steps"
            note += f": {len(baked.weights)} weights are written as they were, {change}, and {baked.agreeing} agree"
        if baked.nearest:
            note += f"; {baked.nearest} cannot, for their largest integer is not 127: TensorRT rounds to its own steps"
        notes.append(note)
    if baked.unread:
        name, reason = next(iter(baked.unread.items()))
        notes.append(f"weights that were not compared with their Q/DQ: {len(baked.unread)}, such as {name}: {reason}")
    return notes


def _why_other(baked: Baked, other: int) -> str:
    """Where other integers come from: ties, by one step each, or another range."""
    ties = "rounding ties: values half way between two integers, which Q/DQ rounds to even and TensorRT does not"
    range_ = "range was clipped, learned, or that of the whole tensor"
    if not baked.ties:
        return f", whose {range_}"
    if baked.ties == other:
        return f" by {ties}"
    return f": {baked.ties} by {ties}; of the {other - baked.ties} others the {range_}"
