# SPDX-License-Identifier: Apache-2.0
"""The data that `graft` reads, with the preprocessing that the file beside the cache names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cache.sidecar import read_sidecar
from qdqtool.graph.io import Opened
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.verbs.graft_options import GraftOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader


def _with_known_data(
    opened: Opened, data: Data | DataLoader | None, options: GraftOptions, cache: Path | None
) -> tuple[GraftOptions, dict[str, Any] | None]:
    """The options with the preprocessing that the sidecar of the cache names, and what it says of the cache's data.

    The preprocessing is taken where images are given without any, and goes into the model's metadata without data.
    """
    sidecar = None if cache is None else read_sidecar(cache)
    if sidecar is None or not sidecar.fresh or not sidecar.data.get("preprocess"):
        return options, None
    told: dict[str, Any] = {key: sidecar.data[key] for key in ("kind", "name", "preprocess") if key in sidecar.data}
    if data is None:
        return options, told
    from qdqtool.data.loader import DataOptions
    from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess

    asked = options.data_options or DataOptions()
    if asked.preprocess is not None:
        return options, told
    chosen, _ = apply_known(opened.name, data, asked, (known_preprocess(opened.proto, cache),))
    return replace(options, data_options=chosen), told


def open_data(
    planned: PlannedModel, opened: Opened, data: Data | DataLoader | None, options: GraftOptions, cache: Path | None
) -> tuple[DataLoader | None, GraftOptions, dict[str, Any] | None]:
    """The data, the options with which they are read, and what is known of the data behind the scales."""
    options, known = _with_known_data(opened, data, options, cache)
    if data is None:
        return None, options, known
    from qdqtool.data.loader import inputs_of, open_loader

    feed = open_loader(data, inputs_of(planned.base.graph), options.data_options)
    return feed, options, feed.facts()
