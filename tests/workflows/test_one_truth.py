# SPDX-License-Identifier: Apache-2.0
"""One number for one loss: verbs count the same operators of one file and name the same loss in the same words."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.data.loader import DataOptions
from qdqtool.display import counted, four_decimals
from qdqtool.evaluation import loss_scale
from qdqtool.evaluation.tasks import TaskOptions
from qdqtool.graph.io import open_model
from qdqtool.verbs.target_model import target_model
from qdqtool.workflows.judge import Judge
from tests.cli.command import run
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
Capsys = pytest.CaptureFixture[str]
MODELS = Path(__file__).resolve().parents[2] / "models"


def facts_of(capsys: Capsys, *words: object) -> dict[str, Any]:
    said = run(capsys, *words, "--json", "-q")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def int8_products(layers: list[dict[str, Any]]) -> int:
    """How many convolutions and matrix products among the layers multiply in INT8."""
    return sum(layer["compute"] == "int8" and layer["kind"] in ("convolution", "product") for layer in layers)


@pytest.mark.parametrize("method", ["mse", "percentile=80"])
def test_all_verbs_say_the_same_of_one_file(capsys: Capsys, tmp_path: Path, method: str) -> None:
    plain, written, data = MODELS / "tiny_classifier.onnx", tmp_path / "q.onnx", tmp_path / "d.npz"
    np.savez(data, x=np.load(MODELS / "digits8_calib.npz")["images"][:8])
    how = ("--data", data, "--method", method, "--keep-float", "0", "-o", written)
    inserted = facts_of(capsys, "insert", plain, *how)
    evaluated = facts_of(capsys, "evaluate", written, "--baseline", plain, "--data", data)
    lost = evaluated["losses"]
    assert inserted["loss"]["metric"] == "nearness" and inserted["loss"]["samples"] == evaluated["samples"] == 8
    assert inserted["loss"]["value"] == pytest.approx(lost["nearness"]["value"], abs=1e-12)
    assert inserted["loss_word"] == evaluated["loss_word"] == ("little" if method == "mse" else "much")

    judge = Judge(open_model(plain), (data, DataOptions()), TaskOptions(), lambda _: None)  # of deploy and improve
    judged = judge.judgment(target_model(written))
    assert judge.reference.value - judged.figure.value == lost["agreement1"]["value"]
    assert judged.change == pytest.approx(lost["nearness"]["value"], abs=1e-6)
    assert judge.word(judged) == evaluated["loss_word"]
    figure = judge.loss(target_model(written))
    assert (figure.interval.low, figure.interval.high) == (lost["agreement1"]["low"], lost["agreement1"]["high"])

    reported = facts_of(capsys, "report", written, "--model", plain, "--data", data, "-o", tmp_path / "r.html")
    linted = facts_of(capsys, "lint", written)
    weights = sum(point["role"] == "weight" for point in inserted["points"])
    verdict = reported["verdict"]
    assert verdict.startswith(f"{weights} of {weights} convolutions")
    assert int8_products(facts_of(capsys, "engine", "show", written, "--predicted")["predicted"]) == weights
    assert f" loss {four_decimals(lost['agreement1']['value'])} (95 %: " in verdict
    assert ", ".join(counted(number, kind) for kind, number in linted["counts"].items() if number) in verdict


@pytest.mark.slow
def test_deploy_says_the_same_of_the_file_that_it_writes(capsys: Capsys, tmp_path: Path) -> None:
    plain, chosen_by, separate = MODELS / "tiny_classifier.onnx", tmp_path / "c.npz", tmp_path / "e.npz"
    images = np.load(MODELS / "digits8_calib.npz")["images"]
    np.savez(chosen_by, x=images[:-16])
    np.savez(separate, x=images[-16:])
    how = ("--data", chosen_by, "--eval-data", separate, "--for", "8.6.1", "--effort", "fast")
    deployed = facts_of(capsys, "deploy", plain, *how, "-o", tmp_path / "out")
    written = tmp_path / "out" / "tiny_classifier.int8.onnx"
    evaluated = facts_of(capsys, "evaluate", written, "--baseline", plain, "--data", separate)
    assert deployed["loss"] == evaluated["losses"]["agreement1"] and deployed["samples"]["report"] == 16
    assert deployed["loss_word"] == evaluated["loss_word"]

    shown = facts_of(capsys, "engine", "show", written, "--predicted", "--trt-version", "8.6.1")["predicted"]
    (kept,) = [one for one in deployed["candidates"] if one["name"] == deployed["kept"]]
    assert kept["cost"]["layers"] == len(shown)
    int8 = int8_products(shown)
    page = ("--model", plain, "--data", separate, "--trt-version", "8.6.1", "-o", tmp_path / "r.html")
    verdict = facts_of(capsys, "report", written, *page)["verdict"]
    assert verdict.startswith(f"{int8} of {int8 + len(deployed['in_float'])} convolutions")
    assert f"loss {four_decimals(deployed['loss']['value'])} (95 %: " in verdict
    linted = facts_of(capsys, "lint", written, "--trt-version", "8.6.1")["counts"]
    assert ", ".join(counted(number, kind) for kind, number in linted.items() if number) in verdict


def test_outputs_that_nothing_reads_have_one_loss(capsys: Capsys, tmp_path: Path) -> None:
    """The loss at the outputs that `insert` prints (of four samples) is what `deploy` chooses by."""
    body = "h = MatMul(x, a) r = Relu(h) y = MatMul(r, b)"
    model = model_of(f"g (float[N,6,16] x) => (float[N,6,8] y) <float[16,16] a, float[16,8] b> {{ {body} }}")
    plain, written, data = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "d.npz"
    onnx.save(model, plain)
    np.savez(data, x=np.random.default_rng(0).standard_normal((4, 6, 16)).astype(np.float32))
    for method in ("mse", "percentile=80"):
        how = ("--data", data, "--method", method, "--keep-float", "0", "-o", written)
        inserted = facts_of(capsys, "insert", plain, *how)
        judge = Judge(open_model(plain), (data, DataOptions()), TaskOptions(), lambda _: None)
        judged = judge.judgment(target_model(written))
        assert judge.reference.value - judged.figure.value == pytest.approx(inserted["output_loss"], abs=1e-9)
        assert judge.word(judged) == inserted["loss_word"]


@pytest.mark.parametrize(
    ("shape", "verbs"), [("float[N,16]", ("evaluate", "evaluate")), ("float[N,6,16]", ("compare", "simulate"))]
)
def test_the_printed_measurement_fits_the_model_and_runs(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, verbs: tuple[str, str]
) -> None:
    """A classifier of vectors has no images and is judged all the same; features of six steps are read by nothing."""
    for metric in ("nearness", "outputs"):
        monkeypatch.setitem(loss_scale.WITHOUT_LABELS, metric, loss_scale.LossScale(0.0, 2.0))
    out = shape.replace("16", "8")
    body = "h = MatMul(x, a) r = Relu(h) y = MatMul(r, b)"
    model = model_of(f"g ({shape} x) => ({out} y) <float[16,16] a, float[16,8] b> {{ {body} }}")
    onnx.save(model, tmp_path / "m.onnx")
    sizes = [8 if size == "N" else int(size) for size in shape[6:-1].split(",")]
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).standard_normal(sizes).astype(np.float32))
    data = ("--data", tmp_path / "d.npz")
    inserted = run(capsys, "insert", tmp_path / "m.onnx", *data, "-o", tmp_path / "q.onnx")
    cached = run(capsys, "ptq", tmp_path / "m.onnx", *data, "--target", "gpu", "--trt-version", "8.6.1")
    for said, verb in zip((inserted, cached), verbs, strict=True):
        assert said.code == 0 and loss_scale.WORDS["some"] in said.out, said.err
        (line,) = [line for line in said.out.splitlines() if line.startswith("to measure it, with samples ")]
        words = [str(data[1]) if word == "TEST" else word for word in shlex.split(line.split(": qdqtool ")[1])]
        assert words[0] == verb
        again = run(capsys, *words)
        assert again.code == 0, again.err
