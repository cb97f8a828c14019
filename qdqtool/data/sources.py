# SPDX-License-Identifier: Apache-2.0
"""What `--data` may name: images, .npz, .npy, a loader script, JSON; each opened to items to walk again and again.

Every verb that reads data opens it by `open_source`. What a folder of images holds says `image_folder.py`, for
evaluation and Dask, too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.arrays import SampleArray
from qdqtool.data.image_folder import ImageFiles, as_fed, documents_in, find_images, image_input, image_reader
from qdqtool.data.images import SUFFIXES, ImageFileReader, ImageReader, has_color
from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.model_inputs import Array, Input, Item, check_dtype, check_names, checked
from qdqtool.data.options import DataPart
from qdqtool.data.parts import items_in_part, rows_of_run, sample_digest, samples_in
from qdqtool.data.pixel_arrays import is_archive, open_archive, open_arrays, pixel_array, sample_array, unused_note
from qdqtool.data.polygraphy_loader import items_of, load_script, read_json, split_script
from qdqtool.data.preprocess import Preprocess
from qdqtool.errors import QdqError
from qdqtool.file_digest import file_sha256

Part = tuple[int, Callable[[], Item]]

_ARRAYS, _HELD = ("npz", "npy"), 48 << 20  # kinds of data whose walks give the same, and bytes of them


@dataclass(frozen=True)
class SampleSource:
    """Samples, opened but not read.

    Attributes:
        where: the file or folder, for messages.
        kind: images, npz, npy, arrays, script, json or python.
        items: walks the data from its beginning; every item is a batch of one or more samples.
        samples: how many there are in all, None where only walking tells.
        notes: what was left out, and why.
        preprocess: the text of what is done to each image, "" where nothing is.
        files: what is read, in order; a script counts for whatever it loads.
        parts: the items as number of samples and a function that reads them, in any order and thread; None where they
            can only be had one after the other.
        once: whether the items can be walked a single time: a generator.
        every: of image files all of them, also those that fill no batch.
        remake: of image files the same source of some of them.
    """

    where: object
    kind: str
    items: Callable[[], Iterator[Item]]
    samples: int | None = None
    notes: tuple[str, ...] = ()
    preprocess: str = ""
    files: tuple[Path, ...] = ()
    parts: tuple[Part, ...] | None = None
    once: bool = False
    every: tuple[Path, ...] = ()
    remake: Callable[[Sequence[Path]], SampleSource] | None = None


def open_source(
    data: Any,
    inputs: Sequence[Input],
    preprocess: str | Preprocess | None,
    max_bytes: int,
    part: DataPart | None = None,
) -> SampleSource:
    """Find out what the data is and look at its outside (names, shapes, dtypes), not yet at its values.

    Args:
        data: a path (text may be ``loader.py:function``), `JsonInputs`, an array, a dict of arrays, a callable that
            returns an iterable of ``{name: array}``, or such an iterable itself.
        inputs: what the model takes.
        preprocess: for images only: files, or arrays of eight bits.
        max_bytes: the most that an archive may unpack to.
        part: which samples; None for all.

    Raises:
        QdqError: no such file, a kind that is not read, or one that does not fit the inputs.
    """
    source = _open(data, inputs, preprocess, max_bytes)
    return source if part is None else _in_part(source, inputs, part)


def _in_part(source: SampleSource, inputs: Sequence[Input], part: DataPart) -> SampleSource:
    """The samples of a part: image files by their bytes, anything else by its arrays."""
    if source.remake is not None:
        return source.remake([file for file in source.every if part.holds(file_sha256(file))])
    items = partial(_part_items, source, inputs, part, [])
    return replace(source, items=items, samples=None, notes=(), parts=None)


def digests_of(source: SampleSource, inputs: Sequence[Input]) -> list[str]:
    """The digest of every sample, in order; see `DataPart`. Image files are read, anything else is walked once.

    Raises:
        QdqError: samples that cannot be read or do not fit the inputs.
    """
    if source.remake is not None:
        return [file_sha256(file) for file in source.every]
    items = (checked(source.where, item, inputs) for item in source.items())
    rows = rows_of_run(inputs)
    return [sample_digest(one) for item in items for one in (samples_in(item) if rows else [item])]


def _part_items(
    source: SampleSource, inputs: Sequence[Input], part: DataPart, held: list[Sequence[Item]]
) -> Iterator[Item]:
    """The samples of a part. Those of a file of arrays stay in `held`, where they are few, for the next walk."""
    if held:
        yield from map(dict, held[0])
        return
    kept, left = list[Item](), _HELD if source.kind in _ARRAYS else 0
    for item in items_in_part((checked(source.where, one, inputs) for one in source.items()), inputs, part):
        left -= sum(array.nbytes for array in item.values())
        if left >= 0:
            kept.append(item)
        yield dict(item)
    if left >= 0 and kept:
        held.append(kept)


def _open(data: Any, inputs: Sequence[Input], preprocess: str | Preprocess | None, max_bytes: int) -> SampleSource:
    """What the data is, all of it."""
    if isinstance(data, JsonInputs):
        return _from_json(data.paths[0] if len(data.paths) == 1 else str(data), data.files(), max_bytes)
    if not isinstance(data, str | os.PathLike):
        held = open_arrays(data, max_bytes)
        return _from_python(data) if held is None else _from_arrays_by_name("data", "arrays", held, inputs, preprocess)
    text = os.fspath(data)
    script = split_script(text)
    path = Path(text)
    images = _images(path)
    may_be = os.path.lexists(path) or script  # what is not there is refused below
    if preprocess is not None and images is None and may_be and not path.is_dir() and not is_archive(path):
        raise QdqError(path, "holds no images, and --preprocess is for images only", "leave it out")
    if script and not path.is_dir():
        make = load_script(*script)
        return SampleSource(script[0], "script", lambda: items_of(script[0], make), files=(script[0],))
    if images is not None:
        one = image_input(path, inputs)
        return _from_images(path, images, one, image_reader(path, one, preprocess))
    try:
        path.stat()
        if path.is_dir():
            return _from_folder(path, max_bytes)
        if not is_archive(path):
            return _from_file(path, max_bytes)
        kind = path.suffix.lower().removeprefix(".")
        return _from_arrays_by_name(path, kind, open_archive(path, max_bytes), inputs, preprocess)
    except FileNotFoundError:
        hint = "give images (a file, a folder, a pattern), a .npz, .npy, .json or a .py with load_data()"
        raise QdqError(path, "does not exist", hint) from None
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL in it
        raise QdqError(path, f"cannot be read ({error})") from error


def _from_python(data: Any) -> SampleSource:
    if callable(data):
        return SampleSource("data", "python", lambda: items_of("data", data))
    if not isinstance(data, Iterable):
        kind = type(data).__name__
        raise QdqError(
            "data",
            f"is a {kind}",
            "give a path, arrays, an iterable of {input name: array}, or a function returning one",
        )
    once = itertools.count()

    def items() -> Iterator[Item]:
        if isinstance(data, Iterator) and next(once):
            raise QdqError("data", "is a generator, which can be iterated only once", "give a function that returns it")
        return items_of("data", lambda: data)

    return SampleSource("data", "python", items, once=isinstance(data, Iterator))


def _from_arrays_by_name(
    where: Path | str,
    kind: str,
    stored: Mapping[str, SampleArray],
    inputs: Sequence[Input],
    preprocess: str | Preprocess | None,
) -> SampleSource:
    """Arrays of a file or in memory: those of the inputs' names, and one of another name or of 8-bit images."""
    found = sample_array(where, stored, inputs)
    if found is None:
        if preprocess is not None:
            reason = f"holds arrays for {len(inputs)} inputs, and --preprocess is for images of a single one"
            raise QdqError(where, reason, "leave --preprocess out")
        if "" in stored:
            names, form = ", ".join(one.name for one in inputs), "a .npz" if isinstance(where, Path) else "a dict"
            raise QdqError(where, f"is one array, the model has {len(inputs)} inputs", f"give {form} with {names}")
        return _from_arrays(where, kind, stored, inputs)
    one, name = found
    pixels = pixel_array(where, name, stored[name], one, preprocess)
    fed = {other.name: stored[other.name] for other in inputs if other is not one}
    source = _from_arrays(where, kind, {**fed, one.name: stored[name] if pixels is None else pixels}, inputs)
    notes = (*unused_note(stored, (name, *fed)), *source.notes)
    return replace(source, notes=notes, preprocess="" if pixels is None else str(pixels.reader.spec))


