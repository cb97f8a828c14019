# SPDX-License-Identifier: Apache-2.0
"""What deploy leaves in float and to the GPU: told by name, and channel shuffles rewritten for the DLA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import DeployOptions, DeployResult, deploy
from qdqtool.cli.main import main
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.layers_left import LayersLeft
from qdqtool.deploying.target import target_at
from qdqtool.forecasting.boards import find_place
from qdqtool.workflows.deploy_layers import layers_left
from qdqtool.workflows.deploy_steps import MadeFiles
from tests.graphs import model_of
from tests.workflows.deploy_net import facts_of

# Two channel shuffles, as ShuffleNet's units have them, between convolutions: a DLA runs no Reshape to five dimensions.
_SHUFFLE = "a{0} = Reshape({1}, five) b{0} = Transpose<perm=[0,2,1,3,4]>(a{0}) d{0} = Reshape(b{0}, four)"
SHUFFLED = (
    "g (float[1,8,6,6] x) => (float[1,8,6,6] y) <float[8,8,1,1] w0, float[8,8,1,1] w1, float[8,8,1,1] w2, "
    "int64[5] five = {1, 2, 4, 6, 6}, int64[4] four = {1, 8, 6, 6}> { "
    f"c = Conv(x, w0) r = Relu(c) {_SHUFFLE.format(0, 'r')} e = Conv(d0, w1) s = Relu(e) {_SHUFFLE.format(1, 's')} "
    "y = Conv(d1, w2) }"
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a net of channel shuffles and data for it."""
    folder, values = tmp_path_factory.mktemp("shuffles"), np.random.default_rng(0)
    model = model_of(SHUFFLED, 11)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            array = values.normal(size=tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, folder / "net.onnx")
    np.save(folder / "data.npy", values.normal(size=(24, 8, 6, 6)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def shuffled(here: Path) -> DeployResult:
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    return deploy(here / "net.onnx", here / "data.npy", here / "out", options)


def test_nodes_that_share_a_name_are_all_told(tmp_path: Path) -> None:
    model = model_of("g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w> { y = Conv(x, w) z = Conv(y, w) }")
    for node in model.graph.node:
        node.name = "conv"
    onnx.save(model, tmp_path / "net.onnx")
    target = target_at(find_place("8.6.1"), dla=False)
    left = layers_left(DeployCandidate("as it is", "qdq", (), ""), MadeFiles(tmp_path / "net.onnx"), target)
    assert left.in_float.keys() == {"y", "z"} and all("no Q/DQ" in why for why in left.in_float.values())
    assert left.lines()[0].endswith(": 2 layers: y, z")


@pytest.mark.slow
def test_the_best_candidate_for_a_dla_is_tried_without_its_shuffles(shuffled: DeployResult) -> None:
    last = shuffled.trials[-1]
    before = next(one for one in shuffled.trials if f"{one.candidate.name}+Q030" == last.candidate.name)
    assert last.candidate.steps[0].options == {"select": "Q030", "fix": "Q030"}
    assert last.candidate.steps[1:] == before.candidate.steps
    assert last.cost is not None and before.cost is not None
    assert (last.cost.on_gpu, before.cost.on_gpu) == (0, 6)
    assert shuffled.chosen == last.candidate, shuffled.reason
    assert [one.candidate.name for one in shuffled.trials if one.candidate.form == "fp16"] == ["fp16+Q030"]
    assert shuffled.left.on_gpu == {}
    model = onnx.load(shuffled.folder / "net.int8.onnx")
    assert "Transpose" not in {node.op_type for node in model.graph.node}


@pytest.mark.slow
def test_its_recipe_gives_the_same_bytes(
    shuffled: DeployResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "again"
    assert main(["run", str(shuffled.folder / "recipe.toml"), "-o", str(out), "-q"]) == 0
    for name in ("net.int8.onnx", "net.int8.cache"):
        assert (out / name).read_bytes() == (shuffled.folder / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["insert-gpu", "fp16"])
def test_a_rewritten_model_is_peeled_to_itself(here: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`peel` holds what it gives back against the model that pairs were put into, not the one with the shuffles."""
    from qdqtool.workflows import deploy as module

    every = module.candidates_for
    monkeypatch.setattr(module, "candidates_for", lambda *words: [one for one in every(*words) if one.name == name])
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", here / name, options)
    assert result.chosen.name == f"{name}+Q030" and not result.trials[-1].failed
    stem = "net.fp16" if name == "fp16" else "net.int8"
    model = onnx.load(result.folder / f"{stem}.onnx")
    assert {"Transpose", "QuantizeLinear"}.isdisjoint(node.op_type for node in model.graph.node)
    out = here / f"{name}.again"
    assert main(["run", str(result.folder / "recipe.toml"), "-o", str(out), "-q"]) == 0
    assert (out / f"{stem}.onnx").read_bytes() == (result.folder / f"{stem}.onnx").read_bytes()


@pytest.mark.slow
def test_a_dla_that_takes_pairs_gets_the_rewritten_model_too(here: Path) -> None:
    options = DeployOptions("orin:jp7.2.2", dla=True, effort="fast", progress=False)
    result = deploy(here / "net.onnx", here / "data.npy", here / "typed", options)
    last = result.trials[-1]
    assert last.candidate.name.endswith("+Q030") and not last.failed
    assert [step.verb for step in last.candidate.steps[:2]] == ["lint", "insert"]
    assert last.cost is not None and last.cost.on_gpu == 0, "Casts between float types are no nodes of their own"
    assert result.left.in_float.keys() == {"y"} and "no bounds" in result.left.in_float["y"]


def test_on_a_gpu_shuffles_stay(here: Path) -> None:
    result = deploy(
        here / "net.onnx", here / "data.npy", here / "gpu", DeployOptions("8.6.1", effort="fast", progress=False)
    )
    assert not any("Q030" in one.candidate.name for one in result.trials)


def test_what_the_dla_does_not_run_is_named(here: Path, tmp_path: Path) -> None:
    """Up to five names are printed, all of them stand in deploy.json, with the reason."""
    ops = "".join(f" t{i + 1} = Sin(t{i})" for i in range(7))
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] t7) <float[8,8,1,1] w> {{ t0 = Conv(x, w){ops} }}"
    onnx.save(model_of(text, 11), tmp_path / "net.onnx")
    options = DeployOptions("xavier-nx:jp4.6.1", dla=True, effort="fast", progress=False)
    result = deploy(tmp_path / "net.onnx", here / "data.npy", tmp_path / "out", options)
    names = ", ".join(result.left.on_gpu)
    assert len(result.left.on_gpu) == 7
    said = next(line for line in result.outcome() if "on the GPU" in line and "7 nodes" in line)
    assert said.endswith(" and 2 more, which deploy.json names") and names.startswith(said.split(": ")[2][:10])
    listed = facts_of(result)["on_gpu"]
    assert [one["name"] for one in listed] == list(result.left.on_gpu)
    assert all("no Sin on Xavier" in one["why"] for one in listed)


def test_what_stays_in_float_is_named_with_its_reason(here: Path) -> None:
    head = (
        "g (float[1,8,6,6] x) => (float[1,8,6,6] y) <float[8,8,1,1] w0, float[8,8,1,1] w1, float[8,8,1,1] w2> "
        "{ c = Conv(x, w0) r = Relu(c) e = Conv(r, w1) s = Relu(e) y = Conv(s, w2) }"
    )
    onnx.save(model_of(head, 13), here / "small.onnx")
    result = deploy(
        here / "small.onnx", here / "data.npy", here / "small", DeployOptions("8.6.1", effort="fast", progress=False)
    )
    listed = facts_of(result)["in_float"]
    assert {one["name"]: one["why"] for one in listed} == dict(result.left.in_float)


def test_layers_are_counted_and_the_first_are_named() -> None:
    two = LayersLeft({"a": "a head", "b": "kept for accuracy"})
    assert two.lines()[0].endswith(": 2 layers: a, b")
    many = LayersLeft(on_gpu={str(i): "" for i in range(6)})
    told = "on the GPU, as the DLA does not run them: 6 nodes: 0, 1, 2, 3, 4 and 1 more, which deploy.json names"
    assert many.lines() == [told]
    assert LayersLeft().lines() == [] and LayersLeft().to_json() == {"in_float": [], "on_gpu": []}
