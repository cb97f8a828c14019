# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line

"""Pruned models on samples that were held out, by hand; corrected biases that do harm are not taken."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.pruning.choice import parse_criterion
from qdqtool.pruning.held_out import HeldOutput, best_way, judge_pruned
from qdqtool.pruning.probe import ProbeRun
from qdqtool.pruning.run import Pruned, PruneData, prune_model
from tests.graphs import model_of
from tests.pruning.nets import CHAIN, value, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def chain(first: float, second: float) -> onnx.ModelProto:
    """Y = (1 + first second) x; the second channel goes at ratio 0.5 where `first` is below 1."""
    weights = {"w": np.array([1, first]).reshape(2, 1, 1, 1), "u": np.array([1, second]).reshape(1, 2, 1, 1)}
    return with_values(model_of(CHAIN), **weights)


def feeds(*values: float) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((1, 1, 1, 1), value, np.float32)} for value in values]


def pruned(model: onnx.ModelProto, data: PruneData) -> Pruned:
    return prune_model(ProbeRun(Model(model), feeds(1.0)), parse_criterion(ratio=0.5), (), data)


def test_decibels_by_hand() -> None:
    original, halves, same, quarter = chain(0.5, 2.0), chain(0.0, 2.0), chain(0.5, 2.0), chain(0.25, 2.0)
    (found,) = judge_pruned(
        ProbeRun(Model(original), []), [Model(one) for one in (halves, same, quarter)], feeds(3.0, -4.0)
    )
    assert found.ways == (pytest.approx(10 * np.log10(4)), np.inf, pytest.approx(10 * np.log10(16)))
    told = {
        "plain_db": pytest.approx(6.0206, abs=1e-3),
        "corrected_db": None,
        "reconstructed_db": pytest.approx(12.0412, abs=1e-3),
    }
    assert found.to_json() == {"output": "y", **told}


def test_nothing_held_out_is_nothing_judged() -> None:
    assert judge_pruned(ProbeRun(Model(chain(0.5, 2.0)), []), (Model(chain(0.5, 2.0)),) * 3, []) == ()
    assert best_way(()) == 1, "biases, of which that can be said without a sample"


def test_outputs_of_integers_are_not_judged() -> None:
    """Which channel is largest is no number that an error could be taken of; the other output is judged."""
    text = CHAIN.replace("(float[N,1,1,1] y)", "(float[N,1,1,1] y, int64[N,1,1,1] z)").replace(
        "u) }", "u)  z = ArgMax<axis=1>(a) }"
    )
    original, half = (with_values(model_of(text), w=np.array([1, first]).reshape(2, 1, 1, 1), u=np.ones((1, 2, 1, 1))) for first in (2.0, 0.5))  # fmt: skip
    y, z = judge_pruned(ProbeRun(Model(original), []), (Model(half),) * 3, feeds(3.0))
    assert (y.output, z.output) == ("y", "z")
    assert y.ways == (pytest.approx(10 * np.log10(9 / 2.25)),) * 3 and z.ways == (np.inf,) * 3
    assert z.to_json()["plain_db"] is None


def test_an_output_that_was_nothing_is_lost_where_it_becomes_something() -> None:
    original, wrong = chain(-1.0, 1.0), chain(0.0, 1.0)
    (found,) = judge_pruned(ProbeRun(Model(original), []), (Model(wrong),) * 3, feeds(3.0))
    assert found.ways == (-np.inf,) * 3 and best_way((found,)) == 0


@pytest.mark.parametrize(
    ("ways", "best"),
    [
        ([(1.0, 2.0, 3.0)], 2),
        ([(1.0, 2.0, 1.5)], 1),
        ([(2.0, 1.0, 1.0)], 0),
        ([(1.0, 2.0, 2.04)], 1),
        ([(140.0, 150.0, np.inf)], 0),
        ([(1.0, 5.0, 2.0), (2.0, 1.0, 2.0)], 1),
        ([(1.0, np.inf, 2.0)], 1),
    ],
)
def test_the_best_way_is_best_on_average(ways: list[tuple[float, float, float]], best: int) -> None:
    assert best_way([HeldOutput(str(place), *one) for place, one in enumerate(ways)]) == best


def test_biases_are_corrected_where_nothing_is_held_out() -> None:
    done = pruned(chain(0.5, 2.0), PruneData(feeds(4.0, 4.2)))
    assert done.corrected == ("y",) and done.reconstructed == () and done.judged == ()


def test_weights_are_fitted_where_that_helps() -> None:
    """What is left is x, and y = 2 x: one weight says it all."""
    done = pruned(chain(0.5, 2.0), PruneData(feeds(*np.linspace(-4, 4, 17)), feeds(4.1)))
    assert done.reconstructed == ("y",) and done.corrected == ()
    assert done.judged[0].reconstructed > 40 > done.judged[0].corrected
    assert value(done.model, "u").item() == pytest.approx(2, rel=1e-2)


def test_weights_and_biases_stay_where_held_out_samples_say_so() -> None:
    done = pruned(chain(0.5, 2.0), PruneData(feeds(4.0, 4.0), feeds(-4.0)))
    assert done.corrected == done.reconstructed == () and max(done.judged[0].ways[1:]) < done.judged[0].plain
    assert [len(node.input) for node in done.model.graph.node] == [2, 2]


def test_biases_stay_where_nobody_asks() -> None:
    done = pruned(chain(0.5, 2.0), PruneData(feeds(4.0), feeds(4.1), correct=False))
    assert done.corrected == () and done.judged[0].plain == done.judged[0].corrected