def _from_file(path: Path, max_bytes: int) -> SampleSource:
    if path.suffix.lower() == ".json":
        return _from_json(path, [path], max_bytes)
    raise QdqError(
        path,
        "is not a kind of data that is read",
        "give images (a file, a folder, a pattern), a .npz, .npy, .json or .py",
    )


def _from_json(where: object, paths: Sequence[Path], max_bytes: int) -> SampleSource:
    def items() -> Iterator[Item]:
        return itertools.chain.from_iterable(read_json(path, max_bytes) for path in paths)

    return SampleSource(where, "json", items, files=tuple(paths))


def _images(path: Path) -> ImageFiles | None:
    try:
        return find_images(path)
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL in it
        raise QdqError(path, f"cannot be read ({error})") from error


def _from_folder(path: Path, max_bytes: int) -> SampleSource:
    """A folder without images."""
    documents = documents_in(path)
    if documents:
        return _from_json(path, documents, max_bytes)
    raise QdqError(path, "holds no images", f"({', '.join(SUFFIXES)})")


def _made_grey(images: ImageFiles, one: Input, reader: ImageReader) -> tuple[str, ...]:
    """A sentence where the first image has color and the input one channel."""
    if reader.channels != 1 or not has_color(images.files[0]):
        return ()
    return (f"color is left out: {one.name} has one channel, so images are made grey (Pillow's L)",)


