# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache convert --sanitize-names --model`: a cache and its model under names that every reader keeps whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cache.sidecar import read_sidecar
from qdqtool.cache.text import Cache, read_cache, write_cache
from qdqtool.metadata import store_table
from qdqtool.passes.rename_tensors import rename_tensors, tensor_names
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.cli.command import NET, contents, refused, run
from tests.graphs import model_of
from tests.ort_session import session_of

# As TensorFlow names them; conv1/Relu and conv2/Relu_0 make the plain ways out taken.
NAMES = {
    "x": "input:0",
    "c1": "conv1/Relu",
    "r1": "conv1/Relu:0",
    "c2": "conv2/Relu_0",
    "r2": "conv2/Relu:0",
    "y": "out:0",
}
NEW = {"input:0": "input_0", "conv1/Relu:0": "conv1/Relu_0", "conv2/Relu:0": "conv2/Relu_0_1", "out:0": "out_0"}


def first_colon_reader(path: Path) -> dict[str, str]:
    """A reader that ends a name at its first `:`, as onnxruntime's TensorRT provider does: name -> what is behind."""
    pairs = [line.split(":") for line in path.read_text().splitlines()[1:]]
    return {pair[0]: pair[1].strip() for pair in pairs}


def outputs(path: Path, names: dict[str, str]) -> bytes:
    session = session_of(path)
    data = np.random.default_rng(9).normal(size=(2, 4, 8, 8)).astype(np.float32)
    result: bytes = session.run([names.get("out:0", "out:0")], {names.get("input:0", "input:0"): data})[0].tobytes()
    return result


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """m.onnx with such names, and m.cache with a scale of its own for each of its float activations."""
    model = model_of(NET, 13)
    rename_tensors(model, NAMES)
    onnx.save(model, tmp_path / "m.onnx")
    tensors = ["input:0", *(node.output[0] for node in model.graph.node)]
    scales = np.random.default_rng(5).uniform(0.01, 0.1, len(tensors)).astype(np.float32)
    write_cache(Cache.of(TrtVersion(8, 5, 2), dict(zip(tensors, scales, strict=True))), tmp_path / "m.cache")
    return tmp_path


def words(bench: Path, *more: object) -> list[object]:
    """The command, with whatever the test adds."""
    start = ["cache", "convert", bench / "m.cache", "--to", "trt", "--sanitize-names"]
    return [*start, "--model", bench / "m.onnx", "-o", bench / "clean.cache", *more]


