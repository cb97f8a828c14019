# SPDX-License-Identifier: Apache-2.0
"""What every back end of `ptq` keeps to: the embedded one, the stand-in, NVIDIA's bindings in a rig, TensorRT."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.amax.trt_entropy import EntropyHistogram
from qdqtool.calibration.tensorrt.backend import Backend, Request
from qdqtool.calibration.tensorrt.calibrator import TensorrtBackend
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.verbs.ptq import EmbeddedBackend
from tests.calibration.tensorrt.backend_subjects import NET, SCENARIOS, Outcome, batches, model, outcome
from tests.fake_tensorrt import installed
from tests.ort_session import session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

FLOATS = ["x", "c1", "r1", "c2", "f", "y"]
ORDER = ["get_algorithm", "get_batch_size", "read_calibration_cache", *["get_batch"] * 4, "write_calibration_cache"]
HERE, PROJECT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[3]
Run = Callable[[str], Outcome]


@functools.cache
def faked(version: str, cuda: str, name: str) -> Outcome:
    with installed(version) as fake:
        found = outcome(TensorrtBackend(cuda=cuda), name)
        assert fake.cuda.alive == {}, "every device buffer is given back"
    return found


@functools.cache
def embedded(name: str) -> Outcome:
    return outcome(EmbeddedBackend(), name)


@functools.cache
def rig_facts(shared: Path, major: str) -> dict[str, Any]:
    """What NVIDIA's bindings of a major version said, in one process for all tests."""
    folder = os.environ.get("QDQTOOL_TRT_RIG")
    if not folder:
        pytest.skip("no rig: make rig, then set QDQTOOL_TRT_RIG to its folder")
    run = Path(folder, major, "run").absolute()
    if not run.is_file():
        pytest.skip(f"the rig has no TensorRT {major} ({run})")
    paths = [PROJECT, PROJECT / "tests", HERE, shared / "trt_rig"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [run, "python", HERE / "rig_process.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def real_tensorrt() -> str:
    """Why there is no real TensorRT with a GPU to run on, "" where there is."""
    try:
        import tensorrt
    except ImportError as error:
        return f"tensorrt cannot be imported ({error})"
    if not hasattr(tensorrt, "IInt8EntropyCalibrator2"):
        return f"TensorRT {tensorrt.__version__} has no calibrators"
    try:
        tensorrt.Builder(tensorrt.Logger())
    except Exception as error:
        return f"TensorRT {tensorrt.__version__} starts no builder, so there is no GPU ({error})"
    return ""


@functools.cache
def on_gpu(name: str) -> Outcome:
    return outcome(TensorrtBackend(), name)


SUBJECTS = [
    "embedded",
    "fake 8.6.1 cudart",
    "fake 10.13.3.9 cudart",
    "fake 10.13.3.9 pycuda",
    pytest.param("rig", marks=pytest.mark.shared),
    pytest.param("gpu", marks=pytest.mark.gpu),
]


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(subject: str, request: pytest.FixtureRequest) -> Run:
    kind, *words = subject.split()
    if kind == "embedded":
        return embedded
    if kind == "fake":
        return functools.partial(faked, *words)
    if kind == "gpu":
        if reason := real_tensorrt():
            pytest.skip(reason)
        return on_gpu
    outcomes: dict[str, Outcome] = rig_facts(request.getfixturevalue("shared"), "10")["outcomes"]
    return outcomes.__getitem__


@functools.cache
def observed(name: str) -> dict[str, list[np.ndarray]]:
    """Every float tensor of every batch, by onnxruntime with no help of ours."""
    scenario = SCENARIOS[name]
    whole = model(scenario.text)
    known = {value.name for value in whole.graph.output}
    made = [node.output[0] for node in whole.graph.node if node.output[0] not in known]
    whole.graph.output.extend(onnx.ValueInfoProto(name=tensor) for tensor in made)
    session = session_of(whole)
    names = [value.name for value in session.get_outputs()]
    found: dict[str, list[np.ndarray]] = {}
    for batch in scenario.batches():
        for tensor, array in [*batch.items(), *zip(names, session.run(names, batch), strict=True)]:
            if array.dtype == np.float32:
                found.setdefault(tensor, []).append(array)
    return found


def expected(name: str) -> dict[str, int]:
    """The bits that TensorRT's search (or the largest value) gives each tensor."""
    bits = {}
    for tensor, arrays in observed(name).items():
        histogram = EntropyHistogram()
        for array in arrays:
            histogram.add(array)
        largest = np.float32(max(np.abs(array).max() for array in arrays))
        amax = largest if SCENARIOS[name].method == "max" else histogram.search()
        if amax is not None:
            bits[tensor] = int((amax / np.float32(127)).view(np.uint32))
    return bits


# ---------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("name", ["plain", "turned", "one batch", "max", "indexed"])
def test_every_float_tensor_has_the_scale_of_its_batches_in_order(run: Run, subject: str, name: str) -> None:
    found = run(name)
    assert found["error"] == "", found
    wanted = expected(name)
    assert set(found["scales"]) == set(wanted) and found["unscaled"] == {}
    apart = {tensor: abs(int(found["scales"][tensor], 16) - bits) for tensor, bits in wanted.items()}
    # Sums are exact here; a GPU may still compute a convolution by a transform that rounds.
    assert max(apart.values()) <= (1 if subject == "gpu" else 0), apart


def test_tensors_come_in_the_order_of_the_graph_with_what_was_done(run: Run) -> None:
    found = run("plain")
    assert list(found["scales"]) == FLOATS
    assert (found["samples"], found["method"], found["walked"]) == (6, "entropy", 3)
    assert [tuple(one) for one in found["each"]] == [("ptq", "entropy", 6)]
    assert found["model_unchanged"]


def test_the_same_run_gives_the_same_and_another_order_does_not(run: Run) -> None:
    assert run("again")["scales"] == run("plain")["scales"]
    assert run("turned")["scales"]["x"] != run("plain")["scales"]["x"]


def test_a_tensor_of_zeros_has_no_scale_and_is_named(run: Run) -> None:
    found = run("zero")
    assert list(found["scales"]) == ["x", "y"] and list(found["unscaled"]) == ["o"]
    assert "zero" in found["unscaled"]["o"]


# ---------------------------------------------------------------------------------------------------- refusals


def test_no_batches_is_an_error(run: Run) -> None:
    found = run("no batches")
    assert found["error"] == "QdqError" and "no samples" in found["line"]


def test_a_method_that_there_is_not_is_refused_before_any_data_is_read(run: Run) -> None:
    found = run("no such method")
    assert found["error"] == "QdqError" and "entropie" in found["line"] and found["walked"] == 0


def test_what_a_loader_raises_comes_out_as_it_was(run: Run) -> None:
    found = run("a loader that raises")
    assert (found["error"], found["line"]) == ("LoaderError", "the disk is gone")


@pytest.mark.parametrize("name", ["another shape", "a missing input", "NaN"])
def test_a_bad_batch_is_an_error_and_never_the_end_of_the_data(run: Run, name: str) -> None:
    found = run(name)
    assert found["error"] == "QdqError", found
    assert found["walked"] == {"another shape": 3, "a missing input": 3, "NaN": 2}[name]


# ---------------------------------------------------------------------------------------------------- TensorRT's side


@pytest.mark.parametrize("name", ["plain", "max"])
def test_tensorrts_cache_is_kept_as_it_was_written(run: Run, subject: str, name: str) -> None:
    found = run(name)
    if subject == "embedded":
        assert found["written"] == "", "it writes none"
        return
    header, *lines = found["written"].splitlines()
    assert header.startswith("TRT-") and header.endswith(
        "MinMaxCalibration" if name == "max" else "EntropyCalibration2"
    )
    written = dict(line.rsplit(": ", 1) for line in lines)
    assert found["scales"] == {tensor: written[tensor] for tensor in found["scales"]}


@pytest.mark.parametrize("version", ["8.6.1", "10.13.3.9"])
def test_the_stand_in_calls_in_tensorrts_order(version: str) -> None:
    with installed(version) as fake:
        TensorrtBackend().calibrate(Request(Model(model(NET))), batches())
    assert fake.calls == [*ORDER, "read_calibration_cache"]


@pytest.mark.shared
def test_nvidias_bindings_call_and_feed_our_calibrator_through_their_virtual_table(shared: Path) -> None:
    found = rig_facts(shared, "10")
    assert found["calls"] == [*ORDER, "read_calibration_cache"] and found["fed_as_given"]
    assert found["outcomes"]["plain"]["scales"] == embedded("plain")["scales"]


@pytest.mark.shared
def test_bindings_without_a_gpu_are_reported_in_one_line(shared: Path) -> None:
    code, line = rig_facts(shared, "10")["alone"]
    assert code == 2 and "builder" in line and "\n" not in line


@pytest.mark.shared
def test_bindings_of_tensorrt_11_are_refused_with_the_pip_line(shared: Path) -> None:
    found = rig_facts(shared, "11")
    code, line = found["alone"]
    assert found["version"].startswith("11.") and code == 3
    assert "has no INT8 calibrators" in line and "tensorrt>=8.5,<11" in line and "qdqtool insert" in line


def test_both_back_ends_keep_the_protocol() -> None:
    backends: list[Backend] = [EmbeddedBackend(), TensorrtBackend()]
    assert [one.name for one in backends] == ["embedded", "tensorrt"]
    with pytest.raises(QdqError):
        EmbeddedBackend().check(Request(Model(model(NET)), method="entropie"))
    EmbeddedBackend().check(Request(Model(model(NET)), method="percentile=99.9"))
