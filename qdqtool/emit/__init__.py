# SPDX-License-Identifier: Apache-2.0
"""Files beside a peeled model that tell a builder what must not run in INT8: one writer, one file each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from qdqtool.emit.deepstream import write_deepstream
from qdqtool.emit.job import EmitJob, Emitted
from qdqtool.emit.polygraphy_script import write_polygraphy_script
from qdqtool.emit.precision_json import write_precision_json
from qdqtool.emit.triton import write_triton
from qdqtool.emit.trtexec import write_trtexec

__all__ = ["ENDINGS", "EmitJob", "Emitted", "emit"]

# What each kind's file is called: the name of the cache with this for its ending.
ENDINGS: Mapping[str, str] = {
    "trtexec": ".trtexec.sh",
    "polygraphy-script": ".polygraphy.py",
    "deepstream": ".deepstream.txt",
    "triton": ".config.pbtxt",
    "json": ".precision.json",
}


def emit(job: EmitJob, kinds: Iterable[str]) -> dict[str, Emitted]:
    """The text of each kind of file, in the order of `ENDINGS`; nothing is written.

    Raises:
        QdqError: the version has no caches, or that kind of builder cannot express the model.
    """
    wanted = frozenset(kinds)
    job = replace(job, kinds=wanted | job.kinds)
    # Imported here: every verb that opens a model needs this package, and few write files
    writers = {
        "trtexec": write_trtexec,
        "polygraphy-script": write_polygraphy_script,
        "deepstream": write_deepstream,
        "triton": write_triton,
        "json": write_precision_json,
    }
    return {kind: writers[kind](job) for kind in ENDINGS if kind in wanted}
