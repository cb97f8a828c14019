# SPDX-License-Identifier: Apache-2.0
"""The laws of design.md for `insert --target dla`, where every tensor has a pair, on random networks of opset 9 to 17.

QDQTOOL_EXAMPLES=1000 looks longer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import qdqtool as verbs
from qdqtool.graph.io import serialize
from qdqtool.match.plan import PlanOptions
from qdqtool.scales import ScaleTable
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.laws import law_checks as laws
from tests.laws.random_graphs import networks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")]
DLA = PlanOptions(target="dla", trt_version=laws.V8_6)
EVERYWHERE = verbs.InsertOptions(plan=DLA, allow_empty=True)
NOWHERE = Path()
some = settings(
    laws.examples(24),
    max_examples=max(6, laws.examples(24).max_examples // 4),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.generate],
)


def inserted(model: onnx.ModelProto) -> tuple[verbs.InsertResult, ScaleTable]:
    table = laws.table_for(verbs.plan(model, DLA))
    return verbs.insert(model, scales=table, options=EVERYWHERE), table


@some
@given(networks())
def test_l1_peel_undoes_insert_and_every_scale_is_the_graph_s(model: onnx.ModelProto) -> None:
    before = serialize(model)
    done, _ = inserted(model)
    assert serialize(model) == before, "the caller's model was changed"
    own = {name for node in model.graph.node for name in node.output} | {"x"}
    for source, plain in ((None, laws.lifted(model)), (model, model)):
        peeled = verbs.peel(done.model, verbs.PeelOptions(laws.V8_6, "dla", source=source))
        assert laws.same(peeled.model, plain)
        assert set(peeled.origins) == {"qdq"} and not peeled.shared_scales and not peeled.table.unscaled
        points = {n: s for n, s in done.inserted.scales.items() if source is None or n in own}
        assert {n: s.tobytes() for n, s in peeled.cache.entries.items()} == {
            n: s.bits.tobytes() for n, s in points.items()
        }


@some
@given(networks())
def test_estimates_stand_at_every_tensor_too(model: onnx.ModelProto) -> None:
    done = verbs.insert(model, options=EVERYWHERE)
    assert {scale.origin for scale in done.inserted.scales.values()} <= {"estimated", "bound", "equal"}
    peeled = verbs.peel(done.model, verbs.PeelOptions(laws.V8_6, "dla", allow_estimated=True))
    assert laws.same(peeled.model, laws.lifted(model))


@some
@given(networks())
def test_l2_insert_twice_is_insert_once(model: onnx.ModelProto) -> None:
    done, table = inserted(model)
    for scales in (table, ScaleTable()):
        again = verbs.insert(done.model, scales=scales, options=EVERYWHERE)
        assert not again.inserted.added, [point.tensor for point in again.inserted.added][:5]
        assert laws.same(again.model, done.model)


@some
@given(networks())
def test_l6_lint_finds_nothing_that_insert_added(model: onnx.ModelProto) -> None:
    done, _ = inserted(model)
    looked = LintOptions("dla", laws.V8_6)
    before = {one.key for one in lint(laws.lifted(model), looked).findings}
    added = [one for one in lint(done.model, looked).findings if one.key not in before]
    assert not added, [(one.code, one.where, one.message) for one in added][:5]


@some
@given(networks(), st.integers(0, 99))
def test_l7_the_order_of_the_nodes_is_nothing(model: onnx.ModelProto, seed: int) -> None:
    plain = laws.lifted(model)
    mixed = onnx.ModelProto()
    mixed.CopyFrom(plain)
    order = np.random.default_rng(seed).permutation(len(plain.graph.node))
    del mixed.graph.node[:]
    mixed.graph.node.extend(plain.graph.node[index] for index in order)
    one, other = verbs.plan(plain, DLA), verbs.plan(mixed, DLA)
    assert one.points == other.points


@some
@given(networks(tidy=True))
def test_l9_nobody_complains_of_the_output(model: onnx.ModelProto) -> None:
    pytest.importorskip("onnxruntime")
    laws.check_nobody_complains(model, inserted(model)[0].model)


@some
@given(networks(), st.integers(0, 99))
def test_l10_without_rounding_nothing_changes(model: onnx.ModelProto, seed: int) -> None:
    laws.check_every_point_but_rounds(model, lambda plain: inserted(plain)[0], seed)


@some
@given(networks())
def test_pairs_are_symmetric_and_sizes_stay_exact(model: onnx.ModelProto) -> None:
    assert laws.wrong_pairs(inserted(model)[0].model) == []
