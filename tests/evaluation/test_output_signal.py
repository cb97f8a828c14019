# SPDX-License-Identifier: Apache-2.0
"""The signal kept at the outputs: the loss is that of `measures.channel_loss`, and draws of the samples move it."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.errors import QdqError
from qdqtool.evaluation import output_signal as module
from qdqtool.evaluation.output_signal import compared_outputs, output_signal
from qdqtool.measures import channel_loss, sample_losses

RANDOM = np.random.default_rng(0)
WANTED = RANDOM.standard_normal((6, 3, 4, 5)).astype(np.float32)
NOISY = WANTED + 0.3 * RANDOM.standard_normal(WANTED.shape).astype(np.float32)


def test_the_loss_is_that_of_insert_whatever_the_batch() -> None:
    wanted, got = ([array[i : i + 1] for i in range(6)] for array in (WANTED, NOISY))
    expected = channel_loss(wanted, got)
    assert 0.02 < expected < 0.3
    for size in (1, 3, 6):
        starts = range(0, 6, size)
        runs = [({"y": WANTED[i : i + size]}, {"y": NOISY[i : i + size]}) for i in starts]
        pairs = [one for i, run in zip(starts, runs, strict=True) for one in compared_outputs(*run, size, i)]
        assert len(pairs) == 6 and output_signal(pairs).value("outputs") == 1 - expected


def test_draws_move_the_loss_with_the_samples() -> None:
    """Of six samples two are lost, so that draws of those lose three times as much, and draws of the others nothing."""
    got = WANTED.copy()
    got[:2] = NOISY[:2]
    measured = output_signal(compared_outputs({"y": WANTED}, {"y": got}, 6, 0))
    whole, spoiled, spared = measured.resampled(np.array([[1] * 6, [3, 3, 0, 0, 0, 0], [0, 0, 3, 3, 0, 0]]))[:, 0, 0]
    assert whole == pytest.approx(measured.value("outputs")) and spared == 1
    assert 1 - spoiled == pytest.approx(3 * (1 - whole))


def test_what_is_lost_and_what_never_varies() -> None:
    lost = np.full_like(WANTED, np.nan)
    measured = output_signal(compared_outputs({"y": WANTED}, {"y": lost}, 6, 0))
    assert measured.value("outputs") == 0 and measured.resampled(np.ones((1, 6), np.int64)).item() == 0
    still = np.ones((6, 4), np.float32)
    assert output_signal(compared_outputs({"y": still}, {"y": still}, 6, 0)).value("outputs") == 1
    with pytest.raises(QdqError, match=r"is \[2\] in INT8 and \[1\] in FP32"):
        compared_outputs({"a": np.ones(1, np.float32)}, {"a": np.zeros(2, np.float32)}, 1, 0)
    other = [array.ravel()[: 7 + i] for i, array in enumerate(NOISY)]
    assert sample_losses(other, other).tolist() == [0.0] * 6, "samples of several shapes"
    assert sample_losses(other, [array[:-1] for array in other]).tolist() == [1.0] * 6


def test_a_map_of_classes_is_judged_by_the_share_that_stays() -> None:
    """A network that ends in ArgMax has no float output."""
    first = {"y": np.array([[1, 2], [3, 3]])}
    other = {"y": np.array([[1, 0], [3, 3]])}
    pairs = [*compared_outputs(first, other, 1, 0), *compared_outputs(first, first, 1, 1)]
    assert output_signal(pairs).value("outputs") == 7 / 8
    assert output_signal(pairs).resampled(np.array([[2, 0]])).item() == 3 / 4
    beside = {**first, "score": np.ones((1, 2), np.float32)}
    assert [*compared_outputs(beside, beside, 1, 0)[0][0]] == ["score"], "beside floats integers are places or counts"
    with pytest.raises(QdqError, match="no output of numbers"):
        compared_outputs({"y": np.array(["a"])}, {"y": np.array(["a"])}, 1, 0)


def test_samples_beyond_what_memory_holds_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ELEMENTS", 2 * WANTED[0].size)
    kept = [len(compared_outputs({"y": WANTED[i : i + 1]}, {"y": NOISY[i : i + 1]}, 1, i)) for i in range(6)]
    assert kept == [1, 1, 1, 0, 0, 0]
