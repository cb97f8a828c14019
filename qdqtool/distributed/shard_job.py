# SPDX-License-Identifier: Apache-2.0
"""One shard as a job for another machine: values in, bytes out. No engine is known here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.data.polygraphy_loader import split_script
from qdqtool.distributed.shards import calibrate_shard
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import external_range, is_external, location_of
from qdqtool.graph.validate import tensors_of
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.state_file import state_to_bytes
from qdqtool.precision.widen import open_fp32


@dataclass(frozen=True)
class ShardJob:
    """A calibration as every shard of it sees it.

    Attributes:
        model: the file.
        data: what `open_loader` opens: a path, ``loader.py:function``, or Polygraphy's JSON inputs.
        options: method, provider, threads and memory of one shard.
        data_options: how the data is read.
        called: (a path above, what messages call it), the model first.
    """

    model: str
    data: str | JsonInputs
    options: CalibrationOptions
    data_options: DataOptions
    called: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobFingerprint:
    """What two machines must agree on before they count together.

    Attributes:
        model: digest of the file and the sizes of its external data.
        data: digest of the data's names, sizes and options.
        batches: how many there are; None where only walking tells.
    """

    model: tuple[str, ...]
    data: str
    batches: int | None


@dataclass(frozen=True)
class ShardError:
    """A `QdqError` as values: an exception with arguments of its own does not come through every engine."""

    where: str
    reason: str
    todo: str
    missing: bool

    @classmethod
    def of(cls, error: QdqError, job: ShardJob) -> ShardError:
        """The error, with the names that the user knows for paths that only this machine has."""
        fields = {"where": error.where, "reason": error.reason, "todo": error.todo}
        for path, name in job.called:
            fields = {part: text.replace(path, name) for part, text in fields.items()}
        return cls(**fields, missing=isinstance(error, MissingPackageError))

    def error(self) -> QdqError:
        """The exception again."""
        kind = MissingPackageError if self.missing else QdqError
        return kind(self.where, self.reason, self.todo)


def make_job(
    model: str, data: str | JsonInputs, options: CalibrationOptions, data_options: DataOptions | None = None
) -> ShardJob:
    """A job whose paths hold in any working folder; bars and checkpoints are no business of a shard."""
    files = [model, *([str(path) for path in data.paths] if isinstance(data, JsonInputs) else [_file_of(data)])]
    called = tuple((str(Path(file).absolute()), file) for file in files)
    return ShardJob(
        model=str(Path(model).absolute()),
        data=absolute(data),
        options=replace(options, progress=False, checkpoint=None, resume=False, beside=""),
        data_options=data_options or DataOptions(),
        called=called,
    )


def absolute(data: str | JsonInputs, folder: Path | None = None) -> str | JsonInputs:
    """The same data by absolute paths; those that are relative lie below `folder`, or the working folder."""
    base = folder or Path.cwd()
    if isinstance(data, JsonInputs):
        return JsonInputs(tuple(base / path for path in data.paths))
    file = _file_of(data)
    return str(base / file) + data[len(file) :]


def _file_of(data: str) -> str:
    """The file of ``loader.py:function``; other data as it is."""
    script = split_script(data)
    return data if script is None or Path(data).is_dir() else data[: data.rindex(".py") + 3]


def look_at(job: ShardJob) -> JobFingerprint:
    """What this machine sees under the job's paths; no batch is read.

    Raises:
        QdqError: what `open_model` and `open_loader` refuse.
    """
    opened = open_fp32(job.model)
    sizes = (f"{name} {path.stat().st_size}" for name, path in data_files(opened).items())
    reading, _ = apply_known(opened.name, job.data, job.data_options, [known_preprocess(opened.proto)], anew=True)
    loader = open_loader(job.data, inputs_of(opened.proto.graph), reading)
    return JobFingerprint((str(opened.sha256), *sizes), loader.fingerprint, loader.batches)


def data_files(opened: Model) -> dict[str, Path]:
    """Where the files of the model's external data lie, by the name that the model has for each.

    Raises:
        QdqError: one is missing, or cannot be trusted.
    """
    external = [tensor for tensor in tensors_of(opened.proto) if is_external(tensor)]
    return {
        location_of(tensor, opened.name): external_range(tensor, opened.folder, opened.name).path for tensor in external
    }


def try_fingerprint(job: ShardJob) -> JobFingerprint | ShardError:
    """`look_at`, with a fault as a value."""
    try:
        return look_at(job)
    except QdqError as error:
        return ShardError.of(error, job)


def run_shard(job: ShardJob, number: int, total: int) -> bytes | ShardError:
    """Count one shard.

    Returns:
        The state as `state_to_bytes` tells it, or why there is none.
    """
    try:
        state = calibrate_shard(job.model, job.data, (number, total), job.options, job.data_options)
    except QdqError as error:
        return ShardError.of(error, job)
    return state_to_bytes(state)
