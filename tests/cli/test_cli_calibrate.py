# SPDX-License-Identifier: Apache-2.0
"""`qdqtool calibrate`: what it writes, prints and refuses, through the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.amax.method_table import NAMES
from qdqtool.cli.main import main
from qdqtool.scales import ScaleTable

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

TEXT = """<ir_version: 8, opset_import: ["" : 13]>
g (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) { r = Relu(x)  z = Sub(r, r)  y = Add(r, z) }"""

pytestmark = pytest.mark.usefixtures("heard")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    data = np.random.default_rng(2).normal(size=(6, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=data)
    rows = f"np.load({str(tmp_path / 'd.npz')!r})['x']"
    (tmp_path / "d.py").write_text(
        f"import numpy as np\ndef load_data():\n for row in {rows}: yield {{'x': row[None]}}\n"
    )
    return tmp_path


def run(folder: Path, *words: str) -> int:
    return main(["calibrate", str(folder / "m.onnx"), *words])


def test_table_beside_the_model_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--data", str(folder / "d.npz")) == 0
    out, err = capsys.readouterr()
    table = ScaleTable.from_json((folder / "m.scales.json").read_text())
    assert list(table) == ["x", "r", "y"]
    assert table.unscaled == {"z": "is all zero"}
    assert "3 tensors " in out and "auto, 6 samples" in out
    assert "z: " in out and "zero" in out
    assert f"qdqtool insert {folder / 'm.onnx'} --scales {folder / 'm.scales.json'}" in out
    assert err == ""


def test_help_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "-h"]) == 0
    words = capsys.readouterr().out.rpartition("--method M")[2].partition("(default")[0].replace(",", " ").split()
    assert {word.partition("[")[0] for word in words} - {"or", "(TensorRT's)"} == set(NAMES)


def test_npz_and_script_give_the_same_scales(folder: Path) -> None:
    for name, source in (("a", "d.npz"), ("b", "d.py"), ("c", "d.py:load_data")):
        assert run(folder, "--data", str(folder / source), "-q", "-o", str(folder / f"{name}.json")) == 0
    tables = [ScaleTable.from_json((folder / f"{name}.json").read_text()).scales for name in "abc"]
    assert all(one["y"].same_bits(tables[0]["y"]) and list(one) == list(tables[0]) for one in tables)


def test_limit_batch_and_method_arrive(folder: Path) -> None:
    words = ["--data", str(folder / "d.npz"), "--limit", "5", "--batch", "2", "--method", "percentile=99.9"]
    assert run(folder, *words, "-q", "-o", str(folder / "s.json")) == 0
    facts = json.loads((folder / "s.json").read_text())["facts"]
    assert (facts["samples"], facts["method"], facts["data"]["batch"]) == (5, "percentile=99.9", 2)


def test_json_is_all_there_is_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--data", str(folder / "d.npz"), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["scales"], said["unscaled"], said["samples"]) == (3, {"z": "is all zero"}, 6)
    assert said["file"] == str(folder / "m.scales.json")


def test_images_with_a_preset(folder: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    (folder / "imgs").mkdir()
    for k in range(3):
        pil.fromarray(np.full((16, 12, 3), 100 + k, np.uint8)).save(folder / "imgs" / f"{k}.png")
    words = ["--data", str(folder / "imgs"), "--preprocess", "yolov8", "--method", "max", "-q"]
    assert run(folder, *words, "-o", str(folder / "s.json")) == 0
    table = ScaleTable.from_json((folder / "s.json").read_text())
    grey = np.float32(114) * np.float32(1 / 255)  # the padding is the brightest
    assert table["x"].bits.tobytes() == (grey / np.float32(127)).tobytes()
    assert table.provenance.data["preprocess"].startswith("size=8x8,layout=nchw,color=rgb,")


def test_left_over_samples_are_told_on_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TEXT.replace("[N,", "[4,")
    (folder / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    assert run(folder, "--data", str(folder / "d.npz")) == 0
    assert "warning: " in (err := capsys.readouterr().err)
    assert re.search("last 2 samples .*batch of 4", err)


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--data", "{}/no.npz"], 2, "does not exist"),
        (["--data", "{}/d.npz", "--limit", "0"], 2, "leaves no samples"),
        (["--data", "{}/d.npz", "--method", "mes"], 2, "--method"),
        (["--data", "{}/d.npz", "--preprocess", "ssd"], 2, "for images only"),
        (["--data", "{}/d.npz", "-o", "{}/d.npz"], 2, "never overwritten"),
        (["--data", "{}/d.npz", "-o", "{}/m.onnx"], 2, "never overwritten"),
        (["--data", "{}/d.npz", "-o", "{}/no/s.json"], 2, "folder does not exist"),
        (["--data", "{}/d.npz", "--max-data", "1K"], 2, "--max-data"),
        (["--data", "{}/d.npz", "--max-data", "lots"], 2, "number of bytes"),
        (["--data", "{}/d.npz", "--provider", "tpu"], 2, "--provider"),
        (["--dta", "{}/d.npz"], 2, "--data"),
        ([], 2, "--data"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, part: str
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(folder, *(word.format(folder) for word in words)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("qdqtool: error: ")
    assert err.count("\n") == 1
    assert part in err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


# Long runs and many machines.


def test_shards_merged_are_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", str(folder / "d.npz"))
    assert run(folder, *data, "--method", "mse", "-o", str(folder / "whole.json")) == 0
    for shard in ("1/2", "2/2"):
        assert run(folder, *data, "--shard", shard, "-o", str(folder / f"{shard[0]}.state"), "--workers", "2") == 0
    out = capsys.readouterr().out
    assert "1.state: shard 1/2, 3 samples" in out
    assert "qdqtool calibrate --merge" in out
    states = [str(folder / f"{number}.state") for number in (2, 1)]
    assert main(["calibrate", "--merge", *states, "-o", str(folder / "merged.json")]) == 0
    assert (folder / "merged.json").read_bytes() == (folder / "whole.json").read_bytes()


def test_the_checkpoint_goes_when_the_table_is_there(folder: Path) -> None:
    keep = ("--checkpoint", str(folder / "c"), "-o", str(folder / "s.json"))
    assert run(folder, "--data", str(folder / "d.npz"), *keep) == 0
    assert not (folder / "c").exists()
    assert (folder / "s.json").exists()


def test_interrupted_says_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "kill.py"
    script.write_text(
        "import os, signal\nimport numpy as np\ndef load_data():\n"
        "    for k in range(6):\n"
        "        if k == 3 and os.environ.get('KILL'): os.kill(os.getpid(), signal.SIGTERM)\n"
        "        yield {'x': np.full((1, 3, 8, 8), k - 2.5, 'f')}\n"
    )
    words = ("--data", str(script), "--checkpoint", str(folder / "c"), "-o", str(folder / "s.json"))
    os.environ["KILL"] = "1"
    try:
        assert run(folder, *words) == 130
    finally:
        del os.environ["KILL"]
    reported = capsys.readouterr()
    assert reported.err.startswith("qdqtool: interrupted") and "--resume" in reported.err
    assert not (folder / "s.json").exists()
    assert run(folder, *words) == 2
    assert "continue it with --resume" in capsys.readouterr().err
    assert run(folder, *words, "--resume") == 0
    assert run(folder, "--data", str(script), "-o", str(folder / "whole.json")) == 0
    assert (folder / "s.json").read_bytes() == (folder / "whole.json").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--resume"], "--resume: continues from a checkpoint, and none is named; give --checkpoint F"),
        (["--shard", "1/2"], "--shard: needs the name of the state; give -o part.state"),
        (["--shard", "3/2", "-o", "p"], "--shard: '3/2' is not the i-th of n; write it as 1/8 to 8/8"),
        (["--dask", "local:2", "--shard", "1/2"], "--dask: makes shards by itself and keeps no checkpoint"),
        (["--workers", "0"], "argument --workers: '0' is not a number of workers, 1 to 1024, or auto"),
        (["--workers", str(2**63 - 1)], "is not a number of workers, 1 to 1024, or auto"),
        (["--workers", "9" * 5000], "is not a number of workers, 1 to 1024, or auto"),
        (["--max-memory", "9" * 5000], "is not a number of bytes"),
        (["--batch", "0"], "--batch: "),
        (["--merge", "x"], "--merge: takes the states of shards, not MODEL; leave MODEL out"),
        (["--max-memory", "1K"], "--max-memory: 1024 bytes are too few"),
    ],
)
def test_words_that_do_not_go_together(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    before = sorted(folder.iterdir())
    assert run(folder, "--data", str(folder / "d.npz"), *words) == 2
    assert reason in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_merge_needs_a_name_and_real_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--merge", str(folder / "d.npz")]) == 2
    assert "--merge: " in (err := capsys.readouterr().err) and "name" in err
    assert main(["calibrate", "--merge", str(folder / "d.npz"), "-o", str(folder / "t.json")]) == 2
    assert "d.npz: " in (err := capsys.readouterr().err) and "calibration state" in err
    assert not (folder / "t.json").exists()


def test_more_workers_than_the_machine_has_use_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qdqtool.threads.usable_cores", lambda: 1)
    monkeypatch.setattr("qdqtool.cli.data.usable_cores", lambda: 1)
    assert run(folder, "--data", str(folder / "d.npz"), "--workers", "1000") == 0
    assert "note: --workers 1000: 8 are used" in capsys.readouterr().err
    assert run(folder, "--data", str(folder / "d.npz"), "--workers", "8") == 0
    assert "--workers" not in capsys.readouterr().err


def test_workers_auto(folder: Path) -> None:
    assert run(folder, "--data", str(folder / "d.npz"), "--workers", "auto", "--max-memory", "1G") == 0


@pytest.mark.parametrize("words", [[], ["--shard", "1/2"]])
def test_a_checkpoint_in_the_place_of_the_result_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The table was written, then removed as the checkpoint whose work is done."""
    out = str(folder / "s.json")
    assert run(folder, "--data", str(folder / "d.npz"), *words, "-o", out, "--checkpoint", out) == 2
    assert " --checkpoint; " in capsys.readouterr().err
    assert not (folder / "s.json").exists()
