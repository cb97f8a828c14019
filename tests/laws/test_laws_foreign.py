# SPDX-License-Identifier: Apache-2.0
"""The laws where there are bodies of control flow and local functions, and on pairs as other tools write them.

QDQTOOL_EXAMPLES=1000 looks longer, QDQTOOL_MANY=2000 makes the slow test do so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qdqtool as verbs
from qdqtool.cache.retarget import retarget
from qdqtool.cache.text import Cache, format_cache, parse_cache
from qdqtool.calibration.engine import calibrate
from qdqtool.distributed.shards import calibrate_shard, merge_shards
from qdqtool.graph.io import open_model, serialize
from qdqtool.observers.options import CalibrationOptions
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import RELEASES
from tests.laws import law_checks as laws
from tests.laws.foreign_graphs import as_others_write, with_stored_weights
from tests.laws.random_graphs import ENTERED, networks

NOWHERE = Path()
SEEDS = st.integers(0, 2**16)
WITH_BODIES = networks(entered=True)
many = settings(laws.examples(6), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
Law = Callable[[onnx.ModelProto, int], None]
pytestmark = pytest.mark.slow


def inserted(model: onnx.ModelProto) -> tuple[verbs.InsertResult, ScaleTable]:
    table = laws.table_for(verbs.plan(model))
    return verbs.insert(model, scales=table, options=laws.ANY), table


def l0(model: onnx.ModelProto, seed: int) -> None:
    assert serialize(open_model(model).proto) == model.SerializeToString(deterministic=True)


def l1(model: onnx.ModelProto, seed: int) -> None:
    before = serialize(model)
    laws.check_peel_undoes_insert(model, inserted(model)[0], NOWHERE)
    assert serialize(model) == before, "the caller's model was changed"


def l2(model: onnx.ModelProto, seed: int) -> None:
    laws.check_insert_is_idempotent(*inserted(model), NOWHERE)


def l3(model: onnx.ModelProto, seed: int) -> None:
    """L3: what graft places, peel finds again to the bit; the model comes back."""
    done, _ = inserted(model)
    if done.plan.activations:
        cache = verbs.peel(done.model, verbs.PeelOptions(laws.V8_6)).cache
        grafted = verbs.graft(model, cache)
        again = verbs.peel(grafted.model, verbs.PeelOptions(laws.V8_6))
        assert laws.same(again.model, laws.lifted(model))
        for point in grafted.plan.activations:
            assert again.cache.entries[point.tensor].tobytes() == cache.entries[point.tensor].tobytes()
        assert set(grafted.unplaced) | {p.tensor for p in grafted.plan.activations} == set(cache.entries)


def l4(model: onnx.ModelProto, seed: int) -> None:
    """L4, on a network's cache: what is written is read again; scales of 0 and infinity are dropped and counted."""
    cache = cache_of(model)
    spoilt = format_cache(cache) + "zero: 00000000\nhuge: 7f800000\n"
    read = parse_cache(spoilt)
    assert {name: bits.tobytes() for name, bits in read.entries.items()} == {
        name: bits.tobytes() for name, bits in cache.entries.items()
    }
    assert (read.version, read.algorithm, len(read.dropped)) == (cache.version, cache.algorithm, 2)


def l5(model: onnx.ModelProto, seed: int) -> None:
    """L5: the last version alone counts."""
    cache = cache_of(model)
    versions = [release.version for release in RELEASES if 7 <= release.version.major < 11]
    a, b = (versions[index] for index in np.random.default_rng(seed).integers(0, len(versions), 2))
    assert format_cache(retarget(retarget(cache, a), b)) == format_cache(retarget(cache, b))


def cache_of(model: onnx.ModelProto) -> Cache:
    done, table = inserted(model)
    if not done.plan.activations:
        return Cache.of(laws.V8_6, {name: np.float32(scale.bits) for name, scale in table.scales.items()})
    return verbs.peel(done.model, verbs.PeelOptions(laws.V8_6)).cache


def l6(model: onnx.ModelProto, seed: int) -> None:
    """L6: insert adds nothing that lint would tell of."""
    before = {finding.key for finding in verbs.lint(model).findings}
    new = [finding for finding in verbs.lint(inserted(model)[0].model).findings if finding.key not in before]
    assert not new, new[:3]


