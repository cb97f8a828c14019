# SPDX-License-Identifier: Apache-2.0
"""The line on a terminal while a verb says nothing: shown, named after what runs, taken away before other words."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from qdqtool.cli.heartbeat import doing, heartbeat


class Terminal(io.StringIO):
    """A stream that passes for a terminal and tells when the line was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if text.endswith(" s"):
            self.shown.set()
        return count


def screen(text: str) -> list[str]:
    """The lines that a terminal shows of a text with carriage returns."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_a_silent_block_gets_a_line_that_goes_before_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, out = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", out)
    with heartbeat("insert", after=0.0, every=0.001):
        assert terminal.shown.wait(20), "no line came"
        sys.stderr.write("qdqtool: note: x\n")
        assert screen(terminal.getvalue())[0] == "qdqtool: note: x"
        terminal.shown.clear()
        assert terminal.shown.wait(20)
        assert sys.stderr.isatty() and sys.stdout.isatty()
    assert terminal.getvalue().startswith("insert: working, 0 s")
    assert screen(terminal.getvalue()) == ["qdqtool: note: x", ""]
    assert sys.stderr is terminal and sys.stdout is out


def test_nothing_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stream = sys.stderr
    with heartbeat("insert", after=0.0, every=0.001):
        assert sys.stderr is stream
    with heartbeat("", after=0.0):
        assert sys.stderr is stream
    assert capsys.readouterr() == ("", "")


def test_a_fault_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    count = threading.active_count()
    with pytest.raises(ValueError, match="x"), heartbeat("lint", after=0.0, every=0.001):
        raise ValueError("x")
    assert sys.stderr is terminal and threading.active_count() == count


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("qdqtool.mixed_precision.float_search", "measuring what operators lose in INT8"),
        ("qdqtool.conditioning.run", "looking for weight edits that help"),
        ("qdqtool.conditioning", "looking for weight edits that help"),
        ("qdqtool.conditioningother", "working"),
        ("somebody.else", "working"),
    ],
)
def test_the_packages_on_the_stack_say_what_is_done(module: str, words: str) -> None:
    space: dict[str, Any] = {"__name__": module, "sys": sys}
    exec("def frame():\n    return sys._getframe()", space)
    assert doing(space["frame"]()) == words
    assert doing(None) == "working"


def test_every_package_that_is_named_is_there() -> None:
    import importlib

    from qdqtool.cli.heartbeat import _WORDS

    assert all(importlib.import_module(package) for package in _WORDS)
