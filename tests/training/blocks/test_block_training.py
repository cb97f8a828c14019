# SPDX-License-Identifier: Apache-2.0
"""One block learns to give what the float network gives; weights stay within their scales, the rest as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqtool.autodiff.backends import Builtin
from qdqtool.graph.model import Model
from qdqtool.training.blocks.block_cuts import Block, cut_blocks
from qdqtool.training.blocks.block_samples import BlockSample, BlockSamples, give_exact
from qdqtool.training.blocks.block_training import BlockLoss, BlockOptions, TrainedBlock, train_block
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.options import UpdateOptions
from qdqtool.training.student import Session, SessionOptions
from qdqtool.training.trainable_scales import Ranges
from tests.training.blocks.nets import DATA, form_of, seen_in

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

QUICK = BlockOptions(steps=60, update=UpdateOptions(relative_lr=0.01, ema_decay=0.8))
HOW = SessionOptions()


class StepLog:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, Any]] = []

    def step(self, facts: Mapping[str, Any]) -> None:
        self.steps.append(facts)

    def event(self, facts: Mapping[str, Any]) -> None:
        raise AssertionError(facts)


def ready(ranges: Ranges = "learn") -> tuple[Block, BlockSamples]:
    form = form_of(ranges)
    scales = [name for name in form.scales if name in form.activations]
    block = cut_blocks(form.proto, (*form.weights, *scales), seen_in(form), 2)[0]
    samples = [BlockSample.of({"x": row[None]}) for row in DATA]
    give_exact(block, float_twin(block.proto), samples, HOW)
    return block, BlockSamples(samples[4:], samples[:4])


def trained(options: BlockOptions = QUICK, ranges: Ranges = "learn", told: StepLog | None = None) -> TrainedBlock:
    form = form_of(ranges)
    block, samples = ready(ranges)
    return train_block(BlockLoss(block, samples, seen_in(form)), form, Builtin(), options, told or StepLog())


def test_the_error_on_held_out_samples_falls() -> None:
    told = StepLog()
    found = trained(told=told)
    assert found.after < 0.9 * found.before
    assert set(found.values) >= {"w1", "b1", "w2", "b2"}
    assert [one["step"] for one in told.steps] == list(range(1, 61))
    assert found.trained > 290 and found.checked < 0.05


def test_scales_move_only_where_they_are_learned_and_weights_stay_within_theirs() -> None:
    learned, fixed = trained(), trained(ranges="fixed")
    form = form_of("learn")
    moved = [name for name in learned.values if name in form.activations]
    assert moved and all((learned.values[name] > 0).all() for name in moved)
    assert any(learned.values[name].tobytes() != form.initial()[name].tobytes() for name in moved)
    assert not [name for name in fixed.values if name not in form.weights]
    for name in ("w1", "w2"):
        pair = form.weight_pairs[name]
        top = form.initial()[pair.scale].reshape(-1, 1, 1, 1) * 127
        assert (np.abs(learned.values[name]) <= top * (1 + 1e-5)).all()
        assert np.allclose(np.abs(learned.values[name]).max(axis=(1, 2, 3)), top.ravel(), rtol=1e-4)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    short = replace(QUICK, steps=16)
    one, same, other = (trained(options).values["w1"].tobytes() for options in (short, short, replace(short, seed=1)))
    assert one == same != other


def test_nothing_better_than_the_start_gives_no_values() -> None:
    wild = BlockOptions(steps=8, update=UpdateOptions(relative_lr=50.0, ema_decay=0.0))
    found = trained(wild)
    assert found.values == {} and found.after == found.before


@pytest.mark.parametrize("known", [False, True], ids=["all count alike", "half by importance"])
def test_the_loss_is_the_error_over_the_power_of_the_float_network(known: bool) -> None:
    block, samples = ready()
    name, draw = block.gives[0], np.random.default_rng(0)
    assert len(block.gives) == 1
    counts = [np.float32(1)] * len(samples.learned)
    if known:
        samples.channels = {name: np.array([0.0, 1, 3, 0], np.float32).reshape(1, 4, 1, 1)}
        for sample in samples.every:
            sample.places = {name: draw.uniform(0, 2, (1, 1, 8, 8)).astype(np.float32)}
        counts = [0.5 + 0.5 * one.places[name] * samples.channels[name] for one in samples.learned]
    loss = BlockLoss(block, samples, seen_in(form_of()))
    assert loss.loss is not None
    first = samples.learned[0]
    got = float(Session(Model(loss.proto), [loss.loss], HOW).run(loss.feed(first))[0])
    (given,) = Session(Model(block.proto), block.gives, HOW).run(first.rounded)
    powers = [(own * np.square(one.exact[name])).mean() for own, one in zip(counts, samples.learned, strict=True)]
    error = (counts[0] * np.square(given - first.exact[name])).mean()
    assert got == pytest.approx(error / np.mean(powers), rel=1e-4)


def test_what_is_mixed_in_comes_from_the_float_network() -> None:
    block, samples = ready()
    loss = BlockLoss(block, samples, seen_in(form_of()))
    sample = BlockSample(dict(samples.held[0].exact), {"x": np.zeros_like(DATA[:1])})
    mask = {"x": np.arange(DATA[0].size).reshape(DATA[:1].shape) % 2 == 0}
    fed = loss.feed(sample, mask)["x"]
    assert np.array_equal(fed[mask["x"]], DATA[:1][mask["x"]]) and not fed[~mask["x"]].any()
    assert not loss.feed(sample)["x"].any()
