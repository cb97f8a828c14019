# SPDX-License-Identifier: Apache-2.0
"""The note of what a pruned model still has: right after one cut and after two, and nothing of another hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, prune
from qdqtool.graph.edit import PRUNED, clear_metadata, get_metadata, set_metadata
from qdqtool.graph.model import Model
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.pruning.probe import seeded_input
from qdqtool.runtime.executor import Executor
from tests.pruning.nets import CASES, case

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

HALF = PruneOptions(ratio=0.5, correct=False)


def first_made(model: onnx.ModelProto) -> str:
    return model.graph.node[0].output[0]


def values(model: onnx.ModelProto, name: str) -> np.ndarray:
    return Executor(Model(model), [name]).run(seeded_input(model.graph))[name]


def test_the_note_tells_which_channels_of_the_first_layer_are_left() -> None:
    model = case("chain with bias")
    made = prune(model, options=HALF).model
    name, kept = first_made(model), kept_of(made)[first_made(model)]
    assert (kept.axis, kept.total, len(kept.places)) == (1, 8, 4)
    assert np.allclose(np.take(values(model, name), kept.places, 1), values(made, name), atol=1e-6)
    assert set(kept_of(made)) == {"a", "r"}, "the output has all of its channels"


def test_a_second_cut_is_told_in_channels_of_the_first_model() -> None:
    model = case("chain with bias")
    once = prune(model, options=HALF).model
    twice = prune(once, options=HALF).model
    kept = kept_of(twice)["a"]
    assert (kept.total, len(kept.places)) == (8, 2) and set(kept.places) <= set(kept_of(once)["a"].places)
    assert np.allclose(np.take(values(model, "a"), kept.places, 1), values(twice, "a"), atol=1e-6)


def test_what_a_second_cut_leaves_alone_stays_noted() -> None:
    model = case("concat")
    once = prune(model, options=HALF).model
    twice = prune(once, options=PruneOptions(ratio=0.5, exclude=("^a$",))).model
    before, after = kept_of(once)["a"], kept_of(twice)["a"]
    assert before.places.tolist() == after.places.tolist() and after.total == 8
    assert len(kept_of(twice)["b"].places) == 2


@pytest.mark.parametrize("name", CASES)
def test_the_note_fits_every_tensor_it_names(name: str) -> None:
    model = case(name)
    made = prune(model, options=HALF).model
    for tensor, kept in kept_of(made).items():
        before, after = values(model, tensor), values(made, tensor)
        assert (before.shape[kept.axis], after.shape[kept.axis]) == (kept.total, len(kept.places)), tensor


def test_nothing_goes_and_nothing_is_noted() -> None:
    assert get_metadata(prune(case("concat"), options=PruneOptions(ratio=0.0)).model, PRUNED) is None


def test_the_note_stays_where_q_dq_are_taken_out() -> None:
    made = prune(case("concat"), options=HALF).model
    clear_metadata(made)
    assert kept_of(made)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"1":{"8:zz":["a"]}}', '{"1":{"9:ff":["a"]}}', '{"-1":{"8:ff":["a"]}}', '{"1":{"0:":["a"]}}',
     '{"1":3}', '{"1":{"99999999999:ff":["a"]}}'],
)  # fmt: skip
def test_a_note_of_another_hand_is_none(text: str) -> None:
    model = onnx.ModelProto()
    set_metadata(model, PRUNED, text)
    assert kept_of(model) == {}
