# SPDX-License-Identifier: Apache-2.0
"""What every test shares: where the material beside the project lies, and a count of the tests that used it."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import settings

from tests.graphs import model_of

# The same examples on every machine, however slow; .ci/run asks for more of them.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=int(os.environ.get("QDQTOOL_EXAMPLES", "12"))
)
settings.load_profile("suite")

# As the command line does (qdqtool/__main__.py): thousands of tests and graphs that live to the end are looked through
# at every 700 new objects otherwise, which takes a tenth of the suite's CPU time.
gc.set_threshold(100_000, 50, 100)

# A shell that starts the suite in the background lets it ignore SIGINT, and so do the commands that tests interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """The folder with real models, caches and vectors, or None where it is not at hand."""
    folder = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    return folder if (folder / "corpus").is_dir() else None


def pytest_collection_finish() -> None:
    """What was collected lives to the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _freeze_what_lives_on() -> Iterator[None]:
    """What a file's tests leave in caches need not be looked at again either: conditioning collects garbage often."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _derived_values_hold() -> Iterator[None]:
    """Fails a test in which a model hands out an index, types or shapes of a graph that was edited since.

    By default the numbers of nodes and constants are compared; with QDQTOOL_CHECK_MODELS=1, which costs a sixth of the
    suite's time, every operator, tensor and constant.
    """
    from qdqtool.graph.model import Model

    state_of = hash_of_nodes if os.environ.get("QDQTOOL_CHECK_MODELS") == "1" else count_nodes
    derived, made_of = Model.derived, "made of"

    def checked(self: Model, make: Callable[[Model], Any]) -> Any:
        known = self._derived  # of a graph as it was when the first of them was made
        graph = state_of(self.proto.graph)
        if known.get(made_of, graph) != graph:
            raise AssertionError(f"{make.__name__}: the graph was edited, and Model.changed was not called")
        found = derived(self, make)
        known[made_of] = state_of(self.proto.graph)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "derived", checked)
        yield


def count_nodes(graph: onnx.GraphProto) -> int:
    """The numbers of nodes and initializers in one number."""
    return hash((len(graph.node), len(graph.initializer)))


def hash_of_nodes(graph: onnx.GraphProto) -> int:
    """Operators, their tensors and the initializers of a main graph in one number."""
    nodes = ((node.op_type, node.name, *node.input, "", *node.output) for node in graph.node)
    weights = ((tensor.name, tensor.data_type, *tensor.dims) for tensor in graph.initializer)
    return hash((*nodes, *weights))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder that QDQTOOL_SHARED names; skips the test where it is absent."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("no shared material: set QDQTOOL_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def _rtx_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rtx-results")


@pytest.fixture(autouse=True)
def _rtx_by_marker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _rtx_results: Path) -> None:
    """TensorRT for RTX serves the tests marked `rtx` alone, and no test reads or writes the user's cache."""
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(_rtx_results))
    if request.node.get_closest_marker("rtx") is None:
        monkeypatch.setenv("QDQTOOL_RTX_PYTHON", "none")
        return
    from qdqtool.tensorrt_rtx.installed import find_library

    if find_library() is None:
        pytest.skip("needs TensorRT for RTX: make rtx, or name a Python that has it in QDQTOOL_RTX_PYTHON")


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT and SIGTERM as in a terminal: a job in the background is started with some of them ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def text_model() -> Callable[..., onnx.ModelProto]:
    """A model from ONNX text; weights by shape alone (see graphs.py)."""
    return model_of


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of our own small models."""
    return PROJECT / "models"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests read the shared material."""
    passed = [r for r in terminalreporter.getreports("passed") if "shared" in r.keywords and r.when == "call"]
    skipped = [r for r in terminalreporter.getreports("skipped") if "shared" in getattr(r, "keywords", ())]
    where = shared_folder()
    terminalreporter.write_line(
        f"tests over shared material: {len(passed)} ran, {len(skipped)} skipped ({where or 'absent'})"
    )
