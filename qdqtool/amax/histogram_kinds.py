# SPDX-License-Identifier: Apache-2.0
"""The kinds of histogram, by the names that plans and state files have for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.trt_entropy import EntropyHistogram

AnyHistogram = Histogram | EntropyHistogram

KINDS: Mapping[str, type[AnyHistogram]] = {Histogram.kind: Histogram, EntropyHistogram.kind: EntropyHistogram}


def all_mergeable(kinds: Collection[str]) -> bool:
    """Whether histograms of all these kinds depend on the values alone, not on batches and their order."""
    return all(KINDS[kind].mergeable for kind in kinds)
