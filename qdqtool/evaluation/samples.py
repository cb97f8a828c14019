# SPDX-License-Identifier: Apache-2.0
"""The samples that a figure is for: images with how each was laid into the input, or arrays; streamed, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqtool.data.arrays import SampleArray
from qdqtool.data.geometry import Geometry, read_image
from qdqtool.data.image_folder import ImageFiles, as_fed, find_images, image_input, image_reader
from qdqtool.data.loader import Batch, Data, DataLoader, DataOptions, Input, open_loader
from qdqtool.data.model_inputs import Array, checked
from qdqtool.data.parts import rows_of_run
from qdqtool.data.pixel_arrays import open_arrays, pixel_array, sample_array
from qdqtool.data.sources import digests_of, open_source
from qdqtool.errors import QdqError
from qdqtool.evaluation.labels_classes import ARRAY_KEYS, Int64, array_classes
from qdqtool.file_digest import file_sha256


@dataclass(frozen=True)
class Chunk:
    """One run: its arrays by input, and how each sample of it was laid into the input."""

    batch: Batch
    geometries: tuple[Geometry, ...]


@dataclass(frozen=True)
class LabeledSamples:
    """Samples, opened but not read.

    Attributes:
        where: the file or folder, for messages.
        images: the image files in order; None where the data has none.
        in_folders: whether the images lie in folders of their class; not those of one folder, such as images/.
        count: how many there are; None where only walking tells.
        chunks: walks them from the beginning.
        classes: int64[n], the right classes where the data itself holds them.
        boxes: whether the data itself holds labeled boxes.
        notes: what was left out, and why.
        whole: of a part of the data, all of it: labels are for these.
        positions: of a part, the numbers of its samples in the whole.
    """

    where: object
    chunks: Callable[[], Iterator[Chunk]]
    images: tuple[Path, ...] | None = None
    in_folders: bool = False
    count: int | None = None
    classes: Int64 | None = None
    boxes: bool = False
    notes: tuple[str, ...] = ()
    whole: LabeledSamples | None = None
    positions: tuple[int, ...] = ()


def open_samples(data: Data, inputs: Sequence[Input], options: DataOptions) -> LabeledSamples:
    """Open what a model is judged on.

    Args:
        data: images (see `find_images`), such as a folder of class folders; arrays in a .npz, a .npy or memory, which
            may be images in uint8 with a preprocessing, and beside which classes may lie as y, in a file boxes, too; or
            what else `open_loader` takes.
        inputs: what the model takes.
        options: batch, limit, preprocessing.

    Raises:
        QdqError: what `open_loader` refuses; images without a preprocessing.
    """
    path = Path(data) if isinstance(data, (str, os.PathLike)) else None
    images = None if path is None else _images(path)
    if path is not None and images is not None:
        return _part_of_images(path, images, image_input(path, inputs), options)
    made = _part_of_loader(data, inputs, options)
    stored = open_arrays(data, options.max_bytes)
    return made if stored is None else _of_arrays(path or "data", stored, made, inputs, options)


def _kept(total: int, one: Input, options: DataOptions) -> tuple[int, int, tuple[str, ...]]:
    """How many samples are used, how many go into one run, and what is said of the others."""
    # Refuse a batch that cannot be, as `open_loader` does
    if not one.batched and options.batch not in (1, one.first):
        raise QdqError(
            "--batch", f"{options.batch} cannot be, {one.name!r} takes {one.format_shape()}", "leave --batch out"
        )
    wanted = min(total, options.limit or total)
    if one.batched:
        return wanted, options.batch, ()
    size = one.first or 1
    count = wanted // size * size
    if not count:
        raise QdqError("--data", f"gives {wanted} samples, not the {size} of one batch", "give more")
    left = f"the last {wanted - count} samples do not fill a batch of {size}, which {one.name} fixes: left out"
    return count, size, (left,) if wanted > count else ()


# ------------------------------------------------------------------------------------------------------------ images


def _part_of_images(path: Path, images: ImageFiles, one: Input, options: DataOptions) -> LabeledSamples:
    """All images, or those of a part and the whole that they are numbered in."""
    if options.part is None:
        return _of_images(path, images, one, options)
    positions = tuple(k for k, file in enumerate(images.files) if options.part.holds(file_sha256(file)))
    if not positions:
        raise QdqError(path, f"has no image in the part {options.part}", "give another --part")
    chosen = replace(images, files=tuple(images.files[k] for k in positions))
    made = _of_images(path, chosen, one, options)
    whole = _of_images(path, images, one, replace(options, part=None, limit=None))
    return replace(made, whole=whole, positions=positions[: made.count])


def _images(path: Path) -> ImageFiles | None:
    try:
        return find_images(path)
    except (OSError, ValueError):
        return None  # `open_loader` says what is wrong


def _of_images(path: Path, images: ImageFiles, one: Input, options: DataOptions) -> LabeledSamples:
    reader = image_reader(path, one, options.preprocess)
    count, size, notes = _kept(len(images.files), one, options)
    used = images.files[:count]
    # One folder alone is not a class.
    in_folders = len(images.folders) > 1 and all(folder.parent == path for folder in images.folders)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, count, size):
            read = [read_image(reader, file)[:2] for file in used[start : start + size]]
            values = read[0][0] if len(read) == 1 else np.concatenate([array for array, _ in read])
            fed = checked(used[start], {one.name: as_fed(used[start], values, one)}, [one])
            yield Chunk(fed, tuple(geometry for _, geometry in read))

    return LabeledSamples(path, chunks, used, in_folders, count, notes=notes)


# ------------------------------------------------------------------------------------------------------------ arrays


def _of_arrays(
    where: Path | str,
    stored: Mapping[str, SampleArray],
    made: LabeledSamples,
    inputs: Sequence[Input],
    options: DataOptions,
) -> LabeledSamples:
    """Samples of arrays by name, and the labels that lie beside them."""
    found = sample_array(where, stored, inputs) if len(inputs) == 1 else None
    if found is None:
        return made
    one, name = found
    pixels = pixel_array(where, name, stored[name], one, options.preprocess)
    if pixels is not None:
        made = _laid_out(made, pixels.geometry)
    classes, boxes = _truth_in(where, stored, stored[name].shape[0] if stored[name].shape else 0)
    made = replace(made, where=where, boxes=boxes, whole=made.whole and replace(made.whole, boxes=boxes))
    return made if classes is None else with_classes(made, classes)


def with_classes(made: LabeledSamples, classes: Int64) -> LabeledSamples:
    """The samples with their right classes: int64[n], one for each sample of the data, in their order."""
    whole = made.whole and replace(made.whole, classes=classes)
    return replace(made, classes=classes[: made.count], whole=whole)


def _truth_in(where: Path | str, stored: Mapping[str, SampleArray], rows: int) -> tuple[Int64 | None, bool]:
    """The classes that lie beside the samples, one each, and whether boxes do."""
    if "boxes" in stored and isinstance(where, Path):
        return None, True
    if not any(key in stored and stored[key].shape[:1] == (rows,) for key in ARRAY_KEYS):
        return None, False
    return array_classes(where, stored), False


def _laid_out(made: LabeledSamples, geometry: Geometry) -> LabeledSamples:
    """The samples as images that were laid into the input so."""

    def chunks() -> Iterator[Chunk]:
        return (replace(chunk, geometries=(geometry,) * len(chunk.geometries)) for chunk in made.chunks())

    return replace(made, chunks=chunks)


def _part_of_loader(data: Data, inputs: Sequence[Input], options: DataOptions) -> LabeledSamples:
    """What a loader gives; of a part with the places of its samples in the whole, which wants one walk more."""
    made = _of_loader(open_loader(data, inputs, options))
    if options.part is None:
        return made
    digests = digests_of(open_source(data, inputs, options.preprocess, options.max_bytes), inputs)
    positions = [place for place, digest in enumerate(digests) if options.part.holds(digest)][: options.limit]
    used = len(positions) - len(positions) % (rows_of_run(inputs) or 1)
    whole = _of_loader(open_loader(data, inputs, replace(options, part=None, limit=None)))
    return replace(made, whole=whole, positions=tuple(positions[:used]))


def _of_loader(loader: DataLoader) -> LabeledSamples:
    def chunks() -> Iterator[Chunk]:
        for batch in loader:
            yield Chunk(batch, (geometry_of_array(batch[loader.inputs[0].name]),) * loader.count(batch))

    return LabeledSamples(loader.description.get("name", "data"), chunks, count=loader.samples, notes=loader.notes)


def geometry_of_array(array: Array) -> Geometry:
    """Arrays are the input itself: boxes come out in its pixels."""
    if array.ndim != 4:
        return Geometry(0, 0, (1.0, 1.0), (0.0, 0.0), (0, 0))
    first = array.shape[1] in (1, 3) or array.shape[3] not in (1, 3)
    rows, columns = array.shape[2:] if first else array.shape[1:3]
    return Geometry(columns, rows, (1.0, 1.0), (0.0, 0.0), (columns, rows))
