# SPDX-License-Identifier: Apache-2.0
"""Gradients that stay on the device of the training session: which exchange they get, and that files stay the same.

The CPU stands in for the GPU. Two processes are in `test_step_gradients.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qdqtool
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.match.options import PlanOptions
from qdqtool.runtime.installed import load_onnxruntime
from qdqtool.runtime.providers import provider_names
from qdqtool.training.launch import take_gpu
from qdqtool.training.options import RunOptions
from qdqtool.training.reducers import TorchReducer, open_reducer
from qdqtool.training.student import SessionOptions

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
MODELS = Path(__file__).parents[2] / "models"
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}


class Torch:
    """PyTorch as far as a reducer is started with it."""

    def __init__(self, *, nccl: bool = True) -> None:
        self.backends, self.nccl = list[str](), nccl
        self.distributed = SimpleNamespace(
            init_process_group=lambda name, timeout: self.backends.append(name),
            all_reduce=self._all_reduce,
            get_rank=lambda: 1,
            get_world_size=lambda: 2,
        )

    def zeros(self, size: int, device: str) -> Any:
        return SimpleNamespace(size=size, device=device)

    def _all_reduce(self, vector: Any) -> None:
        if not self.nccl:
            raise RuntimeError("Duplicate GPU detected")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    for name in [one for one in os.environ if one.startswith(("PMI_", "OMPI_", "SLURM_", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    found = Torch()
    monkeypatch.setitem(sys.modules, "torch", found)  # type: ignore[arg-type]
    monkeypatch.setattr("qdqtool.training.reducers.chosen_reducer", lambda name: "torch")
    shares = SimpleNamespace(OrtValue=SimpleNamespace(__dlpack__=None), __version__="1.26")
    monkeypatch.setattr("qdqtool.training.reducers.load_onnxruntime", lambda: shares)
    return found


@pytest.mark.parametrize(
    ("name", "provider", "backend", "gpu"),
    [
        ("torch=all-reduce", "cuda", "cpu:gloo,cuda:nccl", "5"),
        ("torch=all-reduce", "tensorrt", "cpu:gloo,cuda:nccl", "5"),
        ("torch", "cuda", "gloo", "5"),
        ("torch=all-reduce", "cpu", "gloo", "4,5"),
    ],
)
def test_vectors_of_gpus_are_summed_by_nccl_and_others_by_gloo(
    name: Any, provider: str, backend: str, gpu: str, torch: Torch
) -> None:
    assert open_reducer(name, 2, provider) is not None
    assert torch.backends == [backend] and os.environ["CUDA_VISIBLE_DEVICES"] == gpu


def test_a_nccl_that_does_not_start_and_an_old_onnxruntime_are_one_line(
    torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.nccl = False
    with pytest.raises(QdqError, match="Duplicate GPU"):
        TorchReducer(on_gpus=True)
    old = SimpleNamespace(OrtValue=object, __version__="1.25")
    monkeypatch.setattr("qdqtool.training.reducers.load_onnxruntime", lambda: old)
    with pytest.raises(MissingPackageError, match=r"1\.25"):
        TorchReducer(on_gpus=True)


@pytest.mark.parametrize(
    ("variables", "visible", "taken"),
    [
        ({"LOCAL_RANK": "2"}, None, "2"),
        ({"MPI_LOCALRANKID": "3"}, "0,1", "1"),
        ({"SLURM_LOCALID": "1"}, "GPU-7", "GPU-7"),
        ({}, None, "0"),
    ],
)
def test_each_worker_of_a_machine_takes_a_gpu(
    variables: dict[str, str], visible: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    take_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("held") / "q.onnx"
    plan, method = PlanOptions(weights="per-tensor"), qdqtool.CalibrationOptions(method="max")
    options = qdqtool.InsertOptions(plan=plan, calibration=method)
    qdqtool.insert(MODELS / "tiny_classifier.onnx", data=MODELS / "digits8_calib.npz", options=options, output=out)
    return out


def tuned(model: Path, provider: str, out: Path) -> bytes:
    run = RunOptions(steps=12, grad_accum=2)
    options = qdqtool.FinetuneOptions(run=run, batch=4, ranges="learn", equalize="none", provider=provider)
    qdqtool.finetune(model, MODELS / "digits8_calib.npz", options, output=out)
    return out.read_bytes()


@pytest.mark.slow
def test_the_file_of_held_gradients_is_that_of_arrays(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = tuned(quantized, "cpu", tmp_path / "arrays.onnx")
    monkeypatch.setattr(SessionOptions, "device", "cpu")
    assert tuned(quantized, "cpu", tmp_path / "held.onnx") == arrays != quantized.read_bytes()


@pytest.mark.gpu
def test_on_a_gpu_gradients_stay_there_and_nccl_sums_them(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        provider_names(load_onnxruntime(), "cuda")
    except QdqError as error:
        pytest.skip(error.line())
    pytest.importorskip("torch", reason="PyTorch sums vectors of GPUs")
    monkeypatch.setenv("MASTER_PORT", "29513")
    for name, value in {**LAUNCHED, "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert tuned(quantized, "cuda", tmp_path / "tuned.onnx") != quantized.read_bytes()
    reducer = TorchReducer(on_gpus=True)
    own = np.arange(5, dtype=np.float32)
    held = load_onnxruntime().OrtValue.ortvalue_from_numpy(own, "cuda", 0)
    added = reducer.added(reducer.added(None, held), held)
    assert added.is_cuda and reducer.all_reduce(added).tolist() == (2 * own).tolist()
    reducer.close(failed=False)
