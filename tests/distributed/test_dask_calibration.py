# SPDX-License-Identifier: Apache-2.0
"""A calibration on Dask: the bytes of a serial run, whatever dies on the way; and what is said where it cannot be."""

from __future__ import annotations

import builtins
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.calibration.engine import CalibrationOptions, calibrate
from qdqtool.cli.main import main
from qdqtool.data.json_inputs import JsonInputs
from qdqtool.data.loader import DataOptions
from qdqtool.distributed import dask_calibration, dask_cluster, shard_job
from qdqtool.distributed.dask_calibration import DaskOptions, calibrate_on_dask
from qdqtool.distributed.shard_answers import WaitLimits
from qdqtool.errors import MissingPackageError, QdqError
from tests.graphs import model_of

dask = pytest.importorskip("distributed", reason='needs pip install "qdqtool[dask]"')

NET = """net (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[4,3,3,3] w> {
 c = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(c)  y = Sigmoid(r) }"""
QUIET = CalibrationOptions("mse", progress=False)
SCRIPT = """import os, pathlib, signal, time
import numpy as np
def load_data():
    here = pathlib.Path(__file__).parent
    for number, sample in enumerate(np.load(here / "d.npz")["x"]):
        if number == 5 and os.getpid() != {pid}:
            {act}
        yield {{"x": sample[None]}}
"""
ONCE = """if not (here / "done").exists():
                (here / "done").touch()
                {what}"""
LIMITS = WaitLimits(look=0.5, stalled=15.0, no_workers=60.0)  # a busy machine gives signs of life late
TWO_WORKERS: dict[str, Any] = {
    "n_workers": 2,
    "threads_per_worker": 1,
    "host": "127.0.0.1",
    "dashboard_address": "127.0.0.1:0",
    "silence_logs": 50,
    "memory_limit": None,
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes of one thread, which all tests share."""
    with dask.LocalCluster(**TWO_WORKERS) as cluster:
        yield cluster


@pytest.fixture
def here(cluster: Any) -> DaskOptions:
    return DaskOptions(cluster.scheduler_address, 3)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model and 10 samples for it."""
    (tmp_path / "m.onnx").write_bytes(model_of(NET).SerializeToString())
    np.savez(tmp_path / "d.npz", x=samples())
    return tmp_path / "m.onnx", tmp_path / "d.npz"


def samples() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(10, 3, 8, 8)).astype(np.float32)


def script(folder: Path, act: str) -> Path:
    """A loader that does something at its sixth sample, in any process but this one."""
    path = folder / "loader.py"
    path.write_text(SCRIPT.format(pid=os.getpid(), act=act))
    return path


# The same bytes.


@pytest.mark.parametrize(("method", "ship"), [("mse", False), ("percentile=99", True)])
def test_the_bytes_of_a_serial_run(files: tuple[Path, Path], here: DaskOptions, method: str, ship: bool) -> None:
    options = CalibrationOptions(method, progress=False)
    assert (
        calibrate_on_dask(*files, replace(here, ship=ship), options).to_json() == calibrate(*files, options).to_json()
    )


def test_options_reach_the_shards(files: tuple[Path, Path], here: DaskOptions) -> None:
    options, feed = replace(QUIET, workers=2, max_memory=1 << 24), DataOptions(batch=2, limit=7)
    table = calibrate_on_dask(*files, here, options, feed)
    assert table.provenance.samples == 7
    assert table.to_json() == calibrate(*files, QUIET, feed).to_json()


@pytest.mark.parametrize("shards", [1, None])
def test_any_number_of_shards(files: tuple[Path, Path], here: DaskOptions, shards: int | None) -> None:
    assert (
        calibrate_on_dask(*files, replace(here, shards=shards), QUIET).to_json() == calibrate(*files, QUIET).to_json()
    )


def test_a_script_by_its_path(files: tuple[Path, Path], here: DaskOptions) -> None:
    data = f"{script(files[0].parent, 'pass')}:load_data"
    assert calibrate_on_dask(files[0], data, here, QUIET).to_json() == calibrate(files[0], data, QUIET).to_json()


