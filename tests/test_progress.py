# SPDX-License-Identifier: Apache-2.0
"""The line that says what is done while nothing is counted."""

from __future__ import annotations

import re
import sys
import time

import pytest

from qdqtool import progress
from qdqtool.progress import Count, Heartbeat, bar, barred, counting, in_log, is_shown, steps


@pytest.fixture(autouse=True)
def _no_counts_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks that another test left open, in a generator that a traceback holds, are not counted here."""
    monkeypatch.setattr(progress, "_OPEN", progress._OpenCounts())


def test_it_says_what_is_done_until_the_block_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Heartbeat("deploy", progress=True) as beat:
        beat.begin("ptq")
        deadline = time.monotonic() + 10
        said = ""
        while "deploy: ptq, " not in said and time.monotonic() < deadline:
            time.sleep(0.05)
            said += capsys.readouterr().err
        beat.tick("half")
    assert "deploy: ptq, " in said
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


def test_lines_of_steps_are_for_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    in_log(lines.append)("one")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    in_log(lines.append)("two")
    assert lines == ["one"]


def shown_line(capsys: pytest.CaptureFixture[str], wanted: str) -> str:
    """What a heartbeat writes until `wanted` is in it."""
    said, deadline = "", time.monotonic() + 10
    while wanted not in said and time.monotonic() < deadline:
        time.sleep(0.02)
        said += capsys.readouterr().err
    return said


def test_open_counts_stand_behind_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Heartbeat("insert", True, lambda: "searching", every=0.01), counting("round") as rounds:
        rounds.advance()
        walk = steps(["a", "b", "c"], "candidate")
        assert [next(walk), next(walk)] == ["a", "b"]
        assert "insert: searching, round 2, candidate 2 of 3, 0 s" in shown_line(capsys, "candidate 2 of 3")
        walk.close()
        assert "round 2, 0 s" in shown_line(capsys, "round 2, 0 s")
    assert progress._OPEN.texts() == ([], None)


def test_counts_close_where_the_walk_fails() -> None:
    with pytest.raises(ValueError, match="no"):
        for _ in steps([1], "sample"):
            raise ValueError("no")
    assert progress._OPEN.texts() == ([], None)


def test_walks_that_failed_before_are_not_shown() -> None:
    abandoned = steps([1, 2], "batch")
    next(abandoned)
    with counting("round"), Heartbeat("deploy", progress=False), counting("sample"), Heartbeat("ptq", progress=False):
        assert progress._OPEN.texts()[0] == ["sample 1"]
    abandoned.close()
    assert progress._OPEN.texts() == ([], None)


@pytest.mark.parametrize(
    ("total", "before", "done", "begun", "since", "left"),
    [
        (10, 0, 4, 8.0, 0.0, 12.0),
        (10, 0, 4, 8.0, 2.0, 10.0),  # two seconds of the fifth are over
        (10, 2, 4, 8.0, 0.0, 24.0),  # two were done before
        (4, 0, 3, 3.0, 60.0, 0.0),  # the last one takes long
        (10, 0, 0, 0.0, 8.0, None),  # none is done
        (10, 0, 1, 0.5, 0.0, None),  # too early
        (None, 0, 4, 8.0, 0.0, None),  # nobody knows how many there are
    ],
)
def test_the_time_left_is_by_the_mean_of_those_done(
    monkeypatch: pytest.MonkeyPatch,
    total: int | None,
    before: int,
    done: int,
    begun: float,
    since: float,
    left: float | None,
) -> None:
    """`begun` seconds until the last of those done, `since` seconds after that."""
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    count = Count("sample", total, before)
    now += begun
    if done > before:
        count.advance(done - before)
    now += since
    assert count.seconds_left() == left


def test_the_time_left_is_that_of_the_outermost_that_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with counting("round"), counting("block", 4) as blocks, counting("step", 10) as one:
        now = 2.0
        one.advance(5)
        assert progress._OPEN.texts() == (["round 1", "block 1 of 4", "step 6 of 10"], 2.0)
        blocks.advance()
        assert progress._OPEN.texts() == (["round 1", "block 2 of 4", "step 6 of 10"], 6.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (99, "99 s"), (130, "2 min"), (5999, "100 min"), (9000, "2.5 h")]
)
def test_times_have_their_unit(seconds: float, text: str) -> None:
    assert progress._format_seconds(seconds) == text


def test_a_bar_is_drawn_where_it_is_shown_and_counted_where_not(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    assert list(barred("abc", "calibrate", "batch", 3, True)) == ["a", "b", "c"]
    assert "calibrate" in capsys.readouterr().err
    with bar("calibrate", "batch", 3, False, done=1) as drawn:
        drawn.note("nobody sees it")
        assert progress._OPEN.texts()[0] == ["batch 2 of 3"]
        drawn.advance()
        with counting("batch"):
            assert progress._OPEN.texts()[0] == ["batch 3 of 3"], "of two walks in one another the one with an end"
    assert not capsys.readouterr().err
