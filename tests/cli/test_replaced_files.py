# SPDX-License-Identifier: Apache-2.0
"""A file that a command replaces is told of."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from qdqtool.cli.replaced_files import files_there, replaced
from tests.cli.command import refused, run, write_net

Capsys = pytest.CaptureFixture[str]


def test_a_file_that_was_there_is_told_of_once_it_is_replaced(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path)
    words = ("insert", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx"))
    assert "was there" not in run(capsys, *words).err
    assert f"note: {tmp_path / 'q.onnx'} was there " in run(capsys, *words).err
    assert "was there" not in run(capsys, *words, "-q").err


def test_a_file_that_stays_is_not_told_of(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path)
    (tmp_path / "q.onnx").write_text("mine")
    said = run(capsys, "insert", str(tmp_path / "absent.onnx"), "-o", str(tmp_path / "q.onnx"))
    assert said.code == 2 and "was there" not in said.err
    assert "was there" not in run(capsys, "insert", str(tmp_path / "m.onnx"), "--dry-run").err


def test_a_cache_is_an_output_of_those_that_write_it(tmp_path: Path) -> None:
    (tmp_path / "c.cache").write_text("x")
    args = argparse.Namespace(output=None, cache=str(tmp_path / "c.cache"))
    assert list(files_there("peel", args)) == [tmp_path / "c.cache"]
    assert files_there("graft", args) == {}
    assert files_there("insert", argparse.Namespace(output=str(tmp_path))) == {}, "a folder is another matter"
    assert files_there("insert", argparse.Namespace(output="a\0b")) == {}
    before = files_there("peel", args)
    assert replaced(before) == []
    (tmp_path / "c.cache").unlink()
    assert replaced(before) == []


@pytest.mark.parametrize(
    "words",
    [
        "insert m.onnx -o -",
        "insert m.onnx --output=-",
        "peel m.onnx --target gpu --trt-version 8502 --cache -",
        "compare m.onnx m.onnx --data d.npz --report -",
        "compare m.onnx m.onnx --data d.npz --draw -",
        "finetune m.onnx --data d.npz --log -",
        "calibrate m.onnx --data d.npz --checkpoint -",
        "infer m.onnx --data d.npz -o -",
        "deploy m.onnx --data d.npz --for 8.6.1 -o -",
        "run r.toml -o -",
        "cache convert c.cache --to json -o -",
        "ptq m.onnx --data d.npz --target gpu --trt-version 8502 --emit-dir -",
    ],
)
def test_a_dash_is_no_file_to_write(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """It made a file of that name, where other programs write to stdout."""
    write_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    refused(run(capsys, *words.split()), " -: is no file")
    assert not (tmp_path / "-").exists()


def test_a_dash_that_is_read_is_a_file_that_is_not_there(tmp_path: Path, capsys: Capsys) -> None:
    refused(run(capsys, "report", write_net(tmp_path), "--log", "-"), "-: cannot be read (No such file or directory)")
