# SPDX-License-Identifier: Apache-2.0
"""What `insert` says of the bytes that operators in float cost."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool import InsertOptions, PlanOptions, insert, predicted_layers
from qdqtool.verbs import insert_float_costs
from tests.graphs import SMALL_NET, model_of

DATA = {"x": np.random.default_rng(0).standard_normal((4, 4, 8, 8)).astype(np.float32)}
SAID = "the predicted layers move "


def costs_in(plan: PlanOptions) -> list[str]:
    """The sentences on bytes."""
    result = insert(model_of(SMALL_NET), data=DATA, options=InsertOptions(plan, keep_float=0))
    return [note for note in result.notes if note.startswith(SAID)]


def moved(plan: PlanOptions) -> str:
    """What the predicted layers of the written model move."""
    made = insert(model_of(SMALL_NET), data=DATA, options=InsertOptions(plan, keep_float=0)).model
    return f"{predicted_layers(made).forecast.bytes_moved:,} bytes"


def test_what_an_operator_in_float_costs_is_said_in_bytes() -> None:
    """`for 2.81% of the multiply-adds` was said of a convolution that cost a fifth of all bytes."""
    kept, whole = PlanOptions(keep_float=("c2",)), PlanOptions()
    (said,) = costs_in(kept)
    assert said.startswith(f"{SAID}{moved(kept)}, and {moved(whole)} with ") and "heads" not in said
    assert moved(kept) != moved(whole)


def test_nothing_is_said_where_nothing_is_kept_or_it_would_cost_much(monkeypatch: pytest.MonkeyPatch) -> None:
    assert costs_in(PlanOptions()) == []
    assert costs_in(PlanOptions("rtx", keep_float=("c2",))) == []
    monkeypatch.setattr(insert_float_costs, "_LARGEST", 1)
    assert costs_in(PlanOptions(keep_float=("c2",))) == []


def test_the_engines_of_a_large_graph_are_left_to_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took three times the time of the rest."""
    monkeypatch.setattr("qdqtool.verbs.insert._FORECAST", 3)
    plan = PlanOptions(keep_float=("c2",))
    assert costs_in(plan) == []
    (said,) = [note for note in insert(model_of(SMALL_NET), data=DATA).notes if "forecast" in note]
    assert (
        said
        == f"insert makes no forecast for a graph of {len(model_of(SMALL_NET).graph.node)} nodes; qdqtool forecast does"
    )
    assert not [
        note
        for note in insert(model_of(SMALL_NET), options=InsertOptions(PlanOptions("dla"))).notes
        if "forecast" in note
    ]
