# SPDX-License-Identifier: Apache-2.0
"""`qdqtool doctor`: what it prints, its exit codes, and that a bug of ours asks for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qdqtool import doctor
from qdqtool.doctor import Diagnosis, Item
from tests.cli.command import CommandOutput, run

Capsys = pytest.CaptureFixture[str]
SOUND = (
    Item("program", "qdqtool", "ok", "9.9", "runs from here"),
    Item("needed", "numpy", "ok", "2.4.6"),
    Item("optional", "torch", "missing", "", "for training", "pip install torch"),
    Item("machine", "CPUs", "ok", "", "2"),
)
ILL = Item("optional", "onnxruntime", "wrong", "1.19.2", "is installed only in part", "pip install it again")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


def said(capsys: Capsys, monkeypatch: pytest.MonkeyPatch, items: tuple[Item, ...], *words: str) -> CommandOutput:
    monkeypatch.setattr(doctor, "diagnose", lambda: Diagnosis(items))
    return run(capsys, "doctor", *words)


def test_sound_machine_is_0(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(capsys, monkeypatch, SOUND)
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [
        "qdqtool 9.9 runs from here",
        "packages that every verb needs:",
        "  numpy    2.4.6",
        "packages for some verbs:",
        "  torch    missing  for training; pip install torch",
        "machine:",
        "  CPUs              2",
        "no problem found",
    ]


def test_fault_is_1_and_one_line_that_says_what_to_do(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    found = said(capsys, monkeypatch, (*SOUND, ILL))
    assert (found.code, found.err) == (1, "")
    assert found.out.splitlines()[-2] == "1 fault:" and found.out.splitlines()[-1].startswith("  onnxruntime: ")
    assert "WRONG, see below" in found.out and "nothing" not in found.out


def test_quiet_prints_the_verdict_only(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(capsys, monkeypatch, SOUND, "-q").out == "no problem found\n"
    assert said(capsys, monkeypatch, (*SOUND, ILL, ILL), "-q").out.startswith("2 faults:\n  onnxruntime: is installed")


@pytest.mark.parametrize("items", [SOUND, (*SOUND, ILL)])
def test_json(capsys: Capsys, monkeypatch: pytest.MonkeyPatch, items: tuple[Item, ...]) -> None:
    found = said(capsys, monkeypatch, items, "--json")
    document = json.loads(found.out)
    assert (document["schema"], document["ok"]) == (1, ILL not in items) and found.code == (ILL in items)
    assert document["items"][1] == {
        "section": "needed",
        "name": "numpy",
        "state": "ok",
        "version": "2.4.6",
        "text": "",
        "todo": "",
    }
    reported = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert document.keys() | document["items"][0].keys() <= reported
    assert {"ok", "missing", "note", "wrong"} <= reported


@pytest.mark.slow
def test_this_machine(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "qdqtool", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 1)
    assert {item["name"] for item in document["items"]} >= {"qdqtool", "Python", "numpy", "onnx", "histograms", "CPUs"}


def test_bug_of_ours_asks_for_it(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: 1 // 0)
    found = run(capsys, "doctor")
    assert found.code == 70 and "ZeroDivisionError" in found.err and "qdqtool doctor" in found.err.splitlines()[-1]


def test_what_most_verbs_need_is_named_where_it_is_missing(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Item("optional", "onnxruntime", "missing", "", "for every verb that runs a model", "pip install it")
    found = said(capsys, monkeypatch, (*SOUND, lacking), "-q")
    assert found.code == 0 and re.match("no problem .*\nthe first steps .* lack:\n  onnxruntime is missing", found.out)
