# SPDX-License-Identifier: Apache-2.0
"""All blocks in turn: outputs come nearer to the float network, memory bounds the samples, notes say what changed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from qdqtool.autodiff.backend import Forward, GradientGraph
from qdqtool.autodiff.backends import Builtin
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.blocks import reconstruct as module
from qdqtool.training.blocks.block_cuts import cut_blocks
from qdqtool.training.blocks.block_training import LOSS, BlockOptions
from qdqtool.training.blocks.reconstruct import Reconstruction, reconstruct
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.options import UpdateOptions
from qdqtool.training.trainable_scales import Ranges
from tests.training.blocks.nets import DATA, batches_of, form_of
from tests.training.blocks.test_block_training import StepLog

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

QUICK = BlockOptions(steps=60, update=UpdateOptions(relative_lr=0.01, ema_decay=0.8))


def done(ranges: Ranges = "learn", memory: int = 1 << 28, options: BlockOptions = QUICK) -> Reconstruction:
    return reconstruct(form_of(ranges), batches_of(), Builtin(), options, memory, lambda _: StepLog())


def error(found: Reconstruction, ranges: Ranges = "learn") -> float:
    form = form_of(ranges)
    plain, tuned = (Executor(Model(proto)) for proto in (float_twin(form.proto), form.write(found.values).proto))
    pairs = [(plain.run({"x": row[None]})["y"], tuned.run({"x": row[None]})["y"]) for row in DATA]
    return float(sum(np.square(one - other).sum() for one, other in pairs))


@pytest.mark.slow
def test_outputs_come_nearer_with_scales_and_more_with_scales_that_are_learned() -> None:
    start = error(Reconstruction({}, (), 0, 0, 0.0, (0.0, 0.0)))
    fixed, learned = done("fixed"), done("learn")
    assert error(learned) < error(fixed, "fixed") < start
    assert error(learned) < 0.7 * start
    assert learned.after < learned.before and learned.gained == len(learned.blocks) == 1
    assert (learned.samples, learned.held_samples) == (16, 4)
    assert learned.checked[0] < 2e-5


def test_little_memory_takes_few_samples_and_says_so() -> None:
    found = done(memory=1, options=BlockOptions(steps=2))
    assert (found.samples, found.held_samples) == (3, 1)
    assert any("only 3 batches were used" in note for note in found.notes)


def test_the_same_values_again() -> None:
    one, other = (done(options=BlockOptions(steps=8)) for _ in range(2))
    assert {name: value.tobytes() for name, value in one.values.items()} == {
        name: value.tobytes() for name, value in other.values.items()
    }


class Picky(Builtin):
    """Refuses all graphs after the first few: that of the importance, then the blocks'."""

    def __init__(self, most: int) -> None:
        self.left = most

    def build(self, forward: Forward) -> GradientGraph:
        self.left -= 1
        if self.left < 0:
            raise QdqError("GRU_1", "GRU has no gradient here", "freeze the weights before it")
        return super().build(forward)


def test_a_block_without_gradients_stays_as_it_was_and_the_others_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cut_blocks", partial(cut_blocks, operators=2))
    form = form_of()
    options = BlockOptions(steps=16)
    found = reconstruct(form, batches_of(), Picky(2), options, 1 << 28, lambda _: StepLog())
    assert len(found.blocks) == 1 and "w1" in found.values and "w4" not in found.values
    assert any("y: GRU_1: GRU has no gradient" in note for note in found.notes)
    with pytest.raises(QdqError, match="GRU_1: GRU has no gradient"):
        reconstruct(form, batches_of(), Picky(1), options, 1 << 28, lambda _: StepLog())


class Unsure(Builtin):
    """Has gradients inside blocks alone."""

    def build(self, forward: Forward) -> GradientGraph:
        if forward.loss != LOSS:
            raise QdqError("GRU_1", "GRU has no gradient here", "freeze the weights before it")
        return super().build(forward)


def test_where_importance_is_unknown_all_values_count_alike_and_that_is_said() -> None:
    options = BlockOptions(steps=16)
    found = reconstruct(form_of(), batches_of(), Unsure(), options, 1 << 28, lambda _: StepLog())
    assert found.gained == 1
    said = "all values inside count alike: what they do to the outputs is unknown, GRU_1 GRU has no gradient here"
    assert said in found.notes
    assert not any("count alike" in note for note in done(options=options).notes)
