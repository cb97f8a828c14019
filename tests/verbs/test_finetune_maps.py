# SPDX-License-Identifier: Apache-2.0
"""A segmentation trained on class maps by one command, and judged by mean IoU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.main import main
from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.class_labels import with_class_labels
from qdqtool.training.losses.options import LossOptions
from qdqtool.verbs.evaluate import evaluate
from qdqtool.verbs.finetune import FinetuneOptions, finetune
from tests.graphs import model_of

NETS = {
    "softmax": """net (float[N,3,32,32] x) => (float[N,3,32,32] y) <float[8,3,3,3] a, float[3,8,3,3] b>
{ h = Conv<pads=[1,1,1,1]>(x, a)  r = Relu(h)  s = Conv<pads=[1,1,1,1]>(r, b)  y = Softmax<axis=1>(s) }""",
    "one channel": """net (float[N,3,32,32] x) => (float[N,1,16,16] y) <float[8,3,3,3] a, float[1,8,3,3] b>
{ h = Conv<pads=[1,1,1,1],strides=[2,2]>(x, a)  r = Relu(h)  s = Conv<pads=[1,1,1,1]>(r, b)  y = Sigmoid(s) }""",
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of a bright disc; the map says where it is, a border of it does not count."""
    folder = tmp_path_factory.mktemp("maps")
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:32, :32]
    pictures, maps = rng.uniform(0, 0.2, (12, 3, 32, 32)).astype(np.float32), np.zeros((12, 32, 32), np.uint8)
    for picture, classes in zip(pictures, maps, strict=True):
        x, y, kind = rng.uniform(8, 24), rng.uniform(8, 24), rng.integers(2)
        far = (across - x) ** 2 + (down - y) ** 2
        picture[kind, far < 49] += 0.8
        classes[far < 64], classes[far < 49] = 255, 1
    np.savez(folder / "d.npz", x=pictures)
    np.savez(folder / "maps.npz", masks=maps)
    np.savez(folder / "high.npz", masks=maps + np.uint8(3))
    np.savez(folder / "small.npz", masks=maps[:, ::2])
    for name, text in NETS.items():
        (folder / f"{name}.onnx").write_bytes(model_of(text).SerializeToString())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_one_command_trains_a_segmentation(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, labels, model = str(scenes / "d.npz"), str(scenes / "maps.npz"), scenes / f"{name}.onnx"
    words = ["finetune", str(model), "--data", data, "--labels", labels, "--eval-data", data, "--eval-labels", labels]
    words += ["--steps", "60", "--batch", "4", "--relative-lr", "0.5", "--log", str(tmp_path / "log.jsonl"), "--json"]
    assert main([*words, "-o", str(tmp_path / "t.onnx")]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    kinds = ("ce", "dice") if name == "softmax" else ("bce", "sigmoid-dice")
    assert set(next(line for line in lines if line["event"] == "step")["parts"]) == {f"y:{kind}" for kind in kinds}
    before, after = (evaluate(one, data, labels).value("miou") for one in (model, tmp_path / "t.onnx"))
    assert after > before + 0.1
    assert found["after"] == pytest.approx(1 - after, abs=1e-6)


def test_a_map_is_read_at_the_centers_of_the_outputs_places(scenes: Path) -> None:
    """The output is half as fine as the picture."""
    model = Model(model_of(NETS["one channel"]), "m")
    labeled = with_class_labels(model, scenes / "d.npz", scenes / "maps.npz", DataOptions(), LossOptions())
    wanted = np.load(scenes / "maps.npz")["masks"][:, 1::2, 1::2].astype(np.float32)
    wanted[wanted == 255] = -1
    found = np.concatenate([batch["y_label"] for batch in labeled.data()])
    assert np.array_equal(found[:, 0], wanted)
    assert labeled.loss.moving == ("y_label",)


@pytest.mark.parametrize(
    ("labels", "message"), [("high.npz", "has 3 scores, and there is a class"), ("small.npz", "hold a map of 32x16")]
)
def test_maps_that_do_not_fit_are_refused(scenes: Path, tmp_path: Path, labels: str, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        finetune(
            scenes / "softmax.onnx",
            scenes / "d.npz",
            FinetuneOptions(labels=scenes / labels),
            output=tmp_path / "m.onnx",
        )
    assert not list(tmp_path.iterdir())
