# SPDX-License-Identifier: Apache-2.0
"""L3 on every trained model: a cache grafted into it comes out again to the bit. L5 stands in tests/cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool as verbs
from qdqtool.cache.text import Cache, read_cache, write_cache
from qdqtool.graph.edit import drop_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors
from qdqtool.graph.view import GraphView
from tests.conftest import shared_folder
from tests.laws import law_checks as laws

_SHARED = shared_folder() or Path()
TRAINED = sorted((_SHARED / "corpus" / "models").glob("*.onnx"))
pytestmark = pytest.mark.shared


@dataclass(frozen=True)
class CacheCase:
    """A model, a cache over all its float tensors, and what `graft` made of both."""

    file: Path
    folder: Path
    cache: Cache
    done: verbs.GraftResult

    @property
    def placed(self) -> list[str]:
        return [point.tensor for point in self.done.plan.activations]


def without_table(file: Path) -> onnx.ModelProto:
    """The model without the scales of the whole cache, of which `peel` writes those that INT8 layers use."""
    model = onnx.load(file)
    drop_metadata(model, "scales")
    return model


def cache_for(file: Path) -> Cache:
    """Another float32 for every float tensor of a model, random bits in every byte of the mantissa."""
    proto = onnx.load(file, load_external_data=False)
    view = GraphView(proto.graph, file.parent)
    names = [name for name in float_tensors(Model(proto)) if not view.is_constant(name)]
    values = np.exp(np.random.default_rng(len(names)).uniform(-6, 2, len(names))).astype(np.float32)
    return Cache.of(laws.V8_6, dict(zip(names, values, strict=True)))


@pytest.fixture(scope="module", params=laws.few_at_once(TRAINED), ids=[file.stem for file in TRAINED])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CacheCase:
    folder, cache = tmp_path_factory.mktemp(request.param.stem), cache_for(request.param)
    write_cache(cache, folder / "c.cache")
    done = verbs.graft(request.param, folder / "c.cache", output=folder / "q.onnx")
    return CacheCase(request.param, folder, cache, done)


def test_the_models_are_there(shared: Path) -> None:
    assert len(TRAINED) == 29


def test_l3_peel_undoes_graft_and_the_scales_come_back_to_the_bit(case: CacheCase) -> None:
    assert case.placed
    peeled = verbs.peel(
        case.done.model,
        verbs.PeelOptions(laws.V8_6),
        output=case.folder / "p.onnx",
        cache=case.folder / "p.cache",
    )
    assert laws.same(peeled.model, laws.lifted(case.file)), "peel(graft(m, c)) is not normalize(m)"
    again = read_cache(case.folder / "p.cache")
    for name in case.placed:
        assert again.entries[name].tobytes() == case.cache.entries[name].tobytes(), name
    own = {name for name, scale in peeled.table.scales.items() if scale.origin == "qdq"}
    assert own == set(case.placed), "c | placed points, and their same-value tensors"
    restored = verbs.peel(
        case.done.model,
        verbs.PeelOptions(laws.V8_6, source=case.file),
        output=case.folder / "s.onnx",
        cache=case.folder / "s.cache",
    )
    assert laws.same(restored.model, case.file), "peel --source is not the source"
    assert (case.folder / "s.cache").read_bytes() == (case.folder / "p.cache").read_bytes()


def test_every_entry_is_placed_or_has_a_reason(case: CacheCase) -> None:
    done = case.done
    assert not set(case.placed) & set(done.unplaced)
    reported = {*case.placed, *done.unplaced}
    assert reported == set(case.cache.entries)
    assert all(done.unplaced.values()) and done.unknown == {}


def test_a_cache_that_peel_wrote_grafts_back_to_the_same_model(case: CacheCase) -> None:
    """graft(m, peel(q)) == q but for the table of all scales: a cache of ours is enough for its model."""
    verbs.peel(
        case.done.model,
        verbs.PeelOptions(laws.V8_6),
        output=case.folder / "b.onnx",
        cache=case.folder / "b.cache",
    )
    back = verbs.graft(case.file, case.folder / "b.cache", output=case.folder / "back.onnx")
    assert laws.same(*(without_table(model) for model in (back.model, case.done.model)))


def test_l9_nobody_complains_of_the_grafted_model(case: CacheCase) -> None:
    pytest.importorskip("onnxruntime")
    laws.check_no_new_complaint(case.file, case.done.model)
    assert laws.runtime_complaint(case.done.model) == ""


def test_everywhere_comes_out_again_too(case: CacheCase) -> None:
    options = verbs.GraftOptions(everywhere=True)
    done = verbs.graft(case.file, case.cache, options, output=case.folder / "e.onnx")
    output, cache = case.folder / "ep.onnx", case.folder / "ep.cache"
    peeled = verbs.peel(done.model, verbs.PeelOptions(laws.V8_6), output=output, cache=cache)
    assert laws.same(peeled.model, laws.lifted(case.file))
    names = [point.tensor for point in done.plan.activations]
    assert len(names) > len(case.placed)
    for name in names:
        assert peeled.cache.entries[name].tobytes() == case.cache.entries[name].tobytes(), name