def _from_images(path: Path, images: ImageFiles, one: Input, reader: ImageReader) -> SampleSource:
    group = one.first or 1
    count = len(images.files) // group * group
    used = images.files[:count]
    held = ImageFileReader(reader)

    def read(files: Sequence[Path]) -> Item:
        arrays = [as_fed(file, held.read(file), one) for file in files]
        return {one.name: arrays[0] if group == 1 else np.concatenate(arrays)}

    parts = tuple((group, partial(read, used[start : start + group])) for start in range(0, count, group))
    notes = (*images.notes, *_made_grey(images, one, reader), *_left_over(len(images.files) - count, one))
    return SampleSource(
        path,
        "images",
        lambda: (load() for _, load in parts),
        count,
        notes,
        str(reader.spec),
        files=used,
        parts=parts,
        every=images.files,
        remake=lambda some: _from_images(path, replace(images, files=tuple(some)), one, reader),
    )


def _left_over(count: int, one: Input) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"the last {count} samples do not fill a batch of {one.first}, which {one.name} fixes: left out",)


def _from_arrays(
    path: Path | str, kind: str, stored: Mapping[str, SampleArray], inputs: Sequence[Input]
) -> SampleSource:
    """Arrays whose first axis counts samples: either rows of the input's own first axis, or whole inputs stacked."""
    check_names(path, stored, inputs)
    counts = {one.name: _count(path, stored[one.name], one) for one in inputs}
    known = {name: count for name, count in counts.items() if count is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in known.items())
        raise QdqError(path, f"holds different numbers of samples ({listed})", "give every input as many")
    walked = {one.name: _walk(stored[one.name], one) for one in inputs}
    count = next(iter(known.values()), 1)

    def items() -> Iterator[Item]:
        streams = [walked[one.name](count) for one in inputs]
        for arrays in zip(*streams, strict=True):
            yield {one.name: array for one, array in zip(inputs, arrays, strict=True)}

    files = (path,) if isinstance(path, Path) else ()
    array, first = stored[inputs[0].name], inputs[0]
    if _stacked(array, first):
        return SampleSource(path, kind, items, count * (array.shape[1] if len(array.shape) > 1 else 1), files=files)
    each = first.first or 1
    over = array.shape[0] % each if array.shape else 0
    return SampleSource(path, kind, items, count * each, _left_over(over, first), files=files)


def _stacked(array: SampleArray, one: Input) -> bool:
    return one.shape is not None and len(array.shape) == len(one.shape) + 1


def _count(path: Path | str, array: SampleArray, one: Input) -> int | None:
    """How many items the array makes; None for a scalar that all share."""
    check_dtype(path, array.dtype, one)
    if _stacked(array, one):
        shape = array.shape[1:]
    elif one.first and array.shape:
        shape = (one.first, *array.shape[1:])
    else:
        shape = array.shape
    if not one.fits(shape):
        hint = "the first axis counts samples; give arrays of that shape"
        raise QdqError(path, f"input {one.name!r} takes {one.format_shape()}, the array has {list(array.shape)}", hint)
    if not array.shape:
        return None
    return array.shape[0] if _stacked(array, one) else array.shape[0] // (one.first or 1)


def _walk(array: SampleArray, one: Input) -> Callable[[int], Iterator[Array]]:
    if not array.shape:
        return lambda count: itertools.repeat(array.whole(), count)
    if _stacked(array, one):
        return lambda count: (block[0] for block in array.blocks(1))
    return lambda count: itertools.islice(array.blocks(one.first or 1), count)
