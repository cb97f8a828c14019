# SPDX-License-Identifier: Apache-2.0
"""Without the C kernel several processes count: the same histograms, faults and signals handled, none left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.errors import QdqError
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.amax import kernel
from qdqtool.data.json_inputs import JsonInputs, write_json_inputs
from qdqtool.data.loader import DataLoader, DataOptions, inputs_of, open_feed
from qdqtool.observers.collect import count_batches
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.state_file import State, read_state, state_to_bytes

PROTO = model_of("net (float[N,3,4,4] x) => (float[N,3,4,4] y) { r = Relu(x)  y = Sigmoid(r) }")
DATA = np.random.default_rng(1).normal(size=(10, 3, 4, 4)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("heard")


@pytest.fixture(autouse=True)
def numpy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no compiler was, here and in the processes that are started."""
    monkeypatch.setenv("QDQTOOL_KERNEL", "numpy")
    monkeypatch.setattr(kernel, "in_use", lambda: "numpy")


def counted(feed: Any, **options: Any) -> State:
    return count_batches(PROTO, None, feed, CalibrationOptions(**{"progress": False, **options}))


def opened(folder: Path, data: np.ndarray = DATA, **options: Any) -> DataLoader:
    np.savez(folder / "d.npz", x=data)
    return open_feed(folder / "d.npz", inputs_of(PROTO.graph), DataOptions(**options))


def same(a: State, b: State) -> bool:
    """Whether two states are equal, digests apart: they are made only where a checkpoint is."""
    return state_to_bytes(a) == state_to_bytes(replace(b, identity=a.identity))


def test_two_processes_count_what_one_does(tmp_path: Path) -> None:
    together = counted(opened(tmp_path, batch=3), workers=2)
    assert same(together, counted(opened(tmp_path, batch=3)))
    assert together.observation.samples == 10


def test_json_inputs_and_scripts_go_along(tmp_path: Path) -> None:
    write_json_inputs(tmp_path / "d.json", [{"x": row[None]} for row in DATA])
    feed = open_feed(JsonInputs((tmp_path / "d.json",)), inputs_of(PROTO.graph))
    assert same(counted(feed, workers=2), counted(feed))
    script = tmp_path / "d.py"
    script.write_text(
        "import numpy as np\nprint('loading')\ndef load_data():\n"
        "    for k in range(5):\n        print('said on stdout')\n        yield {'x': np.full((1, 3, 4, 4), k, 'f')}\n"
    )
    feed = open_feed(script, inputs_of(PROTO.graph))
    assert same(counted(feed, workers=2), counted(feed))


def test_a_fault_is_told_as_it_is(tmp_path: Path) -> None:
    bad = DATA.copy()
    bad[7, 0, 0, 0] = np.inf
    with pytest.raises(QdqError, match=r"d\.npz: input 'x' holds Inf; leave such samples out"):
        counted(opened(tmp_path, bad), workers=2)


def test_a_process_that_dies_is_told(tmp_path: Path) -> None:
    script = tmp_path / "d.py"
    script.write_text("import os\ndef load_data():\n    os._exit(7)\n    yield {}\n")
    with pytest.raises(QdqError, match="a worker process ended with 7; use --workers 1 to see why"):
        counted(open_feed(script, inputs_of(PROTO.graph)), workers=2)


def test_data_of_this_process_alone_is_counted_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"x": row[None]} for row in DATA]
    assert same(counted(rows, workers=2, progress=None), counted(rows))
    assert "one worker counts: the C kernel is missing" in capsys.readouterr().err


def slow(folder: Path) -> DataLoader:
    script = folder / "d.py"
    script.write_text(
        "import time\nimport numpy as np\ndef load_data():\n"
        "    for k in range(40):\n        time.sleep(.05)\n        yield {'x': np.full((1, 3, 4, 4), k - 3, 'f')}\n"
    )
    return open_feed(script, inputs_of(PROTO.graph))


@pytest.mark.slow
def test_a_signal_leaves_a_checkpoint_that_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "c"

    def interrupt() -> None:
        while not path.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match="--resume"):
        counted(slow(tmp_path), workers=2, checkpoint=path)
    assert 1 <= len(read_state(path).observation.done) < 40
    resumed = counted(slow(tmp_path), workers=3, checkpoint=path, resume=True)
    assert same(resumed, counted(slow(tmp_path)))
