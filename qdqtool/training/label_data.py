# SPDX-License-Identifier: Apache-2.0
"""Arrays that the data hold beside a model's inputs: labels. What they must be like, `losses/labels.py` says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.arrays import SampleArray
from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.model_inputs import Input
from qdqtool.data.pixel_arrays import are_other_images, open_arrays, sample_array
from qdqtool.data.polygraphy_loader import items_of, load_script, read_json, split_script

_Facts = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


def label_inputs(data: Data, inputs: Sequence[Input], options: DataOptions) -> tuple[Input, ...]:
    """What the data hold beside the model's inputs, as further inputs of the data, in their order.

    Looked at are the names in an archive, or the first sample of what is walked; folders of images and single arrays
    hold no labels.

    Raises:
        QdqError: the data cannot be read.
    """
    known = {one.name for one in inputs}
    stored = open_arrays(data, options.max_bytes)
    if stored is not None and len(inputs) == 1:
        known |= _samples_in(Path(data) if isinstance(data, str | os.PathLike) else "data", stored, inputs)
    fixed = next((one.first for one in inputs if not one.batched), None)
    return tuple(
        Input(name, (fixed, *([None] * (len(shape) - 1))) if shape else (), dtype)
        for name, (shape, dtype) in _outside(data, stored, options).items()
        if name not in known
    )


def _outside(data: Data, stored: Mapping[str, SampleArray] | None, options: DataOptions) -> _Facts:
    """Name -> shape and type of the arrays, or of those of the first sample."""
    if stored is not None:
        return {name: (one.shape, one.dtype) for name, one in stored.items() if name}
    if isinstance(data, JsonInputs):
        return _first(read_json(data.files()[0], options.max_bytes))
    if callable(data):
        return _first(items_of("data", data))
    if not isinstance(data, str | Path):
        return {} if iter(data) is data else _first(items_of("data", _making(data)))  # type: ignore[arg-type]
    script, path = split_script(str(data)), Path(data)
    if script and not path.is_dir():
        return _first(items_of(script[0], load_script(*script)))
    if path.suffix.lower() == ".json" and path.is_file():
        return _first(read_json(path, options.max_bytes))
    return {}


def _samples_in(where: Path | str, stored: Mapping[str, SampleArray], inputs: Sequence[Input]) -> set[str]:
    """The array that feeds the only input, and images that are none of its samples."""
    found = sample_array(where, stored, inputs)
    name = found[1] if found is not None else ""
    return {name} | {other for other, array in stored.items() if are_other_images(array, stored[name])}


def _making(data: Iterable[Any]) -> Callable[[], Iterable[Any]]:
    return lambda: data


def _first(samples: Iterable[Mapping[str, Any]]) -> _Facts:
    return {name: (a.shape, a.dtype) for one in islice(samples, 1) for name, a in one.items()}
