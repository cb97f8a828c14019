# SPDX-License-Identifier: Apache-2.0
"""The command of the first cause is measured, and one that changes a single thing brings what was promised."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.diagnosis.cause import LossCauses
from qdqtool.diagnosis.diagnose import DiagnosisOptions, causes_of, look
from qdqtool.diagnosis.one_change import with_scales
from qdqtool.graph.io import open_model
from qdqtool.match.plan import PlanOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.scales import Scale
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.measured_remedy import with_brought
from tests.collapsing_nets import residual_net, samples
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


def test_edited_weights_are_measured_where_no_cause_is_found() -> None:
    data = {"x": samples(16)}
    model = open_model(insert(residual_net(3), data=data, options=InsertOptions(keep_float=0)).model)
    found, _ = look(model, data, DiagnosisOptions(), None)
    (cause,) = with_brought(LossCauses((), found.loss, 16), found).causes
    assert cause.name == "few channels" and cause.evidence.endswith("the gain is that of edited weights")
    assert cause.remedy.options["condition"] == "auto" and "max-output-loss" not in cause.remedy.options
    assert cause.gain is not None and cause.gain >= 0.2 * found.loss
    options = InsertOptions(condition="auto", keep_float=0, calibration=CalibrationOptions(method="auto"))
    written = open_model(insert(residual_net(3), data=found.calibrating, options=options).model)
    assert cause.brought == pytest.approx(found.loss - found.reference.loss(written), rel=1e-3)


def test_edited_weights_that_win_nothing_are_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"x": samples(16)}
    model = open_model(insert(residual_net(3), data=data, options=InsertOptions(keep_float=0)).model)
    found, _ = look(model, data, DiagnosisOptions(), None)
    monkeypatch.setattr("qdqtool.verbs.measured_remedy._remedied", lambda cause, found: model.proto)
    assert with_brought(LossCauses((), found.loss, 16), found).causes == ()
