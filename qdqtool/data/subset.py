# SPDX-License-Identifier: Apache-2.0
"""A few samples of the data, chosen by what they hold: the same ones whatever their order and however batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from qdqtool.data.loader import Batch
from qdqtool.data.model_inputs import Input
from qdqtool.data.parts import rows_of_run, sample_digest, samples_in


def pick_samples(batches: Iterable[Batch], inputs: Sequence[Input], count: int) -> list[Batch]:
    """The `count` samples with the smallest digests, each once, in the order of those, as batches that can be run.

    A digest is as good as a draw: it has nothing to do with where a sample comes from. Where every input leaves its
    first axis free, or fixes it to the same size, batches are taken apart along it, and put together again to that
    size; elsewhere a batch is one sample.
    """
    size = rows_of_run(inputs)
    kept: dict[str, Batch] = {}
    for batch in batches:
        for sample in samples_in(batch) if size else [batch]:
            digest = sample_digest(sample)
            if digest in kept or (len(kept) >= count and digest > max(kept)):
                continue
            kept[digest] = {name: np.array(array) for name, array in sample.items()}
            if len(kept) > count:
                del kept[max(kept)]
    ordered = [kept[digest] for digest in sorted(kept)]
    if size <= 1:
        return ordered
    groups = [ordered[start : start + size] for start in range(0, max(len(ordered) // size, 1) * size, size)]
    return [{name: _filled([one[name] for one in group], size) for name in group[0]} for group in groups]


def _filled(rows: list[np.ndarray], size: int) -> np.ndarray:
    """Rows as one array of `size`, the last one repeated where there are fewer."""
    return np.concatenate([*rows, *[rows[-1]] * (size - len(rows))])
