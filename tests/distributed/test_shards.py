# SPDX-License-Identifier: Apache-2.0
"""Shards of a calibration, merged in any order, are the calibration; what does not belong together is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.errors import QdqError
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.calibration.engine import calibrate
from qdqtool.data.loader import DataOptions
from qdqtool.distributed.shards import calibrate_shard, merge_files, merge_shards, parse_shard
from qdqtool.observers.observer_state import ObserverState
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.state_file import State, read_state, state_from_bytes, state_to_bytes, write_state

NET = """net (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[4,3,3,3] w> {
 c = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(c)  y = Sigmoid(r) }"""
QUIET = CalibrationOptions("mse", progress=False)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model and 10 samples for it."""
    (tmp_path / "m.onnx").write_bytes(model_of(NET).SerializeToString())
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(1).normal(size=(10, 3, 8, 8)).astype(np.float32))
    return tmp_path / "m.onnx", tmp_path / "d.npz"


def shards(files: tuple[Path, Path], total: int, **options: object) -> list[State]:
    made = replace(QUIET, **options)  # type: ignore[arg-type]
    return [calibrate_shard(*files, (number, total), made) for number in range(total)]


@pytest.mark.parametrize("method", ["mse", "max", "percentile=99", "entropy-stable"])
def test_any_order_gives_the_bytes_of_one_run(files: tuple[Path, Path], method: str) -> None:
    whole = calibrate(*files, CalibrationOptions(method, progress=False)).to_json()
    parts = shards(files, 3, method=method)
    assert [part.observation.samples for part in parts] == [4, 3, 3]
    for order in itertools.permutations(parts):
        assert merge_shards(order, method).to_json() == whole


def test_more_shards_than_batches(files: tuple[Path, Path]) -> None:
    parts = shards(files, 12)
    assert [part.observation.samples for part in parts][-2:] == [0, 0]
    assert merge_shards(parts).to_json() == calibrate(*files, QUIET).to_json()


def test_grouped_samples_stay_grouped(files: tuple[Path, Path]) -> None:
    feed = DataOptions(batch=4)
    parts = [calibrate_shard(*files, (number, 2), QUIET, feed) for number in range(2)]
    assert [part.observation.samples for part in parts] == [6, 4]
    assert merge_shards(parts).to_json() == calibrate(*files, QUIET, feed).to_json()


def test_states_go_through_files_and_bytes(files: tuple[Path, Path], tmp_path: Path) -> None:
    parts = shards(files, 2)
    paths = [tmp_path / f"{number}.state" for number in range(2)]
    for part, path in zip(parts, paths, strict=True):
        write_state(part, path, compress=True)
        assert state_to_bytes(state_from_bytes(state_to_bytes(part))) == state_to_bytes(part)
        assert state_to_bytes(read_state(path)) == state_to_bytes(part) == path.read_bytes()
    assert merge_files(paths[::-1]).to_json() == calibrate(*files, QUIET).to_json()


def test_workers_and_memory_of_a_shard_do_not_matter(files: tuple[Path, Path]) -> None:
    first, second = shards(files, 2)[0], shards(files, 2, workers=2, max_memory=1 << 24)[1]
    assert merge_shards([first, second]).to_json() == calibrate(*files, QUIET).to_json()


# Refusals.


def test_entropy_cannot_be_cut(files: tuple[Path, Path]) -> None:
    with pytest.raises(QdqError, match=r"cannot be sharded; .*entropy-stable"):
        shards(files, 2, method="entropy")
    with pytest.raises(QdqError, match="cannot be sharded"):
        merge_shards(shards(files, 2), "entropy")


def test_a_method_that_walks_the_data_once_more_cannot_be_cut(files: tuple[Path, Path]) -> None:
    with pytest.raises(QdqError, match=r"--method auto: .*; use mse,"):
        merge_shards(shards(files, 2), "auto")