def l8(model: onnx.ModelProto, seed: int) -> None:
    """L8: what two machines counted adds up to what one would, in either order."""
    if laws.runtime_complaint(model):
        return
    session = laws.session_of(model)
    data = [laws.inputs_for(session, seed=seed + number) for number in range(3)]
    quiet = CalibrationOptions(method="mse", progress=False)
    whole = calibrate(model, data, quiet)
    parts = [calibrate_shard(model, data, (number, 2), quiet) for number in range(2)]
    for order in (parts, parts[::-1]):
        assert merge_shards(order).to_json() == whole.to_json()


def l7(model: onnx.ModelProto, seed: int) -> None:
    laws.check_order_of_nodes_is_nothing(laws.lifted(model), None, (seed,))


def l9(model: onnx.ModelProto, seed: int) -> None:
    laws.check_no_new_complaint(model, inserted(model)[0].model)


def l10(model: onnx.ModelProto, seed: int) -> None:
    if not laws.runtime_complaint(model):
        laws.check_nothing_but_rounding(laws.lifted(model), inserted(model)[0].model, seed=seed)


def others(model: onnx.ModelProto, seed: int) -> None:
    """L1 for pairs that someone else wrote: the plain model, byte for byte, and the same scales."""
    done, table = inserted(model)
    if not done.plan.activations:
        return
    options = verbs.PeelOptions(laws.V8_6)
    ours = verbs.peel(done.model, options)
    written = as_others_write(done.model, seed)
    theirs = verbs.peel(written, options)
    del theirs.model.opset_import[-1]  # the domain that their pairs had
    assert laws.same(theirs.model, laws.lifted(model))
    assert {n: v.tobytes() for n, v in theirs.cache.entries.items()} == {
        n: v.tobytes() for n, v in ours.cache.entries.items()
    }
    assert theirs.table.scales.keys() == ours.table.scales.keys() and theirs.weights == ours.weights
    again = verbs.insert(written, scales=table)
    assert not again.inserted.added, "insert puts a second pair beside one of another form"


def stored(model: onnx.ModelProto, seed: int) -> None:
    """Weights that are stored as integers come back as scale * q, to the bit what their pair made of them."""
    done, _ = inserted(model)
    if not done.plan.activations:
        return
    options = verbs.PeelOptions(laws.V8_6)
    ours, written = verbs.peel(done.model, options), with_stored_weights(done.model)
    theirs = verbs.peel(written, options)
    assert set(theirs.cache.entries) == set(ours.cache.entries) and theirs.weights.agreeing == 0
    for name, value in ours.cache.entries.items():
        assert theirs.cache.entries[name].tobytes() == value.tobytes()
    if not laws.runtime_complaint(done.model):
        feeds = laws.inputs_for(session := laws.session_of(done.model), seed=seed)
        for one, other in zip(session.run(None, feeds), laws.session_of(written).run(None, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)  # weights are equal, kernels differ


LAWS: tuple[Law, ...] = (l0, l1, l2, l3, l4, l5, l6, l7, l8, l9, l10, others, stored)
_IDS = [law.__name__ for law in LAWS]


@pytest.mark.parametrize("law", LAWS, ids=_IDS)
@many
@given(model=WITH_BODIES, seed=SEEDS)
def test_laws_with_bodies_and_functions(law: Law, model: onnx.ModelProto, seed: int) -> None:
    law(model, seed)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=_IDS)
@settings(many, max_examples=int(os.environ.get("QDQTOOL_MANY", "50")))
@given(model=WITH_BODIES, seed=SEEDS)
def test_laws_on_many_networks(law: Law, model: onnx.ModelProto, seed: int) -> None:
    law(model, seed)


@pytest.mark.parametrize("block", ENTERED, ids=lambda block: block.__name__)
def test_bodies_and_functions_run(block: object) -> None:
    from tests.laws.random_graphs import HEADS, Style, build, plain_block

    pytest.importorskip("onnxruntime")
    style = Style(17, "all", listed=False, constants=False, mixed=False, seed=3)
    model = build(style, [(plain_block, "Relu"), (block, "Relu"), (plain_block, "Relu")], HEADS[1:2])
    assert laws.checker_complaint(model) == "" and laws.runtime_complaint(model) == ""
    assert len(verbs.plan(model).activations) >= 2
