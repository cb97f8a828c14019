# SPDX-License-Identifier: Apache-2.0
"""What a cause says, and that the commands of every remedy run as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.diagnosis.cause import Cause, LossCauses
from qdqtool.diagnosis.suspects import insert_step
from qdqtool.graph.io import open_model
from qdqtool.recipe.values import RecipeStep
from tests.cli.command import run, write_net

REMEDIES = [
    insert_step(method="auto"),
    insert_step(method="auto", float_heads="regression"),
    insert_step(attention="auto"),
    insert_step(rest="fp16"),
    insert_step(condition="auto"),
    insert_step(condition="auto", max_output_loss=0.02),
]


def cause(remedy: RecipeStep, gain: float | None = 0.25) -> Cause:
    return Cause("few channels", ("t",), "3 of 40 channels set the range", remedy, gain, "" if gain else "too large")


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda one: "-".join(map(str, one.options.values())))
@pytest.mark.parametrize("source", [False, True])
def test_commands_run_as_they_are(
    remedy: RecipeStep, source: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_net(tmp_path)
    data = tmp_path / "x.npy"
    np.save(data, np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32))
    plain, model, output = (str(tmp_path / f"{name}.onnx") for name in ("m", "q", "better"))
    assert run(capsys, "insert", plain, "--data", data, "-o", model, "-q").code == 0
    for words in cause(remedy).commands(model, output, ["--data", str(data)], plain if source else None):
        assert run(capsys, *words).code == 0
    assert open_model(output).view.pairs


UNKNOWN = "  gain not measured (too large)"


def test_what_is_said() -> None:
    first, second = cause(REMEDIES[0]), cause(REMEDIES[1], None)
    found = LossCauses((first, second), 0.5, 8)
    assert found.headline() == (
        "likely cause: few channels: 3 of 40 channels set the range; "
        "without it the loss at the outputs is 0.25 less; then few channels"
    )
    assert found.summary()[0] == "loss at the outputs: 0.5 (8 samples)"
    assert found.summary()[1:] == [*first.summary(), "few channels: 3 of 40 channels set the range", UNKNOWN]
    assert [row[0] for row in found.rows()] == ["cause", "few channels", "few channels"]
    said = found.to_json()
    assert said["causes"][0]["remedy"] == {"verb": "insert", "options": {"method": "auto"}}
    assert said["causes"][1]["gain"] is None


def test_a_fault_that_costs_nothing_at_the_outputs_says_so() -> None:
    said = replace(cause(REMEDIES[0], -0.035), brought=-0.019).gain_text()
    assert "0.035 more" in said and "its command makes it 0.019 more" in said and "-0.0" not in said
