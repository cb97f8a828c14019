# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Types where shape inference knows none: from what was observed, from onnxruntime, or named as unknown."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors, untyped_tensors
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.runtime.float_tensors import check_all_in_reach, find_float_tensors, on_gpu_alone
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.foreign_nets import foreign_net
from tests.graphs import model_of

V8_5 = TrtVersion(8, 5, 2)
EVERY = ("x", "c1", "r1", "c2", "r2", "f", "a", "r3", "z")


def found(model: onnx.ModelProto, *tables: ScaleTable, scaled: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    return find_float_tensors(Model(model), tables, scaled)


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(3)]


def test_onnx_knows_no_type_behind_a_contrib_operator() -> None:
    model = foreign_net("FusedConv")
    assert float_tensors(Model(model)) == ["x", "c1", "r1", "c2", "r2", "z"] and untyped_tensors(Model(model)) == [
        "f",
        "a",
        "r3",
    ]


def test_onnxruntime_knows_it() -> None:
    known = found(foreign_net("FusedConv"))
    assert (known.names, known.unknown) == (EVERY, {})


def test_integers_behind_it_are_no_floats() -> None:
    model = model_of(
        "g (float[1,4] x) => (int64[2] s) { f = com.microsoft.FastGelu(x) t = Identity(f) i = Shape(t) s = Identity(i) }"
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    assert found(model).names == ("x", "f", "t")


def test_what_was_observed_is_float_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    table = ScaleTable({"f": Scale.of(0.1), "a": Scale.of(0.1)}, {"r3": "is all zero"})
    known = found(foreign_net("FusedConv"), table)
    assert (known.names, known.unknown) == (EVERY, {})
    assert found(foreign_net("FusedConv"), scaled=("f", "a", "r3")).names == EVERY
    left = found(foreign_net("FusedConv"), ScaleTable({"f": Scale.of(0.1)}))
    assert set(left.unknown) == {"a", "r3"} and "onnxruntime" in left.unknown["a"]


def test_behind_a_plugin_nobody_knows() -> None:
    known = found(foreign_net("an unknown domain"))
    assert known.names == ("x", "c1", "r1", "c2", "r2", "z")
    why = "its type is not known, since it comes after custom::Sharpen"
    assert known.unknown == dict.fromkeys(("u", "v", "c3"), why)


def test_what_plugins_alone_touch_never_meets_the_dla() -> None:
    view = GraphView(foreign_net("EfficientNMS_TRT in the middle").graph)
    assert set(on_gpu_alone(view, ["nb", "ns", "nc", "box", "up"])) == {"ns", "nc"}


# ------------------------------------------------------------------------------------ caches for the DLA


def test_peel_has_a_scale_for_every_tensor_behind_a_contrib_operator() -> None:
    placed = verbs.insert(foreign_net("FusedConv"), data=samples())
    peeled = verbs.peel(placed.model, verbs.PeelOptions(V8_5, target="dla"))
    assert set(peeled.cache.entries) == set(EVERY)
    every = verbs.insert(
        foreign_net("FusedConv"), data=samples(), options=verbs.InsertOptions(plan=PlanOptions("dla", V8_5))
    )
    assert {point.tensor for point in every.plan.activations} == set(EVERY)


def test_what_remains_is_named_and_refused() -> None:
    table = ScaleTable({name: Scale.of(0.1) for name in EVERY[:5]})
    for net, named in (("FusedConv", "f, a, r3"), ("an unknown domain", r"u \(its type is not known")):
        placed = verbs.insert(foreign_net(net), scales=table)
        with pytest.raises(QdqError, match=f"have no scale: .*{named}"):
            verbs.peel(placed.model, verbs.PeelOptions(V8_5, target="dla"))
        some = verbs.peel(placed.model, verbs.PeelOptions(V8_5, target="dla", fill="none"))
        assert set(some.table.unscaled) and "z" not in some.cache.entries


def test_ptq_for_the_dla_refuses_what_it_would_leave_out() -> None:
    options = verbs.PtqOptions(V8_5, "dla")
    for net in ("EfficientNMS_TRT in the middle",):
        with pytest.raises(QdqError, match=r"nb \(after EfficientNMS_TRT\), up") as caught:
            verbs.ptq(foreign_net(net), samples(), options)
        assert "--target gpu" in caught.value.todo
    done = verbs.ptq(foreign_net("EfficientNMS_TRT at the outputs"), samples(), options)
    assert {"nb", "ns"} <= set(done.table.unscaled) and "box" in done.cache.entries


def test_plain_models_are_in_reach() -> None:
    model = model_of("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }")
    check_all_in_reach(Model(model), "m")
