# SPDX-License-Identifier: Apache-2.0
"""Engines that run, on the stand-in for TensorRT: inputs, outputs, and what cannot be loaded or fed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qdqtool.building.run_engine import open_engine
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.build import build
from qdqtool.verbs.build_options import BuildOptions, parse_shape_ranges
from tests.fake_tensorrt import Behavior, Fake, installed
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime computes for the stand-in")

NET = """g (float[N, 3, 4, 4] x) => (float[N, 2, 4, 4] y, float[N, 3, 1, 1] z) <float[2, 3, 1, 1] w>
{ y = Conv(x, w)  z = GlobalAveragePool(x) }"""


@pytest.fixture
def fake() -> Iterator[Fake]:
    with installed("10.13.3.9") as one:
        yield one


def built(folder: Path) -> Path:
    model = folder / "m.onnx"
    model.write_bytes(model_of(NET, 13).SerializeToString())
    shapes = parse_shape_ranges("x:1x3x4x4:2x3x4x4:4x3x4x4")
    build(model, folder / "m.engine", BuildOptions(shapes=shapes))
    return folder / "m.engine"


def test_an_engine_gives_what_its_model_gives(fake: Fake, tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path))
    feed = {"x": np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)}
    assert [(one.name, one.shape, one.dtype) for one in engine.inputs] == [("x", (None, 3, 4, 4), np.float32)]
    assert engine.version == "10.13.3.9"
    wanted = Executor(Model(model_of(NET, 13))).run(feed)
    for _ in range(2):
        found = engine.run(feed)
        assert list(found) == ["y", "z"]
        assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
    assert engine.last_seconds > 0
    engine.close()


def test_a_batch_that_does_not_fit(fake: Fake, tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path))
    with pytest.raises(QdqError, match="this batch"):
        engine.run({"x": np.zeros((1, 3, 5, 5), np.float32)})


@pytest.mark.parametrize("data", [b"", b"no engine of this TensorRT"])
def test_what_is_no_engine(data: bytes, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "m.engine").write_bytes(data)
    with pytest.raises(QdqError, match=r"TensorRT 10\.13\.3\.9 .*was built"):
        open_engine(tmp_path / "m.engine")


def test_an_engine_of_another_machine(tmp_path: Path) -> None:
    with installed("10.13.3.9", Behavior(loads=False)), pytest.raises(QdqError, match="cannot load it"):
        open_engine(built(tmp_path))


def test_a_missing_file(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="cannot be read"):
        open_engine(tmp_path / "m.engine")


def test_no_tensorrt(tmp_path: Path) -> None:
    (tmp_path / "m.engine").write_bytes(b"x")
    with pytest.raises(MissingPackageError, match="tensorrt"):
        open_engine(tmp_path / "m.engine")


def test_a_largest_batch_makes_a_range_of_shapes(fake: Fake, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(model_of(NET, 13).SerializeToString())
    build(model, tmp_path / "m.engine", BuildOptions(max_batch=4))
    assert fake.config.profiles[0].get_shape("x") == [(1, 3, 4, 4), (4, 3, 4, 4), (4, 3, 4, 4)]
    model.write_bytes(model_of(NET.replace("N", "1"), 13).SerializeToString())
    with pytest.raises(QdqError, match="--max-batch: "):
        build(model, tmp_path / "n.engine", BuildOptions(max_batch=4))
