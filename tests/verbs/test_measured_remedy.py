# SPDX-License-Identifier: Apache-2.0
"""The command of the first cause is measured, and one that changes a single thing brings what was promised."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.diagnosis.diagnose import DiagnosisOptions, causes_of, look
from qdqtool.diagnosis.one_change import with_scales
from qdqtool.graph.io import open_model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.scales import Scale
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


def test_one_command_against_faults_that_hide_each_other() -> None:
    options = InsertOptions(plan=PlanOptions(weights="per-tensor"), keep_float=0)
    model = open_model(insert(wide_channel(), data=DATA, options=options).model)
    tensor = next(reversed(look(model, DATA, DiagnosisOptions(), None)[0].tensors.values()))
    found, notes = look(with_scales(model, {tensor.name: Scale.of(tensor.best / 1e6)}), DATA, DiagnosisOptions(), None)
    causes = with_brought(causes_of(found, notes), found).causes
    assert {one.name for one in causes} == {"per-tensor weights", "saturated tensor"}
    assert all(one.remedy == causes[0].remedy for one in causes)
    assert causes[0].remedy.options["weights"] == "per-channel"
    assert causes[0].gain is not None and causes[0].brought == pytest.approx(causes[0].gain, rel=0.05)
