# SPDX-License-Identifier: Apache-2.0
"""`prune` with data and with a forecast: what is held out, which importance, for which device, what is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import PruneOptions, PruneResult, plan_pruning, prune
from qdqtool.errors import QdqError
from qdqtool.pruning import run as pruning_run
from qdqtool.pruning.held_out import HeldOutput
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.prune import Shown
from tests.graphs import model_of
from tests.verbs.small_net import NET, write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

BATCHES = [{"x": np.full((2, 4, 8, 8), place, np.float32)} for place in range(12)]


def firsts(batches: object) -> list[int]:
    return [int(batch["x"].flat[0]) for batch in batches]  # type: ignore[attr-defined]


@pytest.mark.parametrize("shown", [True, False])
def test_few_samples_go_by_with_a_bar_or_without(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert firsts(Shown(BATCHES, 3, shown)) == [0, 1, 2]
    assert bool(capsys.readouterr().err) == shown


@pytest.mark.parametrize("importance", ["taylor", "activation"])
@pytest.mark.parametrize(
    "way",
    [{"ratio": 0.5}, {"macs": 0.6}, {"threshold": 0.5, "granularity": 1, "min_filters": 1}],
)
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
    with pytest.raises(QdqError, match=rf"--importance {importance}: .*--data"):
        prune(write_net(tmp_path), options=PruneOptions(ratio=0.5, importance=importance))


@pytest.mark.parametrize(
    ("way", "measured"), [({"macs": 0.6}, 1), ({"latency": 0.9}, 1), ({"macs": 1.0}, 0), ({"ratio": 0.5}, 0)]
)
def test_a_budget_is_shared_out_by_what_outputs_lose_where_data_is_given(
    way: dict[str, float], measured: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    scores = pruning_run.loss_scores

    def counted(*args: object, **more: object) -> object:
        calls.append(args)
        return scores(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(pruning_run, "loss_scores", counted)
    source, options = write_net(tmp_path), PruneOptions(progress=False, **way)  # type: ignore[arg-type]
    for data in (tmp_path / "d.npz", None):
        with suppress(QdqError):  # so small a network has no block of channels that a forecast would lose
            plan_pruning(source, data, options)
        assert len(calls) == measured


def test_measured_losses_that_mislead_do_no_worse_than_the_same_share_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the worths of single groups turned round: the result, and that of a dry run, is the plain one's."""
    source, data = write_net(tmp_path), tmp_path / "d.npz"
    options = PruneOptions(macs=0.6, progress=False)
    scores = pruning_run.loss_scores

    def misled(*args: object, **more: object) -> dict[str, np.ndarray]:
        found = scores(*args, **more)  # type: ignore[arg-type]
        return {name: own / np.square(own.max()) for name, own in found.items()}

    monkeypatch.setattr(pruning_run, "loss_scores", misled)
    places: list[int] = []
    nearest = pruning_run.nearest_model

    def seen(*args: object) -> int:
        places.append(nearest(*args))  # type: ignore[arg-type]
        return places[-1]

    monkeypatch.setattr(pruning_run, "nearest_model", seen)
    result = prune(source, data, options)
    done, again = result.done, plan_pruning(source, data, options).done
    assert done.shared_out == again.shared_out == "evenly" and "the same share" in str(result)
    assert places == [1, 1] and done.difference is not None and done.difference.small
    assert [group.kept for group in again.groups] == [group.kept for group in done.groups]
    even = {round(1 - group.kept / group.total, 1) for group in done.groups}
    assert len(even) <= 2, "shares that whole channels round"


def test_data_that_can_be_walked_once() -> None:
    arrays = ({"x": batch["x"][:1]} for batch in BATCHES)
    done = prune(model_of(NET), arrays, PruneOptions(ratio=0.5, importance="taylor", progress=False)).done
    assert done.judged and done.difference is not None and done.difference.small