def test_every_name_is_read_right_afterwards(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = first_colon_reader(bench / "m.cache")
    assert "conv1/Relu:0" not in wrong
    assert "conv2/Relu" in wrong  # no tensor of the model
    assert wrong["conv1/Relu"] != f"{int(read_cache(bench / 'm.cache').entries['conv1/Relu'].view(np.uint32)):08x}"
    before = contents(bench)
    assert run(capsys, *words(bench)).code == 0
    assert before.items() <= contents(bench).items()
    read, model = first_colon_reader(bench / "clean.cache"), onnx.load(bench / "m.sanitized.onnx")
    source = read_cache(bench / "m.cache").entries
    assert read == {NEW.get(name, name): f"{int(scale.view(np.uint32)):08x}" for name, scale in source.items()}
    assert list(read) == [model.graph.input[0].name, *(node.output[0] for node in model.graph.node)]
    assert not any(":" in name for name in tensor_names(model))


def test_the_model_means_what_it_meant(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *words(bench)).code == 0
    clean = bench / "m.sanitized.onnx"
    onnx.checker.check_model(str(clean), full_check=True)
    assert outputs(clean, NEW) == outputs(bench / "m.onnx", {})
    back = onnx.load(clean)
    assert rename_tensors(back, {new: old for old, new in NEW.items()})
    assert back.SerializeToString(deterministic=True) == onnx.load(bench / "m.onnx").SerializeToString(
        deterministic=True
    )


def test_what_is_said(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, *words(bench, "--model-output", bench / "n.onnx"))
    assert f"{bench / 'clean.cache'}: trt -> trt, 8 scales, 4 names changed\n{bench / 'n.onnx'}: 4 names" in said.out
    assert "input:0 is now input_0, out:0 is now out_0" in said.err
    assert "same names" not in said.err
    assert not (bench / "m.sanitized.onnx").exists()
    document = json.loads(run(capsys, *words(bench, "--model-output", bench / "n.onnx", "--json")).out)
    assert document["model"] == str(bench / "n.onnx")
    assert document["renamed"] == NEW
    sidecar = read_sidecar(bench / "clean.cache")
    assert sidecar is not None
    assert sidecar.options["renamed"] == NEW


def test_the_sanitized_pair_fits(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *words(bench))
    said = run(capsys, "cache", "check", bench / "clean.cache", bench / "m.sanitized.onnx")
    assert said.code == 0
    assert "coverage   100.0 %" in said.out


def test_names_in_the_cache_alone_take_none_of_the_model(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bench / "m.cache").write_text("TRT-8502-EntropyCalibration2\nconv2/Relu_:0: 3c010a14\nconv2:Relu_0: 3d010a14\n")
    assert run(capsys, *words(bench)).code == 0
    assert list(read_cache(bench / "clean.cache").entries) == ["conv2/Relu__0", "conv2_Relu_0"]
    assert "conv2:Relu_0" not in tensor_names(onnx.load(bench / "m.sanitized.onnx"))


def test_without_a_colon_the_model_stays_as_it_was(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *words(bench))
    again = ["--model", bench / "m.sanitized.onnx", "-o", bench / "again.cache", "--model-output", bench / "again.onnx"]
    said = run(capsys, "cache", "convert", bench / "clean.cache", "--to", "trt", "--sanitize-names", *again)
    assert (said.code, said.err) == (0, "")
    assert (bench / "again.onnx").read_bytes() == (bench / "m.sanitized.onnx").read_bytes()
    assert (bench / "again.cache").read_bytes() == (bench / "clean.cache").read_bytes()


def test_external_data_go_along(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(
        onnx.load(bench / "m.onnx"), bench / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (bench / "there").mkdir()
    assert run(capsys, *words(bench, "--model-output", bench / "there" / "n.onnx")).code == 0
    assert (bench / "there" / "w.bin").read_bytes() == (bench / "w.bin").read_bytes()
    assert outputs(bench / "there" / "n.onnx", NEW) == outputs(bench / "m.onnx", {})


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (lambda b: ["--model-output", b / "m.onnx"], ["never overwritten"]),
        (lambda b: ["--model-output", b / "m.cache"], ["never overwritten"]),
        (lambda b: ["--model-output", b / "m.cache.json"], ["never overwritten"]),
        (lambda b: ["-o", b / "m.onnx"], ["never overwritten"]),
        (lambda b: ["--model-output", b / "clean.cache"], ["is the name of the model and of the cache"]),
        (lambda b: ["--model-output", b / "clean.cache.json"], ["is the name of the model and of the cache"]),
        (lambda b: ["--model", b / "absent.onnx"], ["absent.onnx", "does not exist"]),
        (lambda b: ["--model", b / "m.cache"], ["not a model"]),
        (lambda b: ["--model-output", b / "nowhere" / "n.onnx"], ["nowhere", "folder"]),
    ],
)
def test_refusals_write_nothing(
    bench: Path, capsys: pytest.CaptureFixture[str], more: Callable[[Path], list[object]], parts: list[str]
) -> None:
    (bench / "m.cache.json").write_text('{"tool": "qdqtool", "schema": 1, "cache": {}}')
    before = contents(bench)
    refused(run(capsys, *words(bench, *more(bench))), *parts)
    assert contents(bench) == before


def test_a_model_with_its_table_is_to_be_peeled_first(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(bench / "m.onnx")
    store_table(model, ScaleTable())
    onnx.save(model, bench / "m.onnx")
    refused(run(capsys, *words(bench)), "m.onnx", "peel it first")
    assert not (bench / "clean.cache").exists()


@pytest.mark.parametrize(
    ("more", "part"),
    [(["--model", "m.onnx"], "--sanitize-names"), (["--sanitize-names", "--model-output", "n.onnx"], "add --model")],
)
def test_options_that_need_another(bench: Path, capsys: pytest.CaptureFixture[str], more: list[str], part: str) -> None:
    said = run(capsys, "cache", "convert", bench / "m.cache", "--to", "trt", "-o", bench / "o.cache", *more)
    refused(said, more[-2], part)
    assert not (bench / "o.cache").exists()
