# SPDX-License-Identifier: Apache-2.0
"""`bench` as a function and as it is typed: rows, labels, inputs that are generated, refusals. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.timing.options import Timing
from qdqtool.timing.subjects import made_up_feed, open_onnx
from qdqtool.verbs.amp import amp
from qdqtool.verbs.bench import bench
from qdqtool.verbs.bench_options import BenchOptions
from qdqtool.verbs.build import build
from qdqtool.verbs.build_options import BuildOptions, parse_shape_ranges
from qdqtool.verbs.insert import insert
from tests.cli.command import refused, run, write_net
from tests.fake_tensorrt import installed
from tests.graphs import SMALL_NET, model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

FEW = Timing(runs=3, warm_up=0)
OPEN = "g (float[N, 3, H, 4] x, int64[2] i) => (float[N, 3, H, 4] y) { y = Relu(x) }"
FREE = "g (float[N, 3, 4, 4] x) => (float[N, 3, 4, 4] y) { y = Relu(x) }"
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    insert(tmp_path / "m.onnx", output=tmp_path / "q.onnx")
    return tmp_path


def test_models_side_by_side(folder: Path) -> None:
    typed = amp(model_of(SMALL_NET), [{"x": np.ones((1, 4, 8, 8), np.float32)}]).model
    said: list[str] = []
    options = BenchOptions(threads=1, timing=FEW)
    found = bench([folder / "m.onnx", folder / "q.onnx", typed], options, said.append)
    assert [(one.model, one.kind, one.batch, one.latency.runs) for one in found.runs] == [
        (0, "FP32", found.runs[0].batch, 3),
        (1, "INT8 (Q/DQ)", found.runs[0].batch, 3),
        (2, "FP16", found.runs[0].batch, 3),
    ]
    assert all(one.runner.startswith("onnxruntime ") and one.runner.endswith("cpu, 1 thread") for one in found.runs)
    assert found.rows()[1][-1] == "1.00x" and len(said) == 1
    assert "is not TensorRT" in found.summary()[-1] and "available" in found.machine


def test_batches_and_what_the_model_fixes(tmp_path: Path) -> None:
    model = model_of(FREE)
    found = bench(model, BenchOptions((1, 4), timing=FEW))
    assert [one.batch for one in found.runs] == [1, 4]
    fixed = model_of(FREE.replace("N", "2"))
    assert [one.batch for one in bench(fixed, BenchOptions(timing=FEW)).runs] == [2]
    with pytest.raises(QdqError, match=r"--batch: 4 cannot be: 'x' of .* takes \[2, 3, 4, 4\]; give --batch 2"):
        bench(fixed, BenchOptions((4,), timing=FEW))


def test_open_sides_want_shapes() -> None:
    model = model_of(OPEN)
    with pytest.raises(QdqError, match=r"--shapes x:1x3x224x4"):
        bench(model, BenchOptions(timing=FEW))
    subject = open_onnx(model, "cpu", 1)
    feed = made_up_feed(subject, 2, {"x": (2, 3, 6, 4)})
    assert feed["x"].shape == (2, 3, 6, 4) and feed["x"].dtype == np.float32
    assert set(feed["i"].tolist()) <= {0, 1}
    again = made_up_feed(subject, 2, {"x": (2, 3, 6, 4)})
    assert all(again[name].tobytes() == feed[name].tobytes() for name in feed)
    with pytest.raises(QdqError, match="takes"):
        made_up_feed(subject, 2, {"x": (2, 4, 6, 4)})


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"batches": (0,)}, "--batch"),
        ({"threads": 0}, "--threads"),
        ({"provider": "tpu"}, "--provider"),
        ({"timing": Timing(runs=0)}, "--runs"),
        ({"timing": Timing(seconds=0)}, "--seconds"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], part: str) -> None:
    with pytest.raises(QdqError, match=part):
        BenchOptions(**options)  # type: ignore[arg-type]


def test_engines_run_where_tensorrt_is(folder: Path) -> None:
    model = model_of(FREE)
    onnx.save(model, folder / "free.onnx")
    with installed("10.13.3.9"):
        build(
            folder / "free.onnx",
            folder / "m.plan",
            BuildOptions(shapes=parse_shape_ranges("x:1x3x4x4:2x3x4x4:4x3x4x4")),
        )
        found = bench([folder / "m.plan", folder / "free.onnx"], BenchOptions((2,), timing=FEW))
    assert [one.kind for one in found.runs] == ["engine", "FP32"]
    assert found.runs[0].runner.startswith("TensorRT 10.13.3.9 by Polygraphy")
    assert "is not TensorRT" in found.how and "by TensorRT" in found.how


def test_as_it_is_typed(folder: Path, capsys: Capsys) -> None:
    words = ("bench", folder / "m.onnx", folder / "q.onnx", "--runs", "2", "--warm-up", "0", "--threads", "1")
    said = run(capsys, *words)
    assert said.code == 0 and said.err.startswith("qdqtool: bench: batch ")
    assert said.out.splitlines()[0].split()[:4] == ["model", "types", "batch", "runs"]
    found = json.loads(run(capsys, *words, "--json").out)
    assert set(found["runs"][0]["latency_ms"]) == {"mean", "p50", "p90", "p95", "p99", "least", "most"}
    assert found["runs"][1]["types"] == "INT8 (Q/DQ)" and found["runs"][1]["model"] == 1


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--batch", "1,x"], ["argument --batch: '1,x' is not batch sizes"]),
        (["--batch", "0"], ["--batch: 0 is not a number of samples"]),
        (["--shapes", "x:1x1:2x2:3x3"], ["gives a range for 'x'"]),
        (["--shapes", "x:1x9x8x8"], ["--shapes", "takes"]),
    ],
)
def test_refusals(words: list[str], parts: list[str], folder: Path, capsys: Capsys) -> None:
    refused(run(capsys, "bench", folder / "m.onnx", *words, "-q"), *parts)


def test_no_model_and_a_broken_one(tmp_path: Path, capsys: Capsys) -> None:
    refused(run(capsys, "bench"), "required: MODEL")
    (tmp_path / "m.onnx").write_bytes(b"x")
    refused(run(capsys, "bench", tmp_path / "m.onnx"), "m.onnx")
    with pytest.raises(QdqError, match="bench: no model"):
        bench([])


def test_a_batch_that_one_model_does_not_take_is_refused_before_a_word_is_said() -> None:
    said: list[str] = []
    with pytest.raises(QdqError, match="--batch: 4 cannot be"):
        bench([model_of(FREE), model_of(FREE.replace("N", "1"))], BenchOptions((1, 4), timing=FEW), said.append)
    bad = "g (float[1, 4] x, int64[1] s) => (float[N] y) { y = Reshape(x, s) }"
    with pytest.raises(QdqError, match="cannot run it"):
        bench(model_of(bad), BenchOptions(timing=FEW), said.append)
    assert said == []
