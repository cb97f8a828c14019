# SPDX-License-Identifier: Apache-2.0
"""Profiles of layers: what trtexec --exportProfile writes, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.engine.profile import LayerTime, read_profile
from qdqtool.errors import QdqError

RUNS = {"count": 1000}
CONV = {"name": "c", "timeMs": 20.0, "averageMs": 0.02, "medianMs": 0.02, "percentage": 80.0}
POOL = {"name": "p", "timeMs": 5.0, "averageMs": 0.005}


def write(folder: Path, document: object) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("entries", "times"),
    [
        ([RUNS, CONV, POOL], {"c": LayerTime(0.02, 80.0), "p": LayerTime(0.005)}),
        ([CONV, {**CONV, "averageMs": 0.01, "percentage": 20.0}], {"c": LayerTime(0.03, 100.0)}),
        ([CONV, {**POOL, "name": "c"}], {"c": LayerTime(0.025)}),
    ],
)
def test_times_of_layers(tmp_path: Path, entries: list[object], times: dict[str, LayerTime]) -> None:
    found = read_profile(write(tmp_path, entries))
    assert list(found) == list(times)
    for name, time in times.items():
        assert found[name].milliseconds == pytest.approx(time.milliseconds)
        assert found[name].percentage == time.percentage


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "is not a profile of layers"),
        ({"Layers": []}, "is not a profile of layers"),
        ([RUNS], "is not a profile of layers"),
        ([CONV, {"name": "p"}], "has a layer without a name or a time"),
        ([CONV, {**POOL, "averageMs": "fast"}], "has a layer without a name or a time"),
        ([CONV, {**POOL, "averageMs": -1}], "has a layer without a name or a time"),
        ([CONV, {**POOL, "averageMs": True}], "has a layer without a name or a time"),
        ([CONV, {**POOL, "name": 3}], "has a layer without a name or a time"),
    ],
)
def test_what_is_no_profile_is_one_line(tmp_path: Path, document: object, reason: str) -> None:
    with pytest.raises(QdqError, match=reason) as error:
        read_profile(write(tmp_path, document))
    assert error.value.exit_code == 2