def test_a_forecast_is_told_as_one(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    result = prune(source, options=PruneOptions(latency=1.0, trt_version="8.6.1", device="orin-nx"))
    told = result.done.forecast
    assert told is not None and told.before == told.after > 0
    assert "us, 1.000 of it: forecast for orin-nx " in str(result)
    assert prune(source, options=PruneOptions(ratio=0.5)).done.forecast is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (PruneOptions(latency=0.5, device="abacus"), "no such device"),
        (PruneOptions(ratio=0.5, device="orin-nx"), "--for: names the device of --latency"),
        (PruneOptions(ratio=0.5, trt_version=TrtVersion(8, 6, 1)), "--trt-version: names the device of --latency"),
        (PruneOptions(latency=0.5, ratio=0.5), "--ratio and --latency: exclude each other"),
        (PruneOptions(latency=0.0), "--latency: 0 is not a share"),
        (PruneOptions(ratio=0.5, importance="size"), "--importance: size is unknown"),
        (PruneOptions(ratio=2.0), "--ratio: 2 is not a share"),
        (PruneOptions(ratio=0.5, exclude=("nowhere",)), "nowhere matches no operator"),
        (PruneOptions(ratio=0.5, exclude=(".",)), "no channel of the model can be removed"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_written(options: PruneOptions, part: str, tmp_path: Path) -> None:
    source = write_net(tmp_path)
    with pytest.raises(QdqError, match=part):
        prune(source, options=options)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["d.npz", "m.onnx"]


def told(corrected: tuple[str, ...], reconstructed: tuple[str, ...], *ways: float) -> str:
    """What is said of a pruned model with one output on held-out samples."""
    done = replace(
        prune(model_of(NET), options=PruneOptions(ratio=0.5)).done,
        corrected=corrected,
        reconstructed=reconstructed,
        judged=(HeldOutput("y", *ways),),
    )
    return str(PruneResult(model_of(NET), done))


@pytest.mark.parametrize(
    ("corrected", "reconstructed", "line", "decibels"),
    [
        ((), (), "weights and biases stay as they are: correction does no better on held-out samples", "5.0"),
        (("a", "b"), (), "biases of 2 operators compensate the mean of the removed channels", "6.0"),
        ((), ("a",), "weights of 1 operator are fitted to the remaining channels", "7.0"),
        (("b",), ("a",), "weights of 1 operator are fitted to the remaining channels", "7.0"),
    ],
)
def test_what_was_done_with_data_is_told(
    corrected: tuple[str, ...], reconstructed: tuple[str, ...], line: str, decibels: str
) -> None:
    said = told(corrected, reconstructed, 5.0, 6.0, 7.0)
    assert f"  {line}\n" in said and f"  y: {decibels} dB to the original" in said


@pytest.mark.parametrize(
    ("decibels", "said"),
    [
        (10.0, ""),
        (np.inf, ""),
        (9.9, "its error is 10% of its power"),
        (7.0, "its error is 20% of its power"),
        (-3.0103, "its error is 200% of its power"),
        (-np.inf, "nothing of it is left"),
        (np.nan, "nothing of it is left"),
    ],
)
def test_a_model_that_falls_apart_is_named_with_what_can_be_done(decibels: float, said: str) -> None:
    whole = told((), ("a",), 30.0, 30.0, decibels)
    line = f"  much is lost at y: {said} on held-out samples; keep more channels, or train with finetune"
    assert (line in whole.splitlines()) == bool(said) == ("much is lost" in whole)


def test_the_worst_output_of_what_is_written_is_named() -> None:
    done = prune(model_of(NET), options=PruneOptions(ratio=0.5)).done
    both = (HeldOutput("y", 1.0, 20.0, 20.0), HeldOutput("z", 20.0, 3.0, 20.0))
    corrected = str(PruneResult(model_of(NET), replace(done, corrected=("a",), judged=both)))
    assert re.search("lost at z: .* 50% ", corrected) and "lost at y" not in corrected
    assert "much is lost" not in str(PruneResult(model_of(NET), replace(done, reconstructed=("a",), judged=both)))


def test_without_data_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert "held-out" not in str(prune(write_net(tmp_path), options=PruneOptions(ratio=0.5)))


def test_weights_stay_where_nobody_wants_them_corrected(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    bare = prune(source, output=tmp_path / "bare.onnx", options=PruneOptions(ratio=0.5))
    kept = prune(source, tmp_path / "d.npz", PruneOptions(ratio=0.5, correct=False), tmp_path / "kept.onnx")
    assert kept.done.corrected == kept.done.reconstructed == () and kept.done.judged
    assert kept.model.read_bytes() == bare.model.read_bytes()


def test_the_model_that_is_given_never_changes(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    before = source.read_bytes()
    prune(source, tmp_path / "d.npz", PruneOptions(ratio=0.5), tmp_path / "p.onnx")
    assert source.read_bytes() == before


def test_fitted_weights_are_finite_and_of_the_type_that_they_had(tmp_path: Path) -> None:
    source = write_net(tmp_path)
    made = onnx.load(prune(source, tmp_path / "d.npz", PruneOptions(ratio=0.5), tmp_path / "p.onnx").model)
    types = {one.name: one.data_type for one in onnx.load(source).graph.initializer}
    for tensor in made.graph.initializer:
        assert np.isfinite(onnx.numpy_helper.to_array(tensor)).all()
        assert types.get(tensor.name, onnx.TensorProto.FLOAT) == tensor.data_type
