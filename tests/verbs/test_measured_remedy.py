# SPDX-License-Identifier: Apache-2.0
"""The command of the first cause is measured, and one that changes a single thing brings what was promised."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.diagnosis.diagnose import DiagnosisOptions, causes_of, look
from qdqtool.graph.io import open_model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.measured_remedy import with_brought
from tests.diagnosis.test_diagnose import wide_channel

DATA = {"x": np.random.default_rng(0).uniform(0, 1, (16, 4, 8, 8)).astype(np.float32)}


@pytest.mark.parametrize(
    ("options", "verb"),
    [
        (InsertOptions(plan=PlanOptions(weights="per-tensor"), keep_float=0), "graft"),
        (InsertOptions(calibration=CalibrationOptions(method="percentile=60"), keep_float=0), "insert"),
    ],
)
def test_command_brings_what_the_change_wins(options: InsertOptions, verb: str) -> None:
    model = open_model(insert(wide_channel(), data=DATA, options=options).model)
    found, notes = look(model, DATA, DiagnosisOptions(), None)
    first = with_brought(causes_of(found, notes), found).causes[0]
    assert first.remedy.verb == verb and first.gain is not None
    assert first.brought == pytest.approx(first.gain, rel=0.05)
    assert "its command takes" in first.gain_text()


def test_healthy_model_runs_no_command() -> None:
    model = open_model(insert(wide_channel(), data=DATA, options=InsertOptions(keep_float=0)).model)
    found, notes = look(model, DATA, DiagnosisOptions(), None)
    assert with_brought(causes_of(found, notes), found).causes == ()
