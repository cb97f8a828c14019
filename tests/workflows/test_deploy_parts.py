# SPDX-License-Identifier: Apache-2.0
"""The parts of `deploy`: what a candidate costs, how it is judged, how data is split."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.commands import Commands
from qdqtool.data.loader import DataOptions, Input, inputs_of, open_loader
from qdqtool.deploying.candidates import DeployCandidate, candidates_for
from qdqtool.deploying.choice import CandidateTrial, DeployCost
from qdqtool.deploying.target import DeployTarget, target_at
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.evaluation.tasks import TaskOptions
from qdqtool.forecasting.boards import device_of, find_place
from qdqtool.graph.io import open_model
from qdqtool.verbs.amp import amp
from qdqtool.verbs.amp_options import AmpOptions
from qdqtool.verbs.simulate import simulated_model
from qdqtool.verbs.simulate_options import SimulateOptions
from qdqtool.workflows import deploy_cost
from qdqtool.workflows.deploy_cost import cost_of_candidate
from qdqtool.workflows.deploy_files import peel_kinds, write_other_build, write_package, write_recipe
from qdqtool.workflows.deploy_layers import layers_left
from qdqtool.workflows.deploy_other_builds import added_layers_note
from qdqtool.workflows.deploy_split import split_data, write_samples
from qdqtool.workflows.deploy_steps import MadeFiles, StepJob, carry_out
from qdqtool.workflows.judge import Judge, target_of_candidate
from tests.graphs import SMALL_NET, model_of


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=11), folder / "net.onnx")
    np.save(folder / "data.npy", np.random.default_rng(0).normal(size=(12, 4, 8, 8)).astype(np.float32))
    return folder


def target(place: str, *, dla: bool = False) -> DeployTarget:
    return target_at(find_place(place), dla=dla)


def made(here: Path, folder: Path, place: str, name: str, *, dla: bool = False) -> tuple[DeployCandidate, MadeFiles]:
    """A candidate of a target, carried out."""
    to = target(place, dla=dla)
    candidate = next(one for one in candidates_for(to, "default") if one.name == name)
    job = StepJob(
        here / "net.onnx", "net", here / "data.npy", DataOptions(), None, to, "cpu", lambda text: None, Commands()
    )
    return candidate, carry_out(candidate, job, folder)


def test_a_cache_costs_what_its_pairs_would(here: Path, tmp_path: Path) -> None:
    cost = cost_of_candidate(*made(here, tmp_path, "7.1.3", "ptq-entropy"), target("7.1.3"))
    fp16 = cost_of_candidate(*made(here, tmp_path, "7.1.3", "fp16"), target("7.1.3"))
    assert cost.megabytes is not None and fp16.megabytes is not None and cost.megabytes < fp16.megabytes
    assert cost.source.startswith("predicted by ")


def test_an_old_plain_model_is_lifted_to_be_forecast(tmp_path: Path) -> None:
    """Shapes of opset 8 are not inferred by onnx; the model itself stays as it is."""
    path = tmp_path / "old.onnx"
    onnx.save(model_of(SMALL_NET.replace("float[N", "float[1"), opset=8, ir=6), path)
    before = path.read_bytes()
    candidate = candidates_for(target("8.6.1"), "fast")[-1]
    cost = cost_of_candidate(candidate, MadeFiles(path), target("8.6.1"))
    assert cost.megabytes is not None and path.read_bytes() == before


def test_an_old_model_in_fp16_is_forecast_in_bytes_too(tmp_path: Path) -> None:
    """Without them it would be compared with INT8 by layers alone."""
    text = SMALL_NET.replace("float[N", "float[1").replace("f = Flatten(g)", "f = Reshape(g, s)")
    text = text.replace("float[4,3] fc>", "float[4,3] fc, int64[2] s = {1,4}>")
    onnx.save(model_of(text, opset=8, ir=6), tmp_path / "old.onnx")
    amp(tmp_path / "old.onnx", options=AmpOptions(assume_range=9.0), output=tmp_path / "half.onnx")
    candidate = candidates_for(target("11.4"), "fast")[-2]
    cost = cost_of_candidate(candidate, MadeFiles(tmp_path / "half.onnx"), target("11.4"))
    assert candidate.form == "fp16" and cost.megabytes is not None
    as_is = candidates_for(target("11.4"), "fast")[-1]
    wide = cost_of_candidate(as_is, MadeFiles(tmp_path / "old.onnx"), target("8.6"))
    assert as_is.form == "as-is" and wide.megabytes == pytest.approx(2 * cost.megabytes, rel=0.2)


def test_a_dla_costs_operators_without_a_scale(here: Path, tmp_path: Path) -> None:
    to = target("jp4.6.1", dla=True)
    candidate, files = made(here, tmp_path, "jp4.6.1", "ptq-mse", dla=True)
    assert cost_of_candidate(candidate, files, to) == DeployCost(
        None, 0, "weighted operators without a scale", "in float", on_gpu=2
    )
    half = cost_of_candidate(*made(here, tmp_path, "jp4.6.1", "fp16", dla=True), to)
    assert (half.layers, half.on_gpu) == (3, 2) and half.order > (0.0, 5)
    typed = target("orin:jp7.2.2", dla=True)
    pairs = made(here, tmp_path, "orin:jp7.2.2", "insert-auto", dla=True)
    assert cost_of_candidate(*pairs, typed).source == "weighted operators in FP16"


def test_without_nvidias_compiler_the_rules_forecast(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(files: MadeFiles) -> DeployCost:
        raise MissingPackageError("tensorrt-rtx", "is not installed", "pip install it")

    monkeypatch.setattr(deploy_cost, "_built", missing)
    to = target("rtx4090:rtx")
    cost = cost_of_candidate(*made(here, tmp_path, "rtx4090:rtx", "insert-entropy"), to)
    assert cost.megabytes is not None and cost.source.startswith("predicted")


def test_an_engine_that_is_built_here_has_a_forecast_time(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's plan has bytes and layers; without a time, FP16 would not be held against INT8."""
    monkeypatch.setattr(deploy_cost, "_built", lambda files: DeployCost(1.0, 7, "compiler's plan"))
    to = target("rtx4090:rtx")
    cost = cost_of_candidate(*made(here, tmp_path, "rtx4090:rtx", "insert-entropy"), to, device_of("rtx4090:rtx"))
    assert (cost.megabytes, cost.layers) == (1.0, 7) and cost.microseconds is not None


