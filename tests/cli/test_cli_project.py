# SPDX-License-Identifier: Apache-2.0
"""`qdqtool.toml`: what it adds to a command, what it leaves alone, and how a bad one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.cli.main import VERBS, parser_of
from qdqtool.cli.project import _KEYS, _VERBS, FILE, read_project, with_project
from tests.cli.command import refused, run, write_net

Capsys = pytest.CaptureFixture[str]
WHOLE = """model = "m.onnx"
data = "images"
preprocess = "yolox"
labels = "labels.json"
names = "coco"
boards = ["orin:jp6.1", "rtx4090"]
"""
DATA = ["--data=images", "--preprocess=yolox"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text(WHOLE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "added"),
    [
        ("insert", ["m.onnx", *DATA]),
        ("insert other.onnx", DATA),
        ("insert --limit 8 -o q.onnx", ["m.onnx", *DATA]),
        ("insert --keep-float 2 other.onnx", DATA),
        ("insert --scales s.json", ["m.onnx"]),
        ("insert --data there", ["m.onnx", "--preprocess=yolox"]),
        ("insert --data there --preprocess imagenet", ["m.onnx"]),
        ("insert --load-inputs a.json b.json --limit 2", ["m.onnx", "--preprocess=yolox"]),
        ("calibrate --merge a.state b.state -o s.json", []),
        ("evaluate", ["m.onnx", *DATA, "--labels=labels.json", "--names=coco"]),
        ("evaluate ./m.onnx", [*DATA, "--labels=labels.json", "--names=coco"]),
        ("evaluate q.onnx", ["--baseline=m.onnx", *DATA, "--labels=labels.json", "--names=coco"]),
        ("evaluate q.onnx --baseline o.onnx --data there", ["--preprocess=yolox", "--names=coco"]),
        ("compare q.onnx", ["m.onnx", *DATA]),
        ("compare a.onnx b.onnx", DATA),
        (
            "improve q.onnx --max-loss 0.01 -o i.onnx",
            ["--source=m.onnx", *DATA, "--labels=labels.json", "--names=coco"],
        ),
        ("report q.onnx", ["--model=m.onnx", *DATA, "--labels=labels.json", "--names=coco"]),
        ("forecast", ["m.onnx", "--for=orin:jp6.1", "--for=rtx4090"]),
        ("forecast --for xavier-nx", ["m.onnx"]),
        ("deploy -o out --eval-data e", ["m.onnx", *DATA, "--names=coco"]),  # one board of two is not chosen
        ("peel q.onnx --target gpu --trt-version 8.6.1", []),
        ("ptq --target gpu --trt-version 8.6.1", ["m.onnx", *DATA]),
        ("finetune q.onnx", DATA),
        ("bench", ["m.onnx"]),
        ("bench a.onnx b.onnx", []),
    ],
)
def test_a_command_gets_what_it_does_not_give(folder: Path, capsys: Capsys, command: str, added: list[str]) -> None:
    verb, *words = command.split()
    assert with_project([verb, *words], parser_of) == [verb, *added, *words]
    said = capsys.readouterr()
    assert said.out == "" and said.err == (f"qdqtool: note: {FILE} adds {' '.join(added)}\n" if added else "")


def test_one_board_is_the_board_of_deploy(folder: Path) -> None:
    Path(FILE).write_text('boards = ["orin:jp6.1"]', encoding="utf-8")
    assert with_project(["deploy", "m.onnx"], parser_of) == ["deploy", "--for=orin:jp6.1", "m.onnx"]
    Path(FILE).write_text('boards = "orin:jp6.1"', encoding="utf-8")
    assert with_project(["deploy", "m.onnx"], parser_of) == ["deploy", "--for=orin:jp6.1", "m.onnx"]


@pytest.mark.parametrize(
    "words", [["insert", "-h"], ["doctor"], ["cache", "show", "c"], ["inser"], [], ["run", "r.toml"]]
)
def test_other_commands_do_not_read_it(folder: Path, words: list[str]) -> None:
    Path(FILE).write_text("= bad", encoding="utf-8")
    assert with_project(words, parser_of) == words


def test_every_verb_with_such_an_option_reads_it() -> None:
    """`engine show`, `cache convert` and `init` take a model as something else."""
    found = {
        verb for verb in VERBS if any(a.option_strings in (["--data"], ["--for"]) for a in parser_of(verb)[0]._actions)
    }
    assert found | {"bench", "build"} == _VERBS


def test_a_command_runs_with_it_and_quiet_says_nothing(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    write_net(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text('model = "m.onnx"\ndata = "d.npz"\n', encoding="utf-8")
    said = run(capsys, "calibrate", "--json")
    assert said.code == 0, said.err
    assert said.err.startswith(f"qdqtool: note: {FILE} adds m.onnx --data=d.npz\n")
    assert json.loads(said.out) and Path("m.scales.json").is_file()
    said = run(capsys, "insert", "-q", "-o", "q.onnx")
    assert (said.code, said.err) == (0, "")
    given = run(capsys, "insert", "m.onnx", "--data", "d.npz", "-o", "g.onnx", "-q")
    assert given.code == 0 and Path("q.onnx").read_bytes() == Path("g.onnx").read_bytes()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("model = ", "not TOML"),
        ('modle = "m.onnx"', "unknown key 'modle'; known keys: model, data"),
        ("data = 3", "data = 3 is not a text in quotes"),
        ('data = ["a", "b"]', "is not a text in quotes"),
        ('model = ""', "is not a text in quotes"),
        ("boards = [1]", "is not a list of words"),
        ("[insert]\ndata = 'x'", "unknown key 'insert'"),
    ],
)
def test_a_bad_file_is_one_line(folder: Path, capsys: Capsys, text: str, part: str) -> None:
    Path(FILE).write_text(text, encoding="utf-8")
    refused(run(capsys, "insert", "m.onnx"), f"error: {FILE}: ", part)


def test_keys_of_the_file(folder: Path) -> None:
    assert tuple(read_project(Path(FILE))) == _KEYS
