# SPDX-License-Identifier: Apache-2.0
"""`--provider cuda` on a real GPU: float32 is float32, Q/DQ rounds as on the CPU, a second run gives the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.main import main
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.providers import provider_names
from tests.graphs import model_of

pytestmark = pytest.mark.gpu
pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
MODELS = Path(__file__).resolve().parents[2] / "models"
CONV = "g (float[1,64,8,8] x, float[16,64,3,3] w) => (float[1,16,6,6] y) { y = Conv(x, w) }"
PAIR = """g (float[N] x) => (int8[N] q, float[N] y) <float s = {0.5}, int8 z = {0}>
{ q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""
FAR = 1e-4  # of a scale: sums in another order, and an amax that search moves by one of its steps


@pytest.fixture(autouse=True)
def _gpu() -> None:
    try:
        provider_names(load_onnxruntime(), "cuda")
    except QdqError as error:
        pytest.skip(error.line())


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_products_keep_what_tf32_drops(provider: str) -> None:
    """1 + 2**-12 is 1 in TF32; float32 adds 64 of it exactly."""
    value = np.float32(1 + 2**-12)
    net = "g (float[1,64] a, float[64,8] b) => (float[1,8] y) { y = MatMul(a, b) }"
    product = Executor(Model(model_of(net)), provider=provider)
    feed = {"a": np.full((1, 64), value), "b": np.ones((64, 8), np.float32)}
    assert set(product.run(feed)["y"].ravel().tolist()) == {64 + 2**-6}
    pixels = {"x": np.full((1, 64, 8, 8), value), "w": np.zeros((16, 64, 3, 3), np.float32)}
    pixels["w"][:, :, 1, 1] = 1
    found = Executor(Model(model_of(CONV)), provider=provider).run(pixels)["y"]
    assert np.abs(found - (64 + 2**-6)).max() < 1e-4, "transforms of a Winograd kernel round, TF32 is .016 away"


def test_convolutions_repeat_themselves() -> None:
    draw = np.random.default_rng(3)
    shapes = {"x": (1, 64, 8, 8), "w": (16, 64, 3, 3)}
    feed = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found = [Executor(Model(model_of(CONV)), provider="cuda").run(feed)["y"].tobytes() for _ in range(4)]
    assert len(set(found)) == 1


def test_quantizing_rounds_and_saturates_as_on_the_cpu() -> None:
    x = np.concatenate([np.arange(-70, 70, 0.25), [1e9, -1e9, 0.0, -0.0]]).astype(np.float32)
    codes = [Executor(Model(model_of(PAIR)), provider=provider).run({"x": x}) for provider in ("cpu", "cuda")]
    assert codes[0]["q"].tobytes() == codes[1]["q"].tobytes() and codes[0]["y"].tobytes() == codes[1]["y"].tobytes()


def test_scales_repeat_and_lie_beside_those_of_the_cpu(tmp_path: Path) -> None:
    model, data = str(MODELS / "tiny_classifier.onnx"), str(MODELS / "digits8_calib.npz")
    for name, words in {"cpu": ["cpu"], "cuda": ["cuda"], "again": ["cuda", "--workers", "4"]}.items():
        out = str(tmp_path / name)
        assert main(["calibrate", model, "--data", data, "--method", "max", "-o", out, "-q", "--provider", *words]) == 0
    assert (tmp_path / "cuda").read_bytes() == (tmp_path / "again").read_bytes()
    tables = [json.loads((tmp_path / name).read_text())["tensors"] for name in ("cpu", "cuda")]
    assert tables[0].keys() == tables[1].keys()
    scales = [np.array([one["value"] for one in table.values()]) for table in tables]
    assert np.abs(scales[0] / scales[1] - 1).max() < FAR
