# SPDX-License-Identifier: Apache-2.0
"""The verb: the kind that was given comes back, files appear whole or not at all, numbers are what the files hold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, insert, plan_pruning, prune
from qdqtool.data.model_inputs import Input
from qdqtool.pruning.probe import Feed
from qdqtool.training.batches import held_out
from qdqtool.verbs.prune import HeldOutSamples, Shown, not_held
from tests.graphs import model_of
from tests.verbs.small_net import NET, write_net

FEEDS = [{"x": np.full((2,), number)} for number in range(12)]
FREE = [Input("x", (None, 3), np.dtype(np.float32))]
FIXED = [Input("x", (2, 3), np.dtype(np.float32))]


pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


HALF = PruneOptions(ratio=0.5)


def stored(model: onnx.ModelProto) -> int:
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer)


def test_a_path_gives_a_path_and_leaves_the_model(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    before = source.read_bytes()
    result = prune(source, options=HALF)
    assert result.model == tmp_path / "m.pruned.onnx"
    assert source.read_bytes() == before
    made = onnx.load(result.model)
    assert {one.name: tuple(one.dims) for one in made.graph.initializer} == {
        "w1": (2, 4, 3, 3), "b1": (2,), "w2": (2, 2, 3, 3), "fc": (2, 3),
    }  # fmt: skip
    assert (result.done.parameters, result.done.channels, result.done.prunable) == (
        (stored(model_of(NET, 13)), stored(made)), 11, 8,
    )  # fmt: skip


def test_a_model_gives_a_model() -> None:
    model = model_of(NET)
    before = model.SerializeToString()
    result = prune(model, options=HALF)
    assert isinstance(result.model, onnx.ModelProto) and result.model is not model
    assert model.SerializeToString() == before


def test_a_gs_graph_gives_a_gs_graph() -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    result = prune(gs.import_onnx(model_of(NET)), options=HALF)
    assert isinstance(result.model, gs.Graph) and list(result.model.tensors()["w1"].shape) == [2, 4, 3, 3]


def test_the_same_input_gives_the_same_bytes() -> None:
    made = [prune(model_of(NET), options=HALF).model.SerializeToString() for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize("options", [PruneOptions(ratio=0.0), PruneOptions(macs=1.0), PruneOptions()])
def test_nothing_to_prune_gives_the_same_file(options: PruneOptions, tmp_path: Path) -> None:
    source = write_net(tmp_path)
    result = prune(source, options=options, output=tmp_path / "p.onnx")
    assert (tmp_path / "p.onnx").read_bytes() == source.read_bytes()
    assert result.done.difference is not None and result.done.difference.outputs == 0


def test_data_is_what_the_check_runs_on(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    result = prune(source, tmp_path / "d.npz", HALF)
    assert (result.done.samples, result.done.seeded) == (6, False)
    assert "equals the original" in str(result) and "on 6 batches" in str(result)
    assert "one random input" in str(prune(source, options=HALF, output=tmp_path / "q.onnx"))


def test_a_plan_writes_nothing_and_has_the_same_numbers(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    planned = plan_pruning(source, options=HALF)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["d.npz", "m.onnx"]
    done = prune(source, options=HALF).done
    assert planned.done.difference is None
    assert (planned.done.parameters, planned.done.multiply_adds) == (done.parameters, done.multiply_adds)
    assert planned.done.groups == done.groups


def test_a_result_says_taos_ratio() -> None:
    result = prune(model_of(NET), options=HALF)
    ratio = result.done.parameters[1] / result.done.parameters[0]
    assert f"pruning ratio {ratio:.3f} (pruned / original parameters)" in repr(result)
    assert result.rows()[0] == ["group", "kept", "total", "operators", "parameters", "multiply-adds"]
    assert [row[1:3] for row in result.rows()[1:]] == [["2", "4"], ["2", "4"]]


def test_weights_in_a_data_file_move_into_the_model_where_they_are_cut(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    model = model_of(NET)
    onnx.save_model(model_of(NET), folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    prune(folder / "m.onnx", options=PruneOptions(ratio=0.5, exclude=("c1",)), output=folder / "p.onnx")
    made = onnx.load(folder / "p.onnx", load_external_data=False)
    outside = {one.name for one in made.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL}
    assert outside == {"w1", "b1"}
    loaded = onnx.load(folder / "p.onnx")
    same = prune(model, options=PruneOptions(ratio=0.5, exclude=("c1",))).model
    for one, other in zip(loaded.graph.initializer, same.graph.initializer, strict=True):
        assert (onnx.numpy_helper.to_array(one) == onnx.numpy_helper.to_array(other)).all()


def test_a_q_dq_model_keeps_its_pairs_and_their_scales() -> None:
    data = {"x": np.random.default_rng(3).normal(size=(6, 4, 8, 8)).astype(np.float32)}
    placed = insert(model_of(NET, 13), data=data).model
    pruned = prune(placed, options=HALF).model
    names = [node.name for node in placed.graph.node]
    assert [node.name for node in pruned.graph.node] == names
    before, after = (
        {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer} for model in (placed, pruned)
    )
    scales = [name for name in before if name.endswith("_scale") and before[name].ndim == 0]
    assert scales and all(before[name].tobytes() == after[name].tobytes() for name in scales)
    assert after["w1_scale"].shape == (2,) and set(after["w1_scale"]) <= set(before["w1_scale"])


def batches(*sizes: int) -> list[Feed]:
    """Batches of so many samples, each sample filled with its number."""
    numbers = np.split(np.arange(sum(sizes), dtype=np.float32), np.cumsum(sizes)[:-1])
    return [{"x": np.repeat(one[:, None], 3, axis=1)} for one in numbers]


def numbers_of(walked: Iterable[Feed]) -> list[int]:
    return [int(row[0]) for batch in walked for row in batch["x"]]


@pytest.mark.parametrize("sizes", [(12,), (1,) * 12, (5, 5, 2), (3, 4, 5), (4, 1, 7)])
def test_every_fifth_sample_is_held_out_whatever_the_batch_is(sizes: tuple[int, ...]) -> None:
    held, used = (HeldOutSamples(batches(*sizes), FREE, held=one) for one in (True, False))
    assert numbers_of(held) == [4, 9]
    assert numbers_of(used) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11] == numbers_of(used), "walked again from the beginning"
    assert all(len(batch["x"]) for batch in (*held, *used)), "no batch is empty"


def test_a_batch_that_loses_nothing_is_the_one_that_came() -> None:
    given = batches(4, 1)
    assert next(iter(HeldOutSamples(given, FREE, held=False))) is given[0]
    assert next(iter(HeldOutSamples(given, FREE, held=True))) is given[1]


def test_where_the_model_fixes_the_batch_each_counts_as_one_sample() -> None:
    assert numbers_of(HeldOutSamples(batches(*[2] * 6), FIXED, held=True)) == [8, 9]


def test_a_batch_of_unlike_arrays_is_one_sample() -> None:
    both = [*FREE, Input("y", (None,), np.dtype(np.float32))]
    unlike: list[Feed] = [{"x": np.full((2, 3), number), "y": np.zeros(5)} for number in range(6)]
    assert numbers_of(HeldOutSamples(unlike, both, held=True)) == [4, 4]
    scalars: list[Feed] = [{"x": np.full((1, 3), number), "y": np.float32(0)} for number in range(6)]
    assert numbers_of(HeldOutSamples(scalars, both, held=True)) == [4]


@pytest.mark.parametrize("total", [5, 9, 12, 48, 99, 100, 256, 1000])
def test_what_finetune_measures_on_took_no_part_in_the_weights(total: int) -> None:
    held = numbers_of(HeldOutSamples(batches(total), FREE, held=True))
    assert set(held_out(total)) <= set(held)


@pytest.mark.parametrize(("count", "left"), [(12, 10), (24, 20), (4, 4), (None, None)])
def test_as_many_are_not_held_as_are_walked(count: int | None, left: int | None) -> None:
    assert not_held(count) == left
    if count:
        assert len(numbers_of(HeldOutSamples(batches(count), FREE, held=False))) == left


def test_the_bar_knows_how_many_come(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(Shown(FEEDS, 8, True, there=10))) == 8
    said = capsys.readouterr().err
    assert "importance" in said and "0/8" in said, "of the most that are taken"
    assert len(list(Shown(FEEDS, 20, True, there=12))) == 12
    assert "0/12" in capsys.readouterr().err
    assert len(list(Shown(FEEDS, 8, False))) == 8
    assert capsys.readouterr().err == ""
