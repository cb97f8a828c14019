# SPDX-License-Identifier: Apache-2.0
"""finetune on little networks: better on held-out data, scales to the bit, taken up again to the bit, faults."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.edit import FINETUNED, drop_metadata, equalized_tensors, get_metadata
from qdqtool.graph.model import Model
from qdqtool.metadata import stored_table
from qdqtool.passes.peel import peel_pairs
from qdqtool.precision.assignment import PRECISION, TypeAssignment
from qdqtool.runtime.executor import Executor
from qdqtool.training.losses.options import LossOptions, parse_label
from qdqtool.training.options import RunOptions, UpdateOptions
from qdqtool.training.schedules import Schedule
from qdqtool.verbs.finetune import FinetuneOptions, FinetuneResult, finetune
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed_graphs import with_types

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
from tests.verbs.finetune_net import BRISK, DATA, QUICK, tune, write_net


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_net(tmp_path_factory.mktemp("finetune"))


@pytest.fixture(scope="module")
def tuned(folder: Path) -> FinetuneResult:
    """`t.onnx`, made in 40 steps; tests that look at it leave it alone."""
    return tune(folder, "tuned.onnx")


def scales_of(path: Path) -> dict[str, bytes]:
    peeled = peel_pairs(Model(onnx.load(path)))
    return {name: scale.bits.tobytes() for name, scale in {**peeled.scales, **peeled.weights}.items()}


def test_it_comes_nearer_to_the_float_model(folder: Path, tuned: FinetuneResult) -> None:
    result = tuned
    assert result.model == folder / "tuned.onnx"
    assert result.after < 0.9 * result.before
    assert 0 < result.step <= result.steps == result.planned == 40
    assert (result.samples, result.held_samples) == (16, 4)
    assert [one.output for one in result.outputs] == ["y"]
    assert result.outputs[0].after > result.outputs[0].before
    assert result.backend == "builtin" or "training" in result.backend


@pytest.mark.slow
def test_a_model_whose_float_function_was_moved_wants_the_one_from_before(folder: Path, tmp_path: Path) -> None:
    options = qdqtool.InsertOptions(condition="auto", calibration=qdqtool.CalibrationOptions("mse"))
    qdqtool.insert(folder / "m.onnx", data=folder / "d.npz", options=options, output=tmp_path / "c.onnx")
    run = RunOptions(steps=2, progress=False)
    with pytest.raises(
        QdqError,
        match=r"own teacher.*\(.*correct\).*--teacher",
    ):
        finetune(tmp_path / "c.onnx", folder / "d.npz", FinetuneOptions(run=run))
    result = finetune(tmp_path / "c.onnx", folder / "d.npz", FinetuneOptions(run=run, teacher=folder / "m.onnx"))
    assert result.steps == 2
    labels = LossOptions((parse_label("y:ce"),))
    assert finetune(tmp_path / "c.onnx", folder / "l.npz", FinetuneOptions(run=run, loss=labels)).steps == 2
    (tmp_path / "loss.py").write_text("def f(b): return (b.tensor('y') - b.teacher('y')).square().mean()")
    script = LossOptions(script=f"{tmp_path / 'loss.py'}:f")
    with pytest.raises(QdqError, match=r"the teacher's tensor y, .*--teacher"):
        finetune(tmp_path / "c.onnx", folder / "d.npz", FinetuneOptions(run=run, loss=script))


@pytest.mark.slow
def test_a_plain_model_gets_the_pairs_of_insert_first(folder: Path, tmp_path: Path) -> None:
    qdqtool.insert(folder / "m.onnx", data=folder / "d.npz", output=tmp_path / "q.onnx")
    options = FinetuneOptions(run=replace(QUICK, steps=10), update=BRISK)
    two = finetune(tmp_path / "q.onnx", folder / "d.npz", options, output=tmp_path / "two.onnx")
    one = finetune(folder / "m.onnx", folder / "d.npz", options, output=tmp_path / "one.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert "there was no Q/DQ: placed on 4 activations, as qdqtool insert does" in one.notes
    assert not one.in_float and one.outputs == two.outputs
    held = finetune(onnx.load(folder / "m.onnx"), folder / "d.npz", options)
    assert held.model.SerializeToString() == (tmp_path / "one.onnx").read_bytes()


@pytest.mark.slow
def test_a_plain_model_with_data_beside_it_gets_pairs(folder: Path, tmp_path: Path) -> None:
    onnx.save(onnx.load(folder / "m.onnx"), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    options = FinetuneOptions(run=replace(QUICK, steps=10), update=BRISK)
    found = finetune(tmp_path / "m.onnx", folder / "d.npz", options)
    assert found.model == tmp_path / "m.finetuned.onnx" and found.steps == 10
    onnx.checker.check_model(str(found.model), full_check=True)


@pytest.mark.parametrize("blocks", [False, True])
def test_relu6_is_trained_towards_the_model_with_relu(folder: Path, tmp_path: Path, blocks: bool) -> None:
    np.savez(tmp_path / "d.npz", x=8 * DATA)  # values beyond 6
    run = replace(QUICK, steps=10) if not blocks else RunOptions(steps=10, progress=False)
    options = FinetuneOptions(run=run, update=BRISK, relu6=True, blocks=blocks)
    found = finetune(folder / "m.onnx", tmp_path / "d.npz", options, output=tmp_path / "t.onnx")
    assert found.after < found.before
    made = onnx.load(tmp_path / "t.onnx")
    assert {"Clip"} <= {node.op_type for node in made.graph.node} and "Relu" not in {n.op_type for n in made.graph.node}
    held = np.concatenate([8 * DATA[place : place + 1] for place in (4, 9, 14, 19)])
    theirs, ours = (
        Executor(Model(onnx.load(path)), ["y"]).run({"x": held})["y"] for path in (folder / "m.onnx", found.model)
    )
    lost = 10 * np.log10(np.square(theirs).sum() / np.square(theirs - ours).sum())
    assert found.outputs[0].after == pytest.approx(lost, abs=0.3)  # against the model that was given


def test_relu6_is_for_models_that_get_their_pairs_here(folder: Path) -> None:
    with pytest.raises(QdqError, match=r"--relu6: .*insert --condition relu6"):
        finetune(folder / "q.onnx", folder / "d.npz", FinetuneOptions(relu6=True))


@pytest.mark.slow
def test_channels_are_evened_out_first_and_no_activation_gets_another_scale(folder: Path, tmp_path: Path) -> None:
    apart = onnx.load(folder / "m.onnx")
    for tensor in apart.graph.initializer:
        if tensor.name in ("w1", "b1"):
            value = onnx.numpy_helper.to_array(tensor)
            factors = np.array([1, 8, 32, 64], np.float32).reshape(-1, *(1,) * (value.ndim - 1))
            tensor.CopyFrom(onnx.numpy_helper.from_array(value / factors, tensor.name))
    options = qdqtool.InsertOptions(calibration=qdqtool.CalibrationOptions("mse"), keep_float=0)
    qdqtool.insert(apart, data=folder / "d.npz", options=options, output=tmp_path / "q.onnx")
    run = replace(QUICK, steps=1)
    plain, evened = (
        finetune(tmp_path / "q.onnx", folder / "d.npz", FinetuneOptions(run=run, equalize=one), output=tmp_path / name)
        for one, name in ((False, "plain.onnx"), (True, "evened.onnx"))
    )
    assert not any("equalized" in note for note in plain.notes)
    assert any(re.match("1 tensor .*equalized", note) for note in evened.notes)
    assert evened.outputs[0].before == plain.outputs[0].before
    assert evened.outputs[0].after > plain.outputs[0].after + 1
    before, after = (
        {name: scale.bits.tobytes() for name, scale in peel_pairs(Model(onnx.load(path))).scales.items()}
        for path in (tmp_path / "q.onnx", tmp_path / "evened.onnx")
    )
    assert before == after
    assert equalized_tensors(onnx.load(tmp_path / "evened.onnx")) == ["r1"]


def test_a_model_that_ends_in_a_plugin_is_trained_before_it(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "fine.onnx")
    model.opset_import.append(onnx.helper.make_opsetid("plugins", 1))
    last = next(node for node in model.graph.node if "y" in node.output)
    last.output[0] = "logits"
    model.graph.node.append(onnx.helper.make_node("Sort", ["logits"], ["y"], domain="plugins"))
    onnx.save(model, tmp_path / "plugin.onnx")
    result = finetune(tmp_path / "plugin.onnx", folder / "d.npz", FinetuneOptions(run=replace(QUICK, steps=3)))
    assert result.steps == 3
    assert onnx.load(result.model).graph.node[-1].op_type == "Sort"


def test_pictures_with_labels_stay_as_they_are(folder: Path) -> None:
    options = FinetuneOptions(loss=LossOptions((parse_label("y:ce"),)), augment=("flip",))
    with pytest.raises(QdqError, match=r"--augment: .*labels"):
        finetune(folder / "q.onnx", folder / "l.npz", options)


def test_scales_names_and_nodes_stay(folder: Path, tuned: FinetuneResult) -> None:
    before, after = onnx.load(folder / "q.onnx"), onnx.load(tuned.model)
    assert scales_of(folder / "q.onnx") == scales_of(tuned.model)
    assert [node.SerializeToString() for node in before.graph.node] == [n.SerializeToString() for n in after.graph.node]
    changed = [
        one.name
        for one, other in zip(before.graph.initializer, after.graph.initializer, strict=True)
        if one.SerializeToString() != other.SerializeToString()
    ]
    assert set(changed) <= {"w1", "b1", "w2", "fc"}
    assert changed


def test_the_metadata_tell_of_it_and_free_scales_are_measured_again(folder: Path, tuned: FinetuneResult) -> None:
    result = tuned
    before, after = onnx.load(folder / "q.onnx"), onnx.load(tuned.model)
    reported = json.loads(get_metadata(after, FINETUNED) or "")
    assert reported["steps"] == result.step
    assert reported["after"] == result.after
    assert reported["seed"] == 0
    old, new = stored_table(before), stored_table(after)
    assert old is not None
    assert new is not None
    assert set(old) == set(new)
    points = peel_pairs(Model(after)).scales
    assert all(new[name].same_bits(scale) for name, scale in points.items())
    free = [name for name in new if name not in points]
    assert any(not old[name].same_bits(new[name]) for name in free)
    fresh = qdqtool.calibrate(plain_of(tuned.model), folder / "d.npz", qdqtool.CalibrationOptions("mse"))
    assert all(new[name].same_bits(fresh[name]) for name in free)


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_the_other_verbs_take_it(folder: Path, tuned: FinetuneResult, tmp_path: Path, target: str) -> None:
    options = qdqtool.PeelOptions(qdqtool.TrtVersion(8, 5, 2), target=target, source=folder / "m.onnx")
    done = qdqtool.peel(tuned.model, options, output=tmp_path / "p.onnx", cache=tmp_path / "p.cache")
    assert set(done.origins) & {"qdq"}
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tuned.model).graph.initializer}
    clean = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "p.onnx").graph.initializer}
    assert all(np.array_equal(clean[name], weights[name]) for name in ("w1", "b1", "w2"))
    assert get_metadata(onnx.load(tuned.model), FINETUNED)
    grafted = qdqtool.graft(tmp_path / "p.onnx", tmp_path / "p.cache", output=tmp_path / "g.onnx")
    assert not grafted.unknown
    assert not [one for one in qdqtool.lint(tuned.model).findings if one.severity == "error"]
    assert [one.tensor for one in qdqtool.simulate(tuned.model, folder / "d.npz").outputs] == ["y"]


def test_the_largest_weights_stay_so_that_a_builder_finds_the_scales_again(folder: Path) -> None:
    update, loss = UpdateOptions(relative_lr=0.3, ema_decay=0.0), LossOptions((parse_label("y:ce"),))
    result = tune(folder, "f.onnx", "l.npz", "fine.onnx", update=update, loss=loss)
    assert result.step
    old, new = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
        for file in (folder / "fine.onnx", result.model)
    )
    for name in ("w1", "w2"):
        assert not np.array_equal(old[name], new[name])
        assert np.array_equal(*(np.abs(one[name]).max(axis=(1, 2, 3)) for one in (old, new)))


def test_four_bits_are_trained_though_no_cache_holds_them(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "fine.onnx")
    model.opset_import[0].version, model.ir_version = 21, 10
    scales = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "r1"}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[1] in scales:
            node.input[2] = "four"
    model.graph.initializer.append(onnx.helper.make_tensor("four", onnx.TensorProto.UINT4, [], [0]))
    onnx.save(model, tmp_path / "u4.onnx")
    result = finetune(tmp_path / "u4.onnx", folder / "d.npz", FinetuneOptions(run=QUICK, update=BRISK))
    assert result.outputs[0].before < 40
    assert result.step
    assert any("no cache" in note for note in result.notes)


def plain_of(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    peel_pairs(Model(model))
    return model


@pytest.mark.slow
def test_the_same_twice_is_the_same_bytes_and_another_seed_is_not(folder: Path, tuned: FinetuneResult) -> None:
    again, other = tune(folder, "again.onnx"), tune(folder, "other.onnx", seed=1)
    assert Path(tuned.model).read_bytes() == Path(again.model).read_bytes()
    assert Path(tuned.model).read_bytes() != Path(other.model).read_bytes()


@pytest.mark.slow
def test_where_nothing_is_better_the_input_comes_back(folder: Path) -> None:
    result = tune(folder, update=UpdateOptions(relative_lr=1e-9), steps=10)
    assert result.step == 0 or result.after <= result.before
    thrown = tune(folder, update=UpdateOptions(lr=100.0), steps=40, schedule=Schedule("constant", warmup=0))
    assert (thrown.step, thrown.after) == (0, thrown.before)
    assert any("weights of the input" in note for note in thrown.notes)
    assert any("halved 3 times" in note for note in thrown.notes)
    assert onnx.load(folder / "t.onnx").graph == onnx.load(folder / "q.onnx").graph


@pytest.mark.parametrize("ranges", ["learn", "ema"])
def test_scales_that_learn_or_follow_change_and_stay_positive(folder: Path, ranges: Any) -> None:
    result = tune(folder, f"{ranges}.onnx", ranges=ranges)
    assert result.after < result.before
    before, after = scales_of(folder / "q.onnx"), scales_of(folder / f"{ranges}.onnx")
    assert set(before) == set(after)
    assert before != after
    assert all((np.frombuffer(bits, np.float32) > 0).all() for bits in after.values())
    weights = peel_pairs(Model(onnx.load(folder / "q.onnx"))).weights
    assert {"w1", "w2"} <= set(weights)
    assert all(before[name] == after[name] for name in weights) == (ranges == "ema")


@pytest.mark.slow
def test_sgd_average_accumulation_and_decay(folder: Path) -> None:
    update = UpdateOptions("sgd,nesterov", lr=1e-4, ema_decay=0.9, weight_decay=0.01)
    result = tune(folder, update=update, grad_accum=2, steps=20)
    assert result.after <= result.before
    assert tune(folder, batch=4, steps=20).after < result.before


def test_what_is_frozen_stays(folder: Path) -> None:
    tune(folder, "frozen.onnx", freeze=("^w1$", "^b1$"))
    before, after = (
        {t.name: t.SerializeToString() for t in onnx.load(folder / name).graph.initializer}
        for name in ("q.onnx", "frozen.onnx")
    )
    assert before["w1"] == after["w1"]
    assert before["w2"] != after["w2"]


# ------------------------------------------------------------------------------------------------------ one line each


def test_a_nan_in_the_data_is_refused(folder: Path) -> None:
    broken = DATA.copy()
    broken[7, 0, 0, 0] = np.nan
    np.savez(folder / "nan.npz", x=broken)
    with pytest.raises(QdqError, match="input 'x' holds NaN"):
        tune(folder, data="nan.npz")


def test_an_operator_without_a_gradient_is_named(tmp_path: Path) -> None:
    text = SMALL_NET.replace("c2 = Conv<pads=[1,1,1,1]>(r1", "h = Shrink(r1) c2 = Conv<pads=[1,1,1,1]>(h")
    (tmp_path / "m.onnx").write_bytes(model_of(text, 17).SerializeToString())
    np.savez(tmp_path / "d.npz", x=DATA)
    qdqtool.insert(tmp_path / "m.onnx", data=tmp_path / "d.npz", output=tmp_path / "q.onnx")
    with pytest.raises(QdqError, match="Shrink"):
        tune(tmp_path)
    assert not (tmp_path / "t.onnx").exists()


def test_files_named_twice_and_the_input_are_refused(folder: Path) -> None:
    with pytest.raises(QdqError, match=r"name of the model .*--log"):
        tune(folder, log=folder / "t.onnx")
    with pytest.raises(QdqError, match="is the input"):
        tune(folder, "q.onnx")
    with pytest.raises(QdqError, match="is the input"):
        tune(folder, checkpoint=folder / "d.npz")


def test_a_batch_that_the_model_does_not_take_is_refused(folder: Path) -> None:
    model = onnx.load(folder / "q.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(QdqError, match="--batch: 4 cannot be"):
        finetune(model, folder / "d.npz", FinetuneOptions(batch=4, run=QUICK))
    result = finetune(model, folder / "d.npz", FinetuneOptions(run=replace(QUICK, steps=5)))
    assert isinstance(result.model, onnx.ModelProto)
    assert result.samples == 8


def test_peel_writes_the_same_cache(folder: Path, tuned: FinetuneResult) -> None:
    version = qdqtool.TrtVersion(8, 6, 1)
    for target in ("gpu", "dla"):
        caches = []
        for name in ("q", "tuned"):
            made = qdqtool.peel(
                folder / f"{name}.onnx",
                qdqtool.PeelOptions(version, target),
                output=folder / "p.onnx",
                cache=folder / f"{name}.cache",
            )
            caches.append(made.cache.entries)
        same = {name: one.tobytes() == caches[1][name].tobytes() for name, one in caches[0].items()}
        assert all(same.values()) == (target == "gpu")


# ---------------------------------------------------------------------- typed models


def as_typed(folder: Path, name: str, *, recorded: bool = True) -> Path:
    """The coarse model in FP16, one operator in FP32; with the record of its types or as of another hand."""
    made = with_types(onnx.load(folder / "q.onnx"), TypeAssignment(onnx.TensorProto.FLOAT16, frozenset({"r2"})))
    if not recorded:
        drop_metadata(made, PRECISION)
    (folder / name).write_bytes(made.SerializeToString())
    return folder / name


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False])
def test_a_typed_model_is_trained_in_fp32_and_gets_its_types_back(folder: Path, recorded: bool) -> None:
    model = as_typed(folder, f"h{recorded}.onnx", recorded=recorded)
    options = FinetuneOptions(update=BRISK, run=QUICK)
    half = finetune(model, folder / "d.npz", options, output=folder / "ht.onnx")
    assert half.step > 0
    assert half.after < half.before
    before, after = onnx.load(model), onnx.load(half.model)
    assert [(node.op_type, *node.input, *node.output) for node in after.graph.node] == [
        (node.op_type, *node.input, *node.output) for node in before.graph.node
    ]
    assert {t.name: t.data_type for t in after.graph.initializer} == {
        t.name: t.data_type for t in before.graph.initializer
    }
    full = finetune(folder / "q.onnx", folder / "d.npz", options)
    assert half.steps == full.steps


def test_a_typed_model_that_training_does_not_better_comes_back_as_it_was(folder: Path) -> None:
    model = as_typed(folder, "h.onnx")
    still = replace(BRISK, relative_lr=1e-12)
    done = finetune(model, folder / "d.npz", FinetuneOptions(update=still, run=QUICK), output=folder / "same.onnx")
    if not done.step:
        assert done.model.read_bytes() == model.read_bytes()
    else:
        assert done.after <= done.before


def test_a_model_that_is_as_its_float_form_is_told_to_have_no_teacher(tmp_path: Path) -> None:
    """Weights in four bits round before the model is a teacher: it learned from itself, and nothing was said."""
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    body = "h = MatMul(x, w) r = Relu(h) y = Gemm(r, v, b)"
    weights = "<float[64,64] w, float[64,3] v, float[3] b>"
    model = model_of(f"g (float[N,64] x) => (float[N,3] y) {weights} {{ {body} }}", 21)
    arrays = {"w": weight, "v": weight[:, :3], "b": weight[0, :3]}
    for one in model.graph.initializer:
        one.CopyFrom(onnx.numpy_helper.from_array(arrays[one.name], one.name))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=weight[:16])
    plan = qdqtool.PlanOptions(trt_version="11.4", format="int4")
    qdqtool.insert(tmp_path / "m.onnx", options=qdqtool.InsertOptions(plan=plan), output=tmp_path / "q.onnx")
    options = FinetuneOptions(run=RunOptions(steps=2, progress=False))
    alone = finetune(tmp_path / "q.onnx", tmp_path / "d.npz", options)
    taught = finetune(tmp_path / "q.onnx", tmp_path / "d.npz", replace(options, teacher=tmp_path / "m.onnx"))
    said = ["--teacher" in " ".join(one.notes) for one in (alone, taught)]
    assert said == [True, False] and not alone.was_plain
