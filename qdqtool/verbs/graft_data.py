# SPDX-License-Identifier: Apache-2.0
"""The data that `graft` reads, with the preprocessing that the file beside the cache names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cache.sidecar import read_sidecar
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.model import Model
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.verbs.graft_options import GraftOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader


def _told(cache: Path | None) -> dict[str, Any] | None:
    """What the sidecar of a cache says of the data after it; None where it does not know their preprocessing."""
    sidecar = None if cache is None else read_sidecar(cache)
    if sidecar is None or not sidecar.fresh or not sidecar.data.get("preprocess"):
        return None
    return {key: sidecar.data[key] for key in ("kind", "name", "preprocess") if key in sidecar.data}


def open_data(
    planned: PlannedModel, opened: Model, data: Data | DataLoader | None, options: GraftOptions, cache: Path | None
) -> tuple[DataLoader | None, GraftOptions, dict[str, Any] | None, tuple[str, ...]]:
    """The data, the options with which they are read, what is known of the data after the scales, and notes.

    The preprocessing of the cache's data is taken where images are given without any, and goes into the model's
    metadata without data.
    """
    if data is None:
        return None, options, _told(cache), ()
    options, said = with_known(options, opened, data, cache=cache)

    feed = open_loader(data, inputs_of(planned.base.graph), options.data_options)
    return feed, options, feed.facts(), said
