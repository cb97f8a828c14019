# SPDX-License-Identifier: Apache-2.0
"""What a verb reads is never what it writes: every option that names a file is told to `check_targets`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.cli.main import main
from qdqtool.output_paths import files_of
from tests.graphs import SMALL_NET, model_of


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain model, its Q/DQ form, data of two kinds, labels, names, a cache."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    onnx.save(model_of(SMALL_NET), folder / "m.onnx")
    np.save(folder / "d.npy", rng.normal(size=(8, 4, 8, 8)).astype(np.float32))
    np.save(folder / "e.npy", rng.normal(size=(8, 4, 8, 8)).astype(np.float32))
    np.save(folder / "labels.npy", np.zeros(8, np.int64))
    (folder / "names.txt").write_text("one\ntwo\n")
    (folder / "c.cache").write_text("TRT-8601-EntropyCalibration2\n")
    (folder / "script.py").write_text(
        "import numpy as np\ndef load_data():\n    return [{'x': np.ones((1, 4, 8, 8), np.float32)}]\n"
    )
    assert main(["insert", f"{folder}/m.onnx", "-o", f"{folder}/q.onnx", "-q"]) == 0
    return folder


_JUDGED = ["--data", "d.npy", "--eval-data", "e.npy", "--eval-labels", "labels.npy"]
_PEEL = ["peel", "q.onnx", "--target", "gpu", "--trt-version", "8.6.1", "--names", "names.txt", "--emit", "deepstream"]
_PTQ = ["ptq", "m.onnx", "--data", "d.npy", "--target", "gpu", "--trt-version", "8.6.1", "--names", "names.txt"]
_IMPROVE = ["improve", "q.onnx", "--data", "d.npy", "--max-loss", "1"]
_REPORT = ["report", "q.onnx", "--data", "d.npy", "--labels", "labels.npy"]
CASES: list[tuple[str, Sequence[str]]] = [
    ("d.npy", ["lint", "q.onnx", "--data", "d.npy", "--fix", "-o"]),
    ("names.txt", [*_PEEL, "--cache"]),
    ("names.txt", [*_PTQ, "--emit", "deepstream", "--cache"]),
    ("script.py", ["insert", "m.onnx", "--data", "script.py:load_data", "-o"]),
    ("script.py", ["calibrate", "m.onnx", "--data", "script.py:load_data", "-o"]),
    *((name, ["finetune", "q.onnx", *_JUDGED, "-o"]) for name in ("e.npy", "labels.npy")),
    ("names.txt", ["finetune", "q.onnx", *_JUDGED, "--eval-names", "names.txt", "-o"]),
    ("script.py", ["finetune", "q.onnx", "--data", "d.npy", "--loss", "script.py:terms", "-o"]),
    ("labels.npy", ["finetune", "q.onnx", *_JUDGED, "-o", "t.onnx", "--report"]),
    ("c.cache", ["evaluate", "m.onnx", "--cache", "c.cache", "--data", "d.npy", "--report"]),
    ("names.txt", ["evaluate", "m.onnx", "--data", "d.npy", "--names", "names.txt", "--report"]),
    ("script.py", ["evaluate", "m.onnx", "--data", "d.npy", "--postprocess", "script.py:boxes", "--report"]),
    ("names.txt", [*_REPORT, "--names", "names.txt", "-o"]),
    ("script.py", [*_REPORT, "--postprocess", "script.py:boxes", "-o"]),
    ("labels.npy", [*_IMPROVE, "--labels", "labels.npy", "-o"]),
    ("names.txt", [*_IMPROVE, "--names", "names.txt", "-o"]),
    ("script.py", [*_IMPROVE, "--postprocess", "script.py", "-o"]),
]


@pytest.mark.parametrize(("name", "words"), CASES)
def test_no_file_that_an_option_names_is_overwritten(
    name: str, words: Sequence[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    before = (here / name).read_bytes()
    assert main([*words, name]) == 2
    assert re.search(f"{name}: .*never overwritten", capsys.readouterr().err)
    assert (here / name).read_bytes() == before


class Inputs:
    """What Polygraphy's inputs give."""

    def files(self) -> list[str]:
        return ["a.json", "b.json"]


@pytest.mark.parametrize(
    ("source", "files"),
    [
        (None, []),
        (np.zeros(1), []),
        ("folder", ["folder"]),
        (Path("m.onnx"), ["m.onnx"]),
        ("dir/loader.py", ["dir/loader.py"]),
        ("dir/loader.py:make", ["dir/loader.py"]),
        (Inputs(), ["a.json", "b.json"]),
    ],
)
def test_the_files_of_a_source(source: Any, files: list[str]) -> None:
    assert [path.as_posix() for path in files_of(source)] == files
    assert [path.as_posix() for path in files_of(None, source, "x.npy")] == [*files, "x.npy"]
