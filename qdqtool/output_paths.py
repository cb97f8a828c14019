# SPDX-License-Identifier: Apache-2.0
"""Where the results of a verb go, and which files it reads: refused before any work where one would harm another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from qdqtool.data.polygraphy_loader import split_script
from qdqtool.files import check_outputs
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model


def output_path(opened: Model, output: str | Path | None, ending: str) -> Path | None:
    """The file to write; for a path that names none, the input's name with another ending."""
    if output is not None:
        return Path(output)
    return None if opened.path is None else opened.path.with_name(opened.path.stem + ending)


def check_target(path: Path | None, inputs: Iterable[Path | str | None]) -> None:
    """Refuse a place for the only file of a run; see `check_targets`."""
    check_targets({"the output": path}, inputs)


def check_targets(outputs: Mapping[str, Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Refuse places that would do harm, before any work is done.

    Raises:
        QdqError: see `check_outputs`.
    """
    check_outputs(outputs, [source for source in inputs if source is not None])


def check_weights(output: Path | None, model: object) -> None:
    """Refuse to write over a data file of a model that is not open yet; a new file is over none.

    Raises:
        QdqError: `output` is one, or the model cannot be opened.
    """
    if output is not None and isinstance(model, (str, Path)) and output.exists():
        check_target(output, open_model(model).files)


def files_of(*sources: object) -> list[Path]:
    """The files that data, labels, models or scripts come from, those that come from any."""
    return [file for source in sources for file in _files_of(source)]


def _files_of(source: object) -> list[Path]:
    files = getattr(source, "files", None)
    if callable(files):
        return [Path(name) for name in files()]
    if not isinstance(source, (str, Path)):
        return []
    script = split_script(os.fspath(source))
    return [Path(source) if script is None else script[0]]


def path_of(source: object) -> Path | None:
    """The file that a model, data or a table comes from, where it comes from one."""
    return Path(source) if isinstance(source, (str, Path)) else None
