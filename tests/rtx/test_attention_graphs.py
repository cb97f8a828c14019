# SPDX-License-Identifier: Apache-2.0
"""Attention as NVIDIA's compiler built it, and as a plan has its pairs: all where it is one kernel, else none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from qdqtool import InsertOptions, insert
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.tensorrt_rtx.build import build_engine
from tests.graphs import model_of
from tests.rtx.attention_graphs import ATTENTIONS, AttentionCase
from tests.rtx.measure import EVIDENCE, measured
from tests.rtx.minimal_graphs import SMS

GRAPHS: dict[str, dict[str, dict[str, Any]]] = json.loads(EVIDENCE.read_text(encoding="utf-8"))["graphs"]
PLANNED = [name for name, case in ATTENTIONS.items() if case.planned]


def plan_of(case: AttentionCase, target: str = "rtx") -> Plan:
    """Where `--attention int8` puts pairs in the plain graph."""
    return make_plan(GraphView(case.plain().graph), PlanOptions(target, attention="int8", float_heads="none"))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_kernels_that_were_built_are_those_that_the_table_expects(name: str) -> None:
    built = GRAPHS[name]
    assert tuple(built) == SMS
    if name == "attention/operator":
        assert all("builds no engine" in found["refused"] for found in built.values())
    else:
        assert {found["attentions"] for found in built.values()} == {ATTENTIONS[name].kernels}


@pytest.mark.parametrize("target", ["rtx", "gpu"])
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_has_the_pairs_of_the_graph_that_was_one_kernel_or_none_and_says_why(name: str, target: str) -> None:
    case, plan = ATTENTIONS[name], plan_of(ATTENTIONS[name], target)
    (attention,) = plan.attentions
    why = case.why or (case.on_gpu if target == "gpu" else "")
    if why:
        assert not plan.activations and not attention.int8 and why in attention.reason
        assert [(one.site, one.rule) for one in plan.refusals] == [(attention.name, attention.rule)]
    else:
        assert {point.tensor for point in plan.activations} == case.tensors() and attention.int8
        assert case.kernels == 1 and set(attention.points) <= case.tensors()


@pytest.mark.parametrize("sm", SMS)
def test_with_fewer_pairs_an_attention_takes_more_layers_than_with_all(sm: str) -> None:
    """Why it is all or none; and why values of their own scale cost nothing."""
    layers = {name: GRAPHS[name][sm].get("layers") for name in ATTENTIONS}
    whole = layers["attention/scale-behind"]
    for part in ("queries", "softmax", "values", "output"):
        assert layers[f"attention/no-{part}"] > whole
    assert layers["attention/one-linear-gather"] == layers["attention/one-linear-one-scale"]
    assert layers["attention/one-linear-split"] == layers["attention/one-linear-gather"]


@pytest.mark.parametrize("sm", SMS)
def test_pairs_on_the_operands_of_a_gate_change_no_layer(sm: str) -> None:
    plain, paired = (GRAPHS[f"swiglu/{how}"][sm] for how in ("plain", "pairs"))
    assert plain["layers"] == paired["layers"] and {**plain, "bytes": 0} == {**paired, "bytes": 0}


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["attention/scale-behind", "attention/tokens-513", "attention/guarded"])
def test_a_build_today_gives_what_is_recorded(name: str) -> None:
    assert measured(ATTENTIONS[name].model()) == GRAPHS[name]


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["attention/windows", "attention/one-linear-gather", "attention/grouped"])
def test_what_insert_writes_is_one_int8_kernel(name: str) -> None:
    plan = PlanOptions("rtx", attention="int8", float_heads="none")
    done = insert(ATTENTIONS[name].plain(), options=InsertOptions(plan=plan))
    assert {(found["attentions"], found["f"]) for found in measured(done.model).values()} == {(1, "INT8")}


@pytest.mark.rtx
@pytest.mark.parametrize(("queries", "keys"), [(16, 31), (2, 32)])
def test_an_fp8_attention_is_one_kernel_from_32_keys_on(queries: int, keys: int) -> None:
    sizes = {"a": (1, 2, queries, 16), "b": (1, 2, 16, keys), "c": (1, 2, keys, 16)}
    inputs = ", ".join(f"float[{','.join(map(str, size))}] {name}" for name, size in sizes.items())
    body = "q = Relu(a) k = Relu(b) v = Relu(c) s = MatMul(q, k) p = Softmax(s) o = MatMul(p, v) y = Relu(o)"
    model = model_of(f"g ({inputs}) => (float[1,2,{queries},16] y) {{ {body} }}", 17)
    plan = PlanOptions("rtx", format="fp8", attention="int8")
    data = [{name: np.random.default_rng(0).random(size, np.float32) for name, size in sizes.items()}]
    done = insert(model, data=data, options=InsertOptions(plan, keep_float=0, rest="fp16", allow_empty=True))
    kinds = [layer.product_type for layer in build_engine(done.model).layers if "_mha" in layer.name]
    assert [one.int8 for one in done.plan.attentions] == [keys >= 32]
    assert kinds == ["FP8"] * (keys >= 32)
