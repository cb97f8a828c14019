# SPDX-License-Identifier: Apache-2.0
"""What Polygraphy says while its code runs for us: kept, not printed, and everything as before afterwards."""

from __future__ import annotations

import ctypes
import logging
import os

import pytest
from polygraphy import config
from polygraphy.exception import PolygraphyException
from polygraphy.logger import G_LOGGER

from qdqtool.calibration.tensorrt.log_capture import quiet_polygraphy, stdout_on_stderr


def test_messages_are_kept_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_polygraphy() as said:
        G_LOGGER.info("Configuring with profiles")
        G_LOGGER.warning("TF32 is off")
        G_LOGGER.error("Error Code 4: no scale\nmore of it")
        with pytest.raises(PolygraphyException):
            G_LOGGER.critical("Invalid Engine")
    assert capfd.readouterr() == ("", "")
    assert said.lines == ["TF32 is off", "Error Code 4: no scale\nmore of it", "Invalid Engine"]
    assert said.last == "Error Code 4: no scale", "TensorRT's word goes before Polygraphy's"
    assert "TF32 is off\nError Code 4" in str(said.messages())


def test_without_an_error_of_tensorrts_polygraphys_own_is_reported() -> None:
    with quiet_polygraphy() as said:
        assert said.last == ""
        with pytest.raises(PolygraphyException):
            G_LOGGER.critical("Invalid Engine")
    assert said.last == "Invalid Engine"


def test_all_is_as_before_whatever_happens(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("POLYGRAPHY_AUTOINSTALL_DEPS", raising=False)
    logger = logging.getLogger("Polygraphy")

    def state() -> tuple[object, ...]:
        own = (G_LOGGER.use_python_logging_system, G_LOGGER.colors, G_LOGGER.letter, str(G_LOGGER.module_severity))
        return (*own, config.AUTOINSTALL_DEPS, logger.propagate, list(logger.handlers), dict(os.environ))

    before = state()
    with pytest.raises(ZeroDivisionError), quiet_polygraphy():
        assert state() != before and os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"] == "0"
        raise ZeroDivisionError
    assert state() == before
    G_LOGGER.warning("heard again")
    assert "heard again" in capfd.readouterr().out


def test_stdout_of_python_and_below_goes_to_stderr_for_a_while(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with stdout_on_stderr():
        print("python")
        os.write(1, b"below\n")
        ctypes.CDLL(None).puts(b"buffered")
    ctypes.CDLL(None).fflush(None)
    os.write(1, b"after\n")
    said = capfd.readouterr()
    assert said.out == "before\nafter\n" and sorted(said.err.split()) == ["below", "buffered", "python"]