def test_every_kind_of_data_is_shipped(files: tuple[Path, Path], here: DaskOptions, tmp_path: Path) -> None:
    np.save(tmp_path / "blob", samples())
    (tmp_path / "link.npy").symlink_to(tmp_path / "blob.npy")
    several = write_json(tmp_path)
    for data in (tmp_path / "link.npy", several, JsonInputs(several.paths[:1])):
        table = calibrate_on_dask(files[0], data, replace(here, ship=True), QUIET)
        assert table.to_json() == calibrate(files[0], data, QUIET).to_json()


def write_json(folder: Path) -> JsonInputs:
    from qdqtool.data.json_inputs import write_json_inputs

    paths = (folder / "a" / "in.json", folder / "b" / "in.json")
    for path, part in zip(paths, np.split(samples(), 2), strict=True):
        path.parent.mkdir()
        write_json_inputs(path, [{"x": one[None]} for one in part])
    return JsonInputs(paths)


def test_images_and_external_data_are_shipped(here: DaskOptions, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "pictures").mkdir()
    for number, one in enumerate(np.random.default_rng(2).integers(0, 255, (5, 8, 8, 3), np.uint8)):
        image.fromarray(one).save(tmp_path / "pictures" / f"{number}.png")
    (tmp_path / "pictures" / "labels.json").write_text("not JSON of inputs")
    model, whole = tmp_path / "m.onnx", model_of(NET)
    onnx.save_model(whole, str(model), save_as_external_data=True, location="w.bin", size_threshold=0)
    feed = DataOptions(preprocess="scale=1/255")
    table = calibrate_on_dask(model, tmp_path / "pictures", replace(here, ship=True), QUIET, feed)
    assert table.to_json() == calibrate(model, tmp_path / "pictures", QUIET, feed).to_json()


def test_what_was_shipped_is_taken_away(files: tuple[Path, Path], here: DaskOptions, cluster: Any) -> None:
    calibrate_on_dask(*files, replace(here, ship=True), QUIET)
    with dask.Client(cluster, set_as_default=False) as client:

        def left(dask_worker: Any) -> list[str]:
            return [path.name for path in Path(dask_worker.local_directory).glob("qdqtool-*")]

        assert not any(client.run(left).values())
        assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Two minutes for each test: where Dask waits for ever, the test fails and does not stand still."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("Dask has not answered for two minutes")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("ship", [[], ["--dask-ship"]])
def test_a_local_cluster_by_the_command(
    files: tuple[Path, Path], tmp_path: Path, ship: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["calibrate", *map(str, files), "--method", "mse"]
    words.insert(2, "--data")
    assert main([*words, "-o", str(tmp_path / "one.json"), "-q"]) == 0
    assert main([*words, "-o", str(tmp_path / "many.json"), "--dask", "local:2", "--dask-shards", "3", *ship]) == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "many.json").read_bytes()
    assert re.fullmatch(r"qdqtool: (no )?dashboard: .*\n", capfd.readouterr().err)


# Faults of the user's.


def test_the_lowest_shards_fault_is_reported(files: tuple[Path, Path], here: DaskOptions, tmp_path: Path) -> None:
    bad = samples()
    bad[[4, 6, 8]] = np.nan
    np.savez(tmp_path / "bad.npz", x=bad)
    with pytest.raises(QdqError) as serial:
        calibrate(files[0], tmp_path / "bad.npz", QUIET)
    for ship in (False, True):
        with pytest.raises(QdqError) as caught:  # shards 0 and 1 of 2 hold 4, 6, 8 and nothing
            calibrate_on_dask(files[0], tmp_path / "bad.npz", replace(here, shards=2, ship=ship), QUIET)
        assert caught.value.line() == serial.value.line()
        assert type(caught.value) is QdqError