def test_a_cache_is_judged_as_its_target_rounds(here: Path, tmp_path: Path) -> None:
    for place, dla in (("jp4.6.1", True), ("7.1.3", False)):
        folder = tmp_path / place
        folder.mkdir()
        candidate, files = made(here, folder, place, "ptq-entropy", dla=dla)
        judged = target_of_candidate(candidate, files, target(place, dla=dla))
        assert "not run by TensorRT" in judged.notes[0] and len(judged.model.proto.graph.node) > 7


def test_fp32_loses_nothing_against_itself_and_int8_something(here: Path, tmp_path: Path) -> None:
    plain = open_model(here / "net.onnx")
    judge = Judge(plain, (here / "data.npy", DataOptions()), TaskOptions(), lambda text: None)
    assert judge.count == 12 and judge.reference.value == 1.0
    candidate, files = made(here, tmp_path, "8.6.1", "fp16")
    loss = judge.loss(target_of_candidate(candidate, files, target("8.6.1")))
    assert (loss.value, loss.interval.low, loss.interval.high) == (0.0, 0.0, 0.0)


def test_what_changed_against_fp32_is_measured_where_labels_judge(here: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "classes.npy", np.arange(12) % 3)
    plain, candidate = open_model(here / "net.onnx"), made(here, tmp_path, "8.6.1", "insert-entropy")
    model = target_of_candidate(*candidate, target("8.6.1"))
    for options in (TaskOptions(), TaskOptions(labels=tmp_path / "classes.npy")):
        judge = Judge(plain, (here / "data.npy", DataOptions()), options, lambda text: None)
        found = judge.judgment(model)
        assert found.change is not None and 0 < found.change < 0.2, "finer than the best class, which is the same"
        assert found.figure.value == judge.figure(model).value
        assert judge.judgment(replace(model, model=plain)).change == 0


