# SPDX-License-Identifier: Apache-2.0
"""Counts the values of each tensor's channels over data. Not how the data are walked (`data/single_samples.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from qdqtool.conditioning.channel_histograms import ChannelSpectrum
from qdqtool.conditioning.channel_map import ChannelRange
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.runtime.activations import OrtActivations


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
    activations = OrtActivations(context.model, list(found))
    for sample in samples:
        for name, value in activations.run(sample):
            if not np.isfinite(value).all():
                raise QdqError(name, "holds NaN or Inf", "repair the model or leave the sample out")
            found[name].add(value)
    return found
