# SPDX-License-Identifier: Apache-2.0
"""Every verb that reads `--data` takes the archive of 8-bit images that `evaluate` takes, and refuses the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.metadata import stored_table
from tests.cli.command import contents, refused, run
from tests.graphs import model_of
from tests.verbs.test_preprocess_taken import NET

pytest.importorskip("PIL.Image")

Capsys = pytest.CaptureFixture[str]
HOW = ("--preprocess", "scale=1/255,color=bgr")
OLD = ("--target", "gpu", "--trt-version", "8.6.1", "--method", "max")
VERBS = {
    "insert": (),
    "calibrate": (),
    "ptq": OLD,
    "amp": ("--to", "fp16"),
    "condition": ("--steps", "equalize"),
    "prune": ("--ratio", "0.5"),
    "sensitivity": (),
    "evaluate": (),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, an archive of images for it, and one that also holds other images."""
    onnx.save(model_of(NET), tmp_path / "m.onnx")
    pixels = np.random.default_rng(3).integers(0, 256, (12, 9, 9, 3), np.uint8)
    np.savez(tmp_path / "d.npz", x=pixels, y=np.arange(12) % 4)
    np.savez(tmp_path / "e.npz", x=pixels, y=np.arange(12) % 4, calib=pixels[:4])
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_take_an_archive_of_images(capsys: Capsys, folder: Path, verb: str) -> None:
    said = run(capsys, verb, folder / "m.onnx", "--data", folder / "d.npz", *HOW, *VERBS[verb])
    assert said.code == 0, said.err


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_refuse_one_without_a_preprocessing(capsys: Capsys, folder: Path, verb: str) -> None:
    before = contents(folder)
    said = run(capsys, verb, folder / "m.onnx", "--data", folder / "d.npz", *VERBS[verb])
    refused(said, "uint8 (array 'x')", "give --preprocess")
    assert contents(folder) == before


def test_the_model_knows_its_preprocessing_and_the_note_names_other_arrays(capsys: Capsys, folder: Path) -> None:
    said = run(capsys, "insert", folder / "m.onnx", "--data", folder / "e.npz", *HOW, "-o", folder / "q.onnx")
    assert "of its arrays 'x' is read, 'calib' is not" in said.err
    table = stored_table(onnx.load(folder / "q.onnx"))
    assert table is not None and "color=bgr,scale=0.0039" in str(table.provenance.preprocess)
    judged = run(capsys, "evaluate", folder / "q.onnx", "--data", folder / "d.npz")
    assert judged.code == 0 and "calibration data" in judged.err and "top1" in judged.out


def test_a_dry_run_refuses_the_data_that_a_run_refuses(capsys: Capsys, folder: Path) -> None:
    insert = ("insert", folder / "m.onnx", "--data")
    np.savez(folder / "f.npz", x=np.zeros((2, 3, 7, 7), np.float32))
    for words in ((folder / "d.npz",), (folder / "f.npz",), (folder / "none.npz",), (folder / "f.npz", *HOW)):
        wanted = run(capsys, *insert, *words)
        assert run(capsys, *insert, *words, "--dry-run") == wanted and wanted.code == 2
    good = run(capsys, *insert, folder / "d.npz", *HOW, "--dry-run")
    assert good.code == 0 and "pairs on" in good.out