def test_data_that_holds_too_little_is_refused(here: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.zeros((5, 4, 8, 8), np.float32) + np.arange(5).clip(0, 1)[:, None, None, None])
    inputs = inputs_of(onnx.load(here / "net.onnx").graph)
    with pytest.raises(QdqError, match="holds 2 different samples, and 3 parts"):
        split_data(str(tmp_path / "two.npy"), None, inputs, DataOptions(), "fast")
    with pytest.raises(QdqError, match="only once"):
        split_data(({"x": row} for row in np.zeros((3, 1, 4, 8, 8), np.float32)), None, inputs, DataOptions(), "fast")


def test_images_in_memory_are_split_and_written_as_those_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    images = np.random.default_rng(3).integers(0, 256, (12, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(12))
    inputs, how = [Input("x", (None, 3, 8, 8), np.dtype(np.float32))], DataOptions(preprocess="scale=1/255")
    stored = split_data(str(tmp_path / "data.npz"), None, inputs, how, "fast")
    held = split_data({"x": images, "y": np.arange(12)}, None, inputs, how, "fast")
    assert (held.digest, held.parts) == (stored.digest, stored.parts)
    (tmp_path / "written").mkdir()
    script, options = write_samples(held, inputs, tmp_path / "written")
    wanted = [batch["x"].tobytes() for batch in open_loader(stored.calibrate[0], inputs, stored.calibrate[1])]
    assert [batch["x"].tobytes() for batch in open_loader(script, inputs, options)] == wanted
    assert len(wanted) == stored.counts["calibrate"]


def test_eval_data_leaves_two_parts_of_the_data(here: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.ones((2, 4, 8, 8), np.float32))
    inputs = inputs_of(onnx.load(here / "net.onnx").graph)
    split = split_data(here / "data.npy", tmp_path / "other.npy", inputs, DataOptions(), "fast")
    assert split.counts == {"calibrate": 8, "choose": 4, "report": 2}
    assert split.parts["report"] == "" and split.report[1].part is None
    assert split.calibrate[1].part is not None and str(split.calibrate[1].part) == split.parts["calibrate"]


SILU = """net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w1, float[4,4,3,3] w2>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1)
 s = Sigmoid(c1)
 m = Mul(c1, s)
 y = Conv<pads=[1,1,1,1]>(m, w2)
}"""


def test_what_an_old_builder_cannot_be_told_is_said(here: Path, tmp_path: Path) -> None:
    """The trtexec of TensorRT 8.2 knows no precisions of layers; the script for Polygraphy does."""
    onnx.save(model_of(SILU, opset=13), tmp_path / "net.onnx")
    to = target("xavier-nx:jp4.6.1", dla=True)
    candidate = next(one for one in candidates_for(to, "default") if one.name == "insert-gpu")
    job = StepJob(
        tmp_path / "net.onnx", "net", here / "data.npy", DataOptions(), None, to, "cpu", lambda text: None, Commands()
    )
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    job = replace(job, emit=peel_kinds(open_model(job.model)))
    files = carry_out(candidate, job, tmp_path / "work")
    package = write_package(candidate, files, job, tmp_path / "out")
    told = [note for note in package.notes if "too old for --layerPrecisions" in note]
    assert len(told) == 1 and told[0].startswith("trtexec: ") and told[0].endswith("net.int8.polygraphy.py can")
    assert (tmp_path / "out" / "net.int8.polygraphy.py").is_file()
    assert any("trtexec" in note and "INT8" in note for note in package.notes)


@pytest.mark.parametrize("name", ["insert-gpu", "ptq-mse"])
def test_where_onnxruntime_cuts_names_there_is_no_triton_file(here: Path, tmp_path: Path, name: str) -> None:
    for folder in ("plain", "cut"):
        (tmp_path / folder / "work").mkdir(parents=True)
        (tmp_path / folder / "out").mkdir()
        onnx.save(model_of(SILU, opset=13), model := tmp_path / folder / "net.onnx")
        if folder == "cut":
            onnx.save(renamed(onnx.load(model), {"c1": "onnx::c1"}), model)
        to = target("xavier-nx:jp4.6.1", dla=True)
        candidate = next(one for one in candidates_for(to, "default") if one.name == name)
        job = StepJob(model, "net", here / "data.npy", DataOptions(), None, to, "cpu", lambda text: None, Commands())
        job = replace(job, emit=peel_kinds(open_model(model)))
        files = carry_out(candidate, job, tmp_path / folder / "work")
        package = write_package(candidate, files, job, tmp_path / folder / "out")
        written = tmp_path / folder / "out" / "net.int8.config.pbtxt"
        assert written.is_file() is (folder == "plain")
        assert any(note.startswith("no config.pbtxt: onnxruntime cuts names") for note in package.notes) is (
            folder == "cut"
        )


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """A model whose tensors have other names."""
    for node in model.graph.node:
        for table in (node.input, node.output):
            table[:] = [names.get(name, name) for name in table]
    return model


def test_layers_that_editing_weights_added_are_told_with_the_cost_on_a_dla(here: Path, tmp_path: Path) -> None:
    candidate, files = made(here, tmp_path, "xavier-nx:jp4.6.1", "condition", dla=True)
    plain = cost_of_candidate(candidate, files, target("xavier-nx:jp4.6.1", dla=True))
    model = onnx.load(files.model)
    muls = sum(node.op_type == "Mul" for node in model.graph.node)
    node = onnx.helper.make_node("Mul", ["x", "x"], ["more"])
    node.metadata_props.add(key="qdqtool.rule", value="smooth")
    node.metadata_props.add(key="qdqtool.origin", value="condition")
    model.graph.node.append(node)
    onnx.save(model, tmp_path / "more.onnx")
    cost = cost_of_candidate(
        candidate, replace(files, model=tmp_path / "more.onnx"), target("xavier-nx:jp4.6.1", dla=True)
    )
    assert (plain.added, cost.added) == (muls, muls + 1)
    assert cost.text().startswith(f"{plain.layers} in float, ")
    assert cost.text().endswith(f", {muls + 1} layer{'s' if muls else ''} more")
    assert cost.to_json()["added_layers"] == muls + 1 and cost.order == plain.order, "it decides nothing"
    note = added_layers_note(CandidateTrial(candidate, cost=cost))
    assert re.match(f"condition adds {muls + 1} Mul, .*DLA", note)
    assert added_layers_note(CandidateTrial(candidate, cost=replace(cost, added=0))) == ""


def test_another_build_is_a_model_and_its_script(here: Path, tmp_path: Path) -> None:
    def build(place: str, *, form: str = "fp16", dla: bool = False) -> str:
        to = target(place, dla=dla)
        data = here / "data.npy"
        job = StepJob(here / "net.onnx", "net", data, DataOptions(), None, to, "cpu", lambda text: None, Commands())
        folder = tmp_path / f"{place.replace(':', '_')}_{form}"
        for part in ("made", "out"):
            (folder / part).mkdir(parents=True)
        one = next(one for one in candidates_for(to, "fast") if one.form == form)
        made = carry_out(one, job, folder / "made")
        built = write_other_build(one, made, job, folder / "out")
        model = f"net.{form if one.is_float else 'int8'}.onnx"
        assert {path.name for path in (folder / "out").iterdir()} >= {model, built.name}
        assert built.engine in built.text and built.stem == model.removesuffix(".onnx")
        if one.is_float and not made.model.name.endswith(".fp16.onnx"):
            assert (folder / "out" / model).read_bytes() == (here / "net.onnx").read_bytes()
        assert (folder / "out" / built.name).read_text() == built.text
        return built.text.replace(" \\\n ", "")

    assert "--onnx=net.fp16.onnx --fp16 --saveEngine=net.fp16.engine" in build("orin-nx:jp6.1")
    flags = "--workspace=1024 --fp16 --useDLACore=0 --allowGPUFallback"
    assert f"--onnx=net.fp16.onnx {flags} --saveEngine=net.fp16.engine" in build("xavier-nx:jp4.6.1", dla=True)
    typed = build("11.4")
    assert "--onnx=net.fp16.onnx" in typed and "--int8" not in typed and "--fp16" not in typed
    assert "net.fp16.onnx --target rtx" in build("rtx4090:rtx")
    as_is = build("orin-nx:jp6.1", form="as-is")
    assert "--onnx=net.as-is.onnx --saveEngine=net.as-is.engine" in as_is, "no type but those of the file"
    assert "--onnx=net.as-is.onnx --saveEngine" in build("11.4", form="as-is")
    assert "--calib=net.int8.cache" in build("7.1.3", form="cache")


def test_the_recipe_runs_on_the_provider_that_the_steps_ran_on(tmp_path: Path) -> None:
    to = target("8.6.1")
    job = StepJob(
        tmp_path / "m.onnx", "m", tmp_path / "d.npy", DataOptions(), None, to, "cuda", lambda text: None, Commands()
    )
    write_recipe(candidates_for(to, "best")[-3], job, tmp_path / "out", tmp_path / "recipe.toml")
    assert (tmp_path / "recipe.toml").read_text().count('provider = "cuda"') == 1


HEAD = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w1, float[4,4,3,3] w2>
{ c = Conv<pads=[1,1,1,1]>(x, w1) r = Relu(c) y = Conv<pads=[1,1,1,1]>(r, w2) }"""


@pytest.mark.parametrize(("place", "told"), [("xavier:jp5.1.2", True), ("xavier:jp4.6.1", False)])
def test_a_head_is_judged_as_trtexec_builds_it(here: Path, tmp_path: Path, place: str, told: bool) -> None:
    """From 8.4 on the script keeps it in float; it was judged in INT8, and a calibrator's cache was said to keep it."""
    onnx.save(model_of(HEAD, 11), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.load(here / "data.npy"))
    to = target(place, dla=True)
    assert to.version is not None
    candidate, peeled = made(tmp_path, tmp_path, place, "insert-gpu", dla=True)
    assert [one.node for one in peeled.layers] == ["y"] and bool(peeled.told_to(to.version)) is told
    assert bool(layers_left(candidate, peeled, to).in_float) is told, "trtexec before 8.4 builds it in INT8"
    cost = cost_of_candidate(candidate, peeled, to)
    assert (cost.layers, cost.told) == ((1, 1) if told else (0, 0))
    assert cost.order[-1] == cost.on_gpu, "what is kept for accuracy makes it no dearer"
    whole = simulated_model(peeled.model, SimulateOptions("dla", to.version, cache=peeled.cache)).model
    with_float = simulated_model(peeled.qdq, SimulateOptions("dla", to.version)).model  # type: ignore[arg-type]
    judged = target_of_candidate(candidate, peeled, to).model.proto
    assert whole != with_float and judged == (with_float if told else whole)
    (tmp_path / "ptq").mkdir()
    assert made(tmp_path, tmp_path / "ptq", place, "ptq-mse", dla=True)[1].layers == ()