def test_of_several_faults_the_lowest(files: tuple[Path, Path], here: DaskOptions, tmp_path: Path) -> None:
    act = "raise ValueError(f'shard of {number}')"  # every shard walks a script from its beginning
    with pytest.raises(QdqError, match=r"loader.py.*shard of 5"):
        calibrate_on_dask(files[0], script(tmp_path, act), here, QUIET)


def test_refused_before_any_cluster(files: tuple[Path, Path], tmp_path: Path) -> None:
    nowhere = DaskOptions("tcp://127.0.0.1:9", seconds=0.1)
    cases: list[tuple[str, Callable[[], object]]] = [
        ("cannot be sharded", lambda: calibrate_on_dask(*files, nowhere, CalibrationOptions("entropy"))),
        (
            "--method auto: needs samples of the whole data",
            lambda: calibrate_on_dask(*files, nowhere, replace(QUIET, method="auto")),
        ),
        ("--dask-shards: 0 is not a number", lambda: calibrate_on_dask(*files, replace(nowhere, shards=0))),
        ("--checkpoint", lambda: calibrate_on_dask(*files, nowhere, replace(QUIET, checkpoint=tmp_path / "c"))),
        ("none.npz: does not exist", lambda: calibrate_on_dask(files[0], tmp_path / "none.npz", nowhere)),
        ("none.onnx: does not exist", lambda: calibrate_on_dask(tmp_path / "none.onnx", files[1], nowhere)),
        (
            "loader.py: is a script, which may read other files and cannot be sent; put the files where",
            lambda: calibrate_on_dask(files[0], script(tmp_path, "pass"), replace(nowhere, ship=True)),
        ),
        (
            "--dask-ship: model and data are 0 MiB, and every worker would hold them",
            lambda: calibrate_on_dask(*files, replace(nowhere, ship=True), QUIET, DataOptions(max_bytes=8000)),
        ),
        ("no scheduler answers within 0.1 s", lambda: calibrate_on_dask(*files, nowhere)),
        ("is not UTF-8 text", lambda: calibrate_on_dask(*files, DaskOptions(str(files[0])))),
        ("nor an existing file; give tcp", lambda: calibrate_on_dask(*files, DaskOptions("nowhere"))),
        ("local:0: is not a number of worker processes", lambda: calibrate_on_dask(*files, DaskOptions("local:0"))),
        ("local:99999: is not a number of worker proc", lambda: calibrate_on_dask(*files, DaskOptions("local:99999"))),
        (
            "is not a number of worker processes for",
            lambda: calibrate_on_dask(*files, DaskOptions("local:" + "9" * 5000)),
        ),
    ]
    for message, call in cases:
        with pytest.raises(QdqError, match=re.escape(message)) as caught:
            call()
        assert caught.value.exit_code == 2
        assert "\n" not in caught.value.line()


