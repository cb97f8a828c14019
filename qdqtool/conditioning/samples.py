# SPDX-License-Identifier: Apache-2.0
"""Walks data sample by sample, so that nothing depends on how it was grouped, and counts each tensor's channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from qdqtool.conditioning.channel_histograms import ChannelSpectrum
from qdqtool.conditioning.channel_map import ChannelRange
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.data.loader import Batch, DataLoader
from qdqtool.errors import QdqError
from qdqtool.runtime.activations import OrtActivations


class Singles:
    """The samples of the data one by one, walked anew by each loop; batches as they are where the model fixes the size.

    Attributes:
        seen: how many samples the last walk has given.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.seen = 0

    def __iter__(self) -> Iterator[Batch]:
        """Walk the samples."""
        self.seen = 0
        free = all(one.batched for one in self._loader.inputs)
        for batch in self._loader:
            count = self._loader.count(batch)
            self.seen += count
            if not free or count == 1 or any(len(array) != count for array in batch.values()):
                yield batch
                continue
            for row in range(count):
                yield {name: array[row : row + 1] for name, array in batch.items()}


def count_channels(
    context: ConditionContext, spans: Mapping[str, ChannelRange], samples: Iterable[Batch]
) -> dict[str, ChannelSpectrum]:
    """Run data through a model and count the values of every channel.

    Raises:
        QdqError: NaN or Inf in a tensor (named); what `OrtActivations` refuses.
    """
    found = {name: ChannelSpectrum(span.channels, span.axis) for name, span in spans.items()}
    if not found:
        return found
    activations = OrtActivations(context.proto, context.folder, list(found))
    for sample in samples:
        for name, value in activations.run(sample):
            if not np.isfinite(value).all():
                raise QdqError(name, "holds NaN or Inf", "mend the model or leave the sample out")
            found[name].add(value)
    return found
