# SPDX-License-Identifier: Apache-2.0
"""`prune` with data and with a forecast: what is held out, which importance, for which device, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool import PruneOptions, plan_pruning, prune
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.prune_samples import HeldOutBatches, Shown
from tests.graphs import model_of
from tests.verbs.small_net import NET, write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

BATCHES = [{"x": np.full((2, 4, 8, 8), place, np.float32)} for place in range(12)]


def firsts(batches: object) -> list[int]:
    return [int(batch["x"].flat[0]) for batch in batches]  # type: ignore[attr-defined]


def test_every_fifth_batch_is_held_out() -> None:
    assert firsts(HeldOutBatches(BATCHES, held=True)) == [4, 9]
    used = HeldOutBatches(BATCHES, held=False)
    assert firsts(used) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11] == firsts(used), "walked again from the beginning"


@pytest.mark.parametrize("shown", [True, False])
def test_few_samples_go_by_with_a_bar_or_without(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert firsts(Shown(BATCHES, 3, shown)) == [0, 1, 2]
    assert bool(capsys.readouterr().err) == shown


@pytest.mark.parametrize("importance", ["taylor", "activation"])
@pytest.mark.parametrize("way", [{"ratio": 0.5}, {"macs": 0.6}, {"threshold": 0.5, "granularity": 1, "min_filters": 1}])
def test_importance_by_data(importance: str, way: dict[str, float], tmp_path: Path) -> None:
    source = write_net(tmp_path)
    options = PruneOptions(importance=importance, progress=False, **way)  # type: ignore[arg-type]
    done = prune(source, tmp_path / "d.npz", options).done
    assert done.difference is not None and done.difference.small and done.parameters[1] < done.parameters[0]
    assert done.judged and np.isfinite(done.judged[0].plain)
    again = plan_pruning(source, tmp_path / "d.npz", options).done
    assert [group.kept for group in again.groups] == [group.kept for group in done.groups]


@pytest.mark.parametrize("importance", ["taylor", "activation"])
def test_importance_without_data_is_refused(importance: str, tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=f"--importance {importance}: is measured on data; give --data"):
        prune(write_net(tmp_path), options=PruneOptions(ratio=0.5, importance=importance))


def test_data_that_can_be_walked_once() -> None:
    arrays = ({"x": batch["x"][:1]} for batch in BATCHES)
    done = prune(model_of(NET), arrays, PruneOptions(ratio=0.5, importance="taylor", progress=False)).done
    assert done.judged and done.difference is not None and done.difference.small


def test_a_forecast_is_told_as_one(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    result = prune(source, options=PruneOptions(latency=1.0, trt_version="8.6.1", device="orin-nx"))
    told = result.done.forecast
    assert told is not None and told.before == told.after > 0
    assert "us, 1.000 of it: forecast for orin-nx by predicted layers, not measured" in str(result)
    assert prune(source, options=PruneOptions(ratio=0.5)).done.forecast is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (PruneOptions(latency=0.5, device="abacus"), "no such device"),
        (PruneOptions(ratio=0.5, device="orin-nx"), "--for: says whose forecast --latency goes by"),
        (PruneOptions(ratio=0.5, trt_version=TrtVersion(8, 6, 1)), "--trt-version: says whose forecast"),
        (PruneOptions(latency=0.5, ratio=0.5), "--ratio and --latency: exclude each other"),
        (PruneOptions(latency=0.0), "--latency: 0 is not a share"),
        (PruneOptions(ratio=0.5, importance="size"), "--importance: size is unknown"),
    ],
)
def test_words_that_mean_nothing_together(options: PruneOptions, part: str, tmp_path: Path) -> None:
    source = write_net(tmp_path)
    with pytest.raises(QdqError, match=part):
        prune(source, options=options)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["d.npz", "m.onnx"]
