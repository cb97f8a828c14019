# SPDX-License-Identifier: Apache-2.0
"""Engines built on a CPU: what a log says of them, what options are refused, and the real compiler on small nets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine, build_opened
from tests.engine.test_built_layers import line
from tests.graphs import SMALL_NET, model_of
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving

MODEL = model_of(SMALL_NET)
BUILT: dict[str, Any] = {
    **ACCEPTED,
    "build": {"layers": line(), "shapes": {"x": [[1, 4, 8, 8]] * 3}, "engine_bytes": 7},
}
needs_script = pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path / "results"))


@needs_script
def test_an_engine_as_its_log_tells_it(tmp_path: Path) -> None:
    engine = build_opened(open_model(MODEL), RtxBuildOptions(), giving(tmp_path, BUILT))
    assert (engine.sm, engine.version, engine.engine_bytes) == (("89",), "1.7.1.116", 7)
    assert engine.products == {"INT8": 1} and engine.bytes_moved == 256 + 4096
    assert (engine.cpu_seconds, engine.peak_bytes) == (0.5, 1 << 27)
    assert engine.shapes == {"x": ((1, 4, 8, 8),) * 3}


@needs_script
def test_the_second_build_comes_from_the_cache_unless_something_changed(tmp_path: Path) -> None:
    child, opened = giving(tmp_path, BUILT), open_model(MODEL)
    first = build_opened(opened, RtxBuildOptions(), child)
    assert build_opened(opened, RtxBuildOptions(), child) == first
    build_opened(opened, RtxBuildOptions(sm=("120",)), child)
    build_opened(opened, RtxBuildOptions(shapes={"x": ((1, 4, 8, 8),) * 3}), child)
    build_opened(open_model(model_of(SMALL_NET, opset=13)), RtxBuildOptions(), child)
    assert len((tmp_path / "jobs").read_text().splitlines()) == 4


@needs_script
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            {
                **ACCEPTED,
                "accepted": False,
                "errors": [{"code": "INVALID_NODE", "text": "false", "node": "n", "operator": "Conv", "tensor": "t"}],
            },
            "is refused by the parser of TensorRT for RTX 1.7.1.116 at Conv n: false",
        ),
        (
            {**ACCEPTED, "build": {"failed": ["catchCudaError", "FP32 GEMM is not supported"], "shapes": {}}},
            "builds no engine for SM75: FP32 GEMM is not supported",
        ),
    ],
)
def test_what_is_not_built_writes_nothing(tmp_path: Path, result: object, expected: str) -> None:
    out = tmp_path / "out.engine"
    with pytest.raises(QdqError) as caught:
        options = RtxBuildOptions(sm=("75",), engine_path=out)
        build_opened(open_model(MODEL), options, giving(tmp_path, result))
    assert expected in caught.value.line() and not out.exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RtxBuildOptions(sm=()), "is not a list of compute capabilities"),
        (RtxBuildOptions(sm=("8.9",)), "is not a list of compute capabilities"),
        (RtxBuildOptions(shapes={"x": ((2, 3), (1, 3), (4, 3))}), "do not satisfy min <= opt <= max"),
        (RtxBuildOptions(shapes={"x": ((1, 3), (1, 3), (4,))}), "do not satisfy min <= opt <= max"),
        (RtxBuildOptions(shapes={"x": ((0, 3), (1, 3), (4, 3))}), "do not satisfy min <= opt <= max"),
    ],
)
def test_options_are_refused_before_anything_starts(options: RtxBuildOptions, expected: str) -> None:
    with pytest.raises(QdqError, match=expected):
        build_engine(MODEL, options)


@needs_script
@pytest.mark.parametrize("memory", [None, 1 << 33])
def test_the_child_is_told_its_memory_and_a_result_is_known_whatever_it_was(
    tmp_path: Path, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path / "results"))
    child = giving(tmp_path, {**ACCEPTED, "build": {"layers": "", "shapes": {}, "engine_bytes": 7}})
    build_opened(open_model(MODEL), RtxBuildOptions(memory_bytes=memory), child)
    build_opened(open_model(MODEL), RtxBuildOptions(), child)
    (job,) = (tmp_path / "jobs").read_text().splitlines()
    assert json.loads(job).get("memory") == memory


# The real compiler


@pytest.mark.rtx
def test_the_real_compiler_builds_a_small_net_in_int8(tmp_path: Path) -> None:
    source, out = tmp_path / "q.onnx", tmp_path / "q.engine"
    insert(MODEL, output=source)
    engine = build_engine(source, RtxBuildOptions(engine_path=out))
    assert engine.products == {"INT8": 3} and engine.shapes == {"x": ((1, 4, 8, 8),) * 3}
    assert out.stat().st_size == engine.engine_bytes > 1000
    assert engine.cpu_seconds > 0 and engine.peak_bytes > 1 << 20


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RtxBuildOptions(sm=("99",)), "SM99 is not known to this version, which builds for 120, 121, 75, 80"),
        (RtxBuildOptions(shapes={"z": ((1,), (1,), (1,))}), "has no input z; its inputs are x"),
        (RtxBuildOptions(shapes={"x": ((1, 4, 8, 9),) * 3}), "input x is ?x4x8x8, and the shape 1x4x8x9 does not fit"),
    ],
)
def test_the_real_library_refuses_options_in_one_line(options: RtxBuildOptions, expected: str) -> None:
    with pytest.raises(QdqError) as caught:
        build_engine(MODEL, options)
    assert expected in caught.value.line()


@pytest.mark.rtx
def test_a_computed_scale_that_crashes_the_library_is_one_line() -> None:
    model = model_of(
        """g (float[1,4,8,8] x, float[1,4,8,8] u) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4] v>
        { s = ReduceMax<keepdims = 0>(u)
          q = QuantizeLinear(x, s)
          d = DequantizeLinear(q, s)
          t = Abs(v)
          wq = QuantizeLinear<axis = 0>(w, t)
          wd = DequantizeLinear<axis = 0>(wq, t)
          y = Conv(d, wd) }"""
    )
    with pytest.raises(QdqError) as caught:
        build_engine(model)
    assert "SIGSEGV" in caught.value.line() and "built the engine" in caught.value.line()
