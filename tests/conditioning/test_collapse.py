# SPDX-License-Identifier: Apache-2.0
"""Networks that INT8 destroys as their channels lie apart: equalizing whole classes brings back what even ones keep."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool import InsertOptions, PeelOptions, insert, peel
from qdqtool.conditioning.edits import Conditioned
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import feed_of
from tests.conditioning.spread_nets import NETS, samples, spread_net
from tests.ort_session import session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")
OPTIONS = InsertOptions(plan=PLAN, keep_float=0)


def run(proto: onnx.ModelProto) -> npt.NDArray[np.float64]:
    session = session_of(proto)
    return np.asarray(session.run(None, {"x": samples(6, seed=9)})[0], np.float64)


def decibels(exact: npt.NDArray[np.float64], got: npt.NDArray[np.float64]) -> float:
    return float(10 * np.log10(np.square(exact).sum() / max(float(np.square(exact - got).sum()), 1e-30)))


def equalized(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Conditioned]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    done = condition_model(Model(copy), feed_of(proto, samples()), ConditionSettings(("equalize",), PLAN))
    return copy, done


def quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = insert(proto, data=feed_of(proto, samples()), options=OPTIONS).model
    assert isinstance(made, onnx.ModelProto)
    return made


# Three in the suite; the others, and the next test, are run by `make slow` and by .ci/run.
_BY_COST = [name if number < 3 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(NETS)]


@pytest.mark.parametrize("name", _BY_COST)
def test_what_collapses_comes_back(name: str) -> None:
    even, apart = spread_net(name, 1.0), spread_net(name, 1000.0)
    exact = run(even)
    assert decibels(exact, run(apart)) > 90
    made, reported = equalized(apart)
    assert [node.SerializeToString() for node in made.graph.node] == [
        node.SerializeToString() for node in apart.graph.node
    ]
    assert reported.count("equalize") == len(reported.edits) > 0
    assert decibels(exact, run(made)) > 90
    kept, lost, back = (decibels(exact, run(quantized(proto))) for proto in (even, apart, made))
    assert lost < kept - 4
    assert back > kept - 2


@pytest.mark.slow  # twenty times three verbs
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("which", ["source", "conditioned"])
def test_peel_gives_the_source_with_its_edits(name: str, which: str) -> None:
    apart = spread_net(name, 1000.0)
    made, _ = equalized(apart)
    source = made if which == "conditioned" else apart
    back = peel(quantized(made), PeelOptions("8.6.1", source=source)).model
    assert isinstance(back, onnx.ModelProto)
    assert back.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)


@pytest.mark.slow
def test_insert_equalizes_where_it_is_asked_to_condition() -> None:
    apart = spread_net("residual", 300.0)
    exact = run(apart)
    options = InsertOptions(plan=PLAN, keep_float=0, condition="auto")
    made = insert(apart, data=feed_of(apart, samples()), options=options)
    assert decibels(exact, run(made.model)) > decibels(exact, run(quantized(apart))) + 6