def test_without_dask(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    found = builtins.__import__

    def hide(name: str, *rest: Any) -> Any:
        if name == "distributed":
            raise ModuleNotFoundError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", hide)
    assert main(["calibrate", str(files[0]), "--data", str(files[1]), "--dask", "local:2"]) == 3
    assert re.match(r'qdqtool: error: dask: .*--dask .*pip install "qdqtool\[dask\]"\n$', capsys.readouterr().err)


def test_paths_are_checked_on_the_workers(files: tuple[Path, Path], here: DaskOptions, cluster: Any) -> None:
    job = shard_job.make_job(str(files[0]), str(files[1]), QUIET)
    gone = replace(job, model=job.model + ".gone")
    with dask.Client(cluster, set_as_default=False) as client:
        dask_calibration._check_seen(client, job, shard_job.look_at(job))
        with pytest.raises(QdqError, match=r"worker tcp://\S+: .*m.onnx.gone does not exist"):
            dask_calibration._check_seen(client, gone, shard_job.look_at(job))


# Clusters that fail.


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_a_lost_worker_costs_only_its_shard(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """One that ends, and one that stands still, of which Dask would wait for a sign of life for five minutes."""
    monkeypatch.setattr(dask_calibration, "_LIMITS", LIMITS)
    data = script(tmp_path, ONCE.format(what=f"os.kill(os.getpid(), signal.{number})"))
    with dask.LocalCluster(**TWO_WORKERS) as cluster:
        table = calibrate_on_dask(files[0], data, DaskOptions(cluster.scheduler_address, 4), QUIET)
    assert (tmp_path / "done").exists()
    assert table.to_json() == calibrate(files[0], data, QUIET).to_json()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A scheduler and a worker without a nanny, in processes of their own: the scheduler's file and its process."""
    place = tmp_path / "scheduler.json"
    dask_command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    worker_command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard"]
    log = (tmp_path / "log").open("w")
    started = []
    for command in (dask_command, [*worker_command, "--nthreads", "1", "--host", "127.0.0.1"]):
        words = [*command, "--host", "127.0.0.1"] if command is dask_command else command
        words = [*words, "--scheduler-file", str(place)]
        started.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=tmp_path))
    yield place, started[0].pid
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("SIGKILL", r"shard 1/2: was abandoned by the scheduler \(.*\); check that the scheduler and its workers"),
        ("SIGSTOP", r"dask: the scheduler has not answered within 0\.5 s; check that the scheduler and its workers"),
    ],
)
def test_a_lost_scheduler_is_one_line(
    files: tuple[Path, Path],
    machines: tuple[Path, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: str,
    message: str,
) -> None:
    place, scheduler = machines
    data = script(tmp_path, ONCE.format(what=f"os.kill({scheduler}, signal.{number}); time.sleep(60)"))
    wait_for(place)
    monkeypatch.setattr(dask_calibration, "_LIMITS", LIMITS)
    monkeypatch.setattr(dask_calibration, "_REPLACED", 1.0)
    with pytest.raises(QdqError, match=message) as caught:
        calibrate_on_dask(files[0], data, DaskOptions(str(place), 2, seconds=5), QUIET)
    assert caught.value.exit_code == 2


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)


def test_the_last_worker_is_lost(
    files: tuple[Path, Path], machines: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = script(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    wait_for(machines[0])
    monkeypatch.setattr(dask_calibration, "_LIMITS", replace(LIMITS, no_workers=4.0))
    with pytest.raises(QdqError, match=r"dask: .*no workers for 4 s"):
        calibrate_on_dask(files[0], data, DaskOptions(str(machines[0]), 2, seconds=30), QUIET)


@pytest.mark.slow
def test_a_shard_that_ends_every_worker(files: tuple[Path, Path], here: DaskOptions, tmp_path: Path) -> None:
    data = script(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(QdqError, match=r"shard \d/3: ended 4 workers"):
        calibrate_on_dask(files[0], data, here, QUIET)


def test_no_workers(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "_ANY_WORKER", 0.1)
    options = {"n_workers": 0, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        dask.LocalCluster(**options) as empty,
        pytest.raises(QdqError, match=r"no workers after 0.1 s"),
    ):
        calibrate_on_dask(*files, DaskOptions(empty.scheduler_address), QUIET)


def test_an_interruption_takes_the_shards_back(
    files: tuple[Path, Path], here: DaskOptions, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(dask_calibration.ShardSum, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        calibrate_on_dask(*files, here, QUIET)
    with dask.Client(cluster, set_as_default=False) as client:
        assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0


def test_faults_and_jobs_travel(files: tuple[Path, Path]) -> None:
    job = shard_job.make_job(
        "m.onnx", "loader.py:make", replace(QUIET, beside="max", resume=True), DataOptions(limit=3)
    )
    assert pickle.loads(pickle.dumps(job)) == job
    assert (job.model, job.data) == (str(Path("m.onnx").absolute()), f"{Path('loader.py').absolute()}:make")
    assert not (job.options.beside or job.options.resume)
    fault = shard_job.ShardError.of(MissingPackageError(job.model, f"is not {job.model}", "see"), job)
    assert pickle.loads(pickle.dumps(fault)).error().line() == "m.onnx: is not m.onnx; see"
    assert fault.error().exit_code == 3
