# SPDX-License-Identifier: Apache-2.0
"""Samples go through blocks on both paths; only what is read later stays, and memory bounds how many there are."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.blocks.block_cuts import cut_blocks
from qdqtool.training.blocks.block_samples import BlockSample, fitting_samples, forget, give_exact, give_rounded
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.student import SessionOptions
from tests.training.blocks.nets import DATA, form_of, seen_in

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def test_both_paths_end_where_both_networks_do() -> None:
    form = form_of()
    blocks = cut_blocks(form.proto, form.parameters, seen_in(form), 1)
    samples = [BlockSample.of({"x": row[None]}) for row in DATA[:2]]
    for index, block in enumerate(blocks):
        give_exact(block, float_twin(block.proto), samples, SessionOptions())
        give_rounded(block, block.proto, samples, SessionOptions())
        later = {name for one in blocks[index + 1 :] for name in one.takes}
        if later:
            forget(samples, later)
            assert all(held.keys() <= later for one in samples for held in (one.exact, one.rounded))
    for row, sample in zip(DATA, samples, strict=False):
        rounded, exact = (Executor(Model(p)).run({"x": row[None]})["y"] for p in (form.proto, float_twin(form.proto)))
        assert np.array_equal(sample.rounded["y"], rounded)
        assert np.allclose(sample.exact["y"], exact, rtol=1e-5, atol=1e-5)
        assert not np.array_equal(rounded, exact)


def test_memory_bounds_the_samples() -> None:
    form = form_of()
    blocks = cut_blocks(form.proto, form.parameters, seen_in(form), 1)
    one = 4 * 8 * 8 * 4  # bytes of each tensor; two paths, and at most what one block takes and gives
    few, many = (fitting_samples(blocks, seen_in(form), one * 2 * count) for count in (8, 80))
    assert 2 <= few <= 8 and 9 * few < many <= 80
    assert fitting_samples(blocks, seen_in(form), 1) == 1


def test_the_inputs_of_a_sample_are_one_on_both_paths() -> None:
    sample = BlockSample.of({"x": DATA[:1]})
    assert sample.exact["x"] is sample.rounded["x"]
    forget([sample], ())
    assert not sample.exact and not sample.rounded
