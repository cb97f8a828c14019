# SPDX-License-Identifier: Apache-2.0
"""What `prune` promises of any network: nothing is the same file, insert before or after, peel without a gap."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given

from qdqtool import CalibrationOptions, InsertOptions, PeelOptions, PruneOptions, insert, peel, prune
from qdqtool.errors import QdqError
from qdqtool.graph.io import serialize
from qdqtool.precision.element_types import infer_types
from qdqtool.pruning.check import INSIDE
from qdqtool.trtversion import TrtVersion
from tests.conftest import shared_folder
from tests.laws.law_checks import examples, few_at_once
from tests.laws.random_graphs import networks
from tests.laws.test_laws_typed_input import BF16, F16, half_of, typed_networks

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

TRAINED = sorted(((shared_folder() or Path()) / "corpus" / "models").glob("*.onnx"))
HALF, NOTHING = PruneOptions(ratio=0.5), PruneOptions(ratio=0.0)
PAIRS = InsertOptions(calibration=CalibrationOptions("max", progress=False), keep_float=0, allow_empty=True)
CACHE = PeelOptions(TrtVersion(8, 6, 1), allow_estimated=True)
NOT_PRUNED = "no channel of the model can be removed"
many = examples(6)


def structure(model: onnx.ModelProto) -> list[tuple[object, ...]]:
    """Operators with what they read and make; a zero point goes by its shape, as several pairs share one by name."""
    shapes = {one.name: tuple(one.dims) for one in model.graph.initializer}
    return [
        (node.op_type, tuple(shapes.get(n, n) for n in node.input), tuple(node.output), len(node.attribute))
        for node in model.graph.node
    ]


@many
@given(model=networks(tidy=True))
def test_random_networks_keep_the_laws(model: onnx.ModelProto) -> None:
    try:
        done = prune(model, options=HALF).done
    except QdqError as error:
        assert NOT_PRUNED in error.reason or "onnxruntime" in error.reason, error
        return
    assert done.difference is not None and done.difference.small
    assert serialize(prune(model, options=NOTHING).model) == serialize(model)


@pytest.mark.slow
@pytest.mark.parametrize("path", few_at_once(TRAINED), ids=[path.stem for path in TRAINED])
def test_nothing_is_the_same_file_and_half_is_the_masked_original(path: Path, tmp_path: Path) -> None:
    prune(path, options=NOTHING, output=tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    done = prune(path, options=HALF, output=tmp_path / "half.onnx").done
    assert done.difference is not None and done.difference.small and done.difference.inside <= INSIDE
    assert done.parameters[1] < done.parameters[0]


@pytest.mark.slow  # half a second a network
@pytest.mark.parametrize("path", few_at_once(TRAINED), ids=[path.stem for path in TRAINED])
def test_insert_goes_before_or_after_and_no_cache_entry_is_lost(path: Path) -> None:
    model = onnx.load(path)
    placed = insert(model, options=PAIRS).model
    first = insert(prune(model, options=HALF).model, options=PAIRS).model
    last = prune(placed, options=HALF).model
    assert structure(first) == structure(last)
    whole, cut = peel(placed, CACHE), peel(last, CACHE)
    left = {name for node in cut.model.graph.node for name in (*node.input, *node.output)}  # a shuffle becomes a Gather
    assert dict(cut.cache.entries) == {name: scale for name, scale in whole.cache.entries.items() if name in left}
    assert cut.float_outputs == whole.float_outputs


@many
@given(model=networks(tidy=True))
def test_random_networks_are_pruned_before_or_behind_insert(model: onnx.ModelProto) -> None:
    try:
        placed = insert(model, options=PAIRS).model
        first = insert(prune(model, options=HALF).model, options=PAIRS).model
        last = prune(placed, options=HALF).model
    except QdqError as error:
        assert NOT_PRUNED in error.reason or "onnxruntime" in error.reason or "Q/DQ" in error.reason, error
        return
    assert structure(first) == structure(last)
    whole, cut = (peel(one, CACHE).cache for one in (placed, last))
    assert dict(cut.entries) == dict(whole.entries), "no entry is lost and no scale changes"


@many
@given(model=typed_networks())
def test_random_typed_networks_are_pruned_as_those_in_fp32(model: onnx.ModelProto) -> None:
    """In FP16 and BF16, which onnxruntime runs in part or not at all: the same types come back."""
    try:
        done = prune(model, options=HALF)
    except QdqError as error:
        assert NOT_PRUNED in error.reason or "onnxruntime" in error.reason, error
        return
    assert done.done.difference is not None and done.done.difference.small
    given, made = (infer_types(one).types for one in (model, done.model))
    assert {name: kind for name, kind in given.items() if name in made and made[name] != kind} == {}
    assert serialize(prune(model, options=NOTHING).model) == serialize(model)


@pytest.mark.parametrize(("name", "kind"), [("tiny_classifier", BF16), ("digits_detector", F16)])
def test_bundled_networks_in_half_precision(name: str, kind: int) -> None:
    halves = half_of(name, kind)
    done = prune(halves, options=HALF)
    assert done.done.difference is not None and done.done.difference.small
    sizes = [{one.name: one.data_type for one in proto.graph.initializer} for proto in (halves, done.model)]
    assert kind in sizes[1].values() and set(sizes[1].values()) == set(sizes[0].values())
    assert done.done.parameters[1] < done.done.parameters[0]


LEAST = {  # prunable share of the channels, most that is kept of the parameters at --ratio 0.5
    "yolox_nano_coco": (0.96, 0.265),
    "fastestdet_coco": (0.76, 0.44),
    "yunet_s_320": (0.93, 0.35),
    "ultraface_rfb320_simplified": (0.97, 0.37),
    "bert_toy": (0.6, 0.71),
}


@pytest.mark.slow  # whole detectors; the laws above look at a few networks
@pytest.mark.parametrize("name", LEAST)
def test_how_much_can_go_of_networks(name: str, shared: Path) -> None:
    done = prune(onnx.load(shared / "corpus" / "models" / f"{name}.onnx"), options=HALF).done
    assert done.prunable / done.channels >= LEAST[name][0]
    assert done.parameters[1] / done.parameters[0] <= LEAST[name][1]
