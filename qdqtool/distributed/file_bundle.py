# SPDX-License-Identifier: Apache-2.0
"""A calibration's files as bytes, for machines that do not see them. How they travel is not known here."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool.data.image_folder import documents_in, find_images
from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.polygraphy_loader import split_script
from qdqtool.distributed.shard_job import ShardJob, absolute, data_files
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model

_TODO = "put the files where every worker sees them, and leave --dask-ship out"


@dataclass(frozen=True)
class FileBundle:
    """Files to unpack below one folder."""

    files: dict[str, bytes]
    links: dict[str, str]
    digest: str


def pack(job: ShardJob, most_bytes: int) -> tuple[ShardJob, FileBundle]:
    """All files that a job reads, and the job as it is where they are unpacked: its paths are relative then.

    Raises:
        QdqError: the data is a loader script, which may read anything; the files are too many bytes, or unreadable.
    """
    opened = open_model(job.model)
    model = Path(job.model)
    places = {f"model/{model.name}": model}
    places.update((f"model/{name}", path) for name, path in data_files(opened).items())
    links: dict[str, str] = {}
    packed: list[str] = []
    for number, path in enumerate(_data_paths(job)):
        name = path.resolve().name  # the table tells this one
        packed.append(f"data{number}/{path.name}")
        if name != path.name:
            links[packed[-1]] = f"data{number}/{name}"
        places.update((f"data{number}/{below}", file) for below, file in _listed(path, name))
    _check_size(places.values(), most_bytes)
    files = {name: _read(path) for name, path in places.items()}
    data = JsonInputs(tuple(map(Path, packed))) if isinstance(job.data, JsonInputs) else packed[0]
    called = tuple((new, name) for new, (_, name) in zip([f"model/{model.name}", *packed], job.called, strict=True))
    shipped = replace(job, model=f"model/{model.name}", data=data, called=called)
    return shipped, FileBundle(files, links, _digest(files, links))


def unpack(job: ShardJob, bundle: FileBundle, folder: Path) -> ShardJob:
    """The job with its files below `folder`, where they are unpacked unless they lie there already.

    Several threads and processes may do so at once.
    """
    place = place_of(bundle.digest, folder)
    if not place.is_dir():
        half = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=folder))
        for name, content in bundle.files.items():
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            (half / name).write_bytes(content)
        for name, target in bundle.links.items():
            (half / name).symlink_to((half / target).name)
        try:
            half.rename(place)
        except OSError:  # another one was faster
            shutil.rmtree(half)
            if not place.is_dir():
                raise
    called = tuple((str(place / path), name) for path, name in job.called)
    return replace(job, model=str(place / job.model), data=absolute(job.data, place), called=called)


def remove(digest: str, folder: Path) -> None:
    """Take away what was unpacked."""
    shutil.rmtree(place_of(digest, folder), ignore_errors=True)


def place_of(digest: str, folder: Path) -> Path:
    """Where a bundle is unpacked below a machine's folder."""
    return folder / f"qdqtool-{digest[:16]}"


def _data_paths(job: ShardJob) -> list[Path]:
    if isinstance(job.data, JsonInputs):
        return list(job.data.paths)
    if split_script(job.data) and not Path(job.data).is_dir():
        raise QdqError(job.called[1][1], "is a script, which may read other files and cannot be sent", _TODO)
    return [Path(job.data)]


def _listed(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """A file under its name; of a folder its images, or else its JSON, under their names in it."""
    if path.is_file():
        yield name, path
        return
    if not path.is_dir():
        raise QdqError(
            path, "is a pattern, which other machines may resolve differently", "give the folder of the images"
        )
    images = find_images(path)
    for file in documents_in(path) if images is None else images.files:
        yield f"{name}/{file.relative_to(path).as_posix()}", file


def _check_size(paths: Iterable[Path], most_bytes: int) -> None:
    total = sum(path.stat().st_size for path in paths)
    if total > most_bytes:
        reason = f"model and data are {total >> 20} MiB, and every worker would hold them in memory"
        raise QdqError("--dask-ship", reason, f"{_TODO}, or raise --max-data")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise QdqError(path, f"cannot be read ({error.strerror})", "check its permissions") from error


def _digest(files: dict[str, bytes], links: dict[str, str]) -> str:
    state = hashlib.sha256()
    for name, content in files.items():
        state.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    for name, target in links.items():
        state.update(os.fsencode(name) + b"\0" + os.fsencode(target) + b"\0")
    return state.hexdigest()