def test_shards_without_samples(files: tuple[Path, Path]) -> None:
    empty = [replace(one, observation=ObserverState(one.plan)) for one in shards(files, 2)]
    with pytest.raises(QdqError, match=r"^data: .*samples"):
        merge_shards(empty)


def test_max_needs_shards_of_its_own(files: tuple[Path, Path]) -> None:
    with pytest.raises(QdqError, match=r"--method max: .*largest value"):
        merge_shards(shards(files, 2), "max")
    by_max = shards(files, 2, method="max")
    assert merge_shards(by_max, "mse").provenance.method == "mse"


def test_each_shard_once(files: tuple[Path, Path]) -> None:
    a, b, c, d = shards(files, 4)
    with pytest.raises(QdqError, match="--merge: lacks shard 2/4, 4/4; run calibrate --shard 2/4"):
        merge_shards([a, c])
    with pytest.raises(QdqError, match="late: is shard 2/4, as early is"):
        merge_shards([a, b, c, d, b], names=["first", "early", "c", "d", "late"])
    with pytest.raises(QdqError, match="names no states"):
        merge_shards([])


def test_of_one_calibration(files: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = shards(files, 2)
    other = tmp_path / "other.onnx"
    other.write_bytes(model_of(NET.replace("Sigmoid", "Tanh")).SerializeToString())
    with pytest.raises(QdqError, match=r"state 1: .*different model .*; merge shards"):
        merge_shards([a, calibrate_shard(other, files[1], (1, 2), QUIET)])
    with pytest.raises(QdqError, match="different data"):
        merge_shards([a, calibrate_shard(*files, (1, 2), QUIET, DataOptions(limit=9))])
    with pytest.raises(QdqError, match="set of tensors"):
        merge_shards([a, calibrate_shard(*files, (1, 2), replace(QUIET, derive=False))])
    with pytest.raises(QdqError, match=r"\(3, the first 2\)"):
        merge_shards([a, shards(files, 3)[1]])
    with pytest.raises(QdqError, match=r"state 1: is not complete; .*--checkpoint"):
        merge_shards([a, replace(b, complete=False)])


@pytest.mark.parametrize(("text", "shard"), [("1/1", (0, 1)), ("3/8", (2, 8)), ("8/8", (7, 8))])
def test_shard_text(text: str, shard: tuple[int, int]) -> None:
    assert parse_shard(text) == shard


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "-1/8", "1/0", "a/b", "1/2/3", "1.5/2"])
def test_no_shard(text: str) -> None:
    with pytest.raises(QdqError, match=r"--shard: .* is not the i-th of n; write it as 1/8 to 8/8"):
        parse_shard(text)


# Damaged files.


@pytest.mark.parametrize("part", ["meta", "done", "mergeable.counts", "mergeable.lengths", "mergeable.tally"])
def test_a_state_without_a_part(files: tuple[Path, Path], tmp_path: Path, part: str) -> None:
    path = tmp_path / "s"
    write_state(shards(files, 1)[0], path, compress=False)
    with np.load(path) as stored:
        arrays = {name: array for name, array in stored.items() if name != part}
    np.savez(path.open("wb"), **arrays)
    with pytest.raises(QdqError, match=r"calibration state|saved histogram"):
        read_state(path)


def test_a_state_that_lies(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_state(shards(files, 1)[0], path, compress=False)
    good = path.read_bytes()
    with np.load(path) as stored:
        arrays = dict(stored)
    lies = {
        "mergeable.lengths": arrays["mergeable.lengths"] + 1,
        "mergeable.counts": arrays["mergeable.counts"][:-1],
        "mergeable.exponents": arrays["mergeable.exponents"] + 1000,
        "meta": np.frombuffer(b'{"schema": 99}', np.uint8),
    }
    for name, lie in lies.items():
        np.savez(path.open("wb"), **{**arrays, name: lie})
        with pytest.raises(QdqError):
            read_state(path)
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(QdqError, match="cannot be read"):
        read_state(path)
    with pytest.raises(QdqError, match="nothing: does not exist"):
        read_state(tmp_path / "nothing")
