# SPDX-License-Identifier: Apache-2.0
"""The line that says what is done while nothing is counted."""

from __future__ import annotations

import re
import time

import pytest

from qdqtool.progress import Heartbeat, is_shown


def test_it_says_what_is_done_until_the_block_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Heartbeat("deploy", progress=True) as beat:
        beat.prefix = "candidate 1 of 2, "
        beat.begin("ptq")
        deadline = time.monotonic() + 10
        said = ""
        while "candidate 1 of 2, ptq, " not in said and time.monotonic() < deadline:
            time.sleep(0.05)
            said += capsys.readouterr().err
        beat.tick("half")
    assert "deploy: candidate 1 of 2, ptq, " in said
    assert re.search(r"\r +\r$", said + capsys.readouterr().err)  # the line is gone


def test_nothing_is_written_where_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Heartbeat("deploy", progress=False) as beat:
        beat.begin("one")
        beat.tick("two")
        beat.clear()
    assert not capsys.readouterr().err


def test_it_ends_where_the_block_fails() -> None:
    with pytest.raises(ValueError, match="no"), Heartbeat("deploy", progress=True):
        raise ValueError("no")


def test_it_waits_for_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with Heartbeat("deploy", True, lambda: "looked", after=1e9, every=0.001) as beat:
        time.sleep(0.02)
        beat.clear()
    assert not capsys.readouterr().err


def test_what_was_asked_for_is_shown() -> None:
    assert is_shown(True) and not is_shown(False) and not is_shown(None)
