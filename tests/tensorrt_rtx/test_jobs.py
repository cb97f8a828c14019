# SPDX-License-Identifier: Apache-2.0
"""Which file the library reads, and what makes a question the same: content, external data, version, options."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.tensorrt_rtx.installed import RtxLibrary
from qdqtool.tensorrt_rtx.jobs import run_job
from qdqtool.tensorrt_rtx.result_cache import write_entry
from tests.graphs import SMALL_NET, model_of
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving

JOB = {"action": "parse"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RtxLibrary:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path / "results"))
    return giving(tmp_path, ACCEPTED)


def jobs(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "jobs").read_text().splitlines()]


def saved(folder: Path, name: str = "m.onnx", *, external: bool = False) -> Path:
    path = folder / name
    more = {"save_as_external_data": True, "location": "m.bin", "size_threshold": 0} if external else {}
    onnx.save(model_of(SMALL_NET), path, **more)
    return path


def test_a_file_is_read_where_it_lies(child: RtxLibrary, tmp_path: Path) -> None:
    path = saved(tmp_path)
    run_job(child, open_model(path), JOB, 30)
    (job,) = jobs(tmp_path)
    assert job["model"] == str(path) and "folder" not in job


def test_a_proto_is_written_to_a_temporary_file_that_is_removed(child: RtxLibrary, tmp_path: Path) -> None:
    run_job(child, open_model(model_of(SMALL_NET)), JOB, 30)
    (job,) = jobs(tmp_path)
    assert job["folder"] == "" and not Path(job["model"]).exists()


def test_a_file_whose_nodes_share_a_name_goes_in_a_copy_beside_its_data(child: RtxLibrary, tmp_path: Path) -> None:
    path = saved(tmp_path, external=True)
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        node.name = "same"
    path.write_bytes(model.SerializeToString())
    run_job(child, open_model(path), JOB, 30)
    (job,) = jobs(tmp_path)
    assert job["model"] != str(path) and job["folder"] == str(tmp_path.resolve())


def test_a_name_that_is_no_utf_8_goes_in_a_copy(child: RtxLibrary, tmp_path: Path) -> None:
    plain = saved(tmp_path)
    try:
        path = plain.rename(tmp_path / os.fsdecode(b"m\xff.onnx"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    run_job(child, open_model(path), JOB, 30)
    (job,) = jobs(tmp_path)
    assert job["model"].endswith("model.onnx")


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ("nothing", 1),
        ("the place of the file", 1),
        ("the weights", 2),
        ("the graph", 2),
        ("the version", 2),
        ("the options", 2),
    ],
)
def test_what_makes_a_question_another_one(child: RtxLibrary, tmp_path: Path, change: str, asked: int) -> None:
    path, library, job = saved(tmp_path, external=True), child, dict(JOB)
    run_job(library, open_model(path), job, 30)
    if change == "the place of the file":
        path = path.rename(tmp_path / "other.onnx")
    elif change == "the weights":
        (tmp_path / "m.bin").write_bytes(bytes((tmp_path / "m.bin").stat().st_size))
    elif change == "the graph":
        model = onnx.load(path, load_external_data=False)
        model.graph.doc_string = "another"
        path.write_bytes(model.SerializeToString())
    elif change == "the version":
        library = dataclasses.replace(child, version="1.8.0")
    elif change == "the options":
        job["sm"] = ["120"]
    run_job(library, open_model(path), job, 30)
    assert len(jobs(tmp_path)) == asked


def test_an_entry_that_is_no_result_is_asked_again(child: RtxLibrary, tmp_path: Path) -> None:
    opened = open_model(saved(tmp_path))
    run_job(child, opened, JOB, 30)
    (entry,) = (tmp_path / "results" / "rtx").iterdir()
    write_entry(entry.name.partition(".")[0], {"accepted": True})
    assert run_job(child, opened, JOB, 30)["version"] == "1.7.1.116" and len(jobs(tmp_path)) == 2


def test_an_engine_is_never_taken_from_the_cache(child: RtxLibrary, tmp_path: Path) -> None:
    for _ in range(2):
        run_job(child, open_model(saved(tmp_path)), {**JOB, "engine": str(tmp_path / "e")}, 30)
    assert len(jobs(tmp_path)) == 2


def test_external_data_in_an_unknown_folder_are_refused(child: RtxLibrary, tmp_path: Path) -> None:
    opened = dataclasses.replace(open_model(saved(tmp_path, external=True)), kind="proto", path=None, folder=None)
    with pytest.raises(QdqError, match=r"external data .*folder"):
        run_job(child, opened, JOB, 30)
    assert not (tmp_path / "jobs").exists()
