# SPDX-License-Identifier: Apache-2.0
"""What a session on a GPU is asked for, and that no other provider takes the place of one that does not start."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.providers import (
    CPU,
    load_libraries,
    one_node_model,
    open_session,
    provider_names,
    with_settings,
)
from qdqtool.runtime.session import session_options, start_session
from tests.ort_session import session_of

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
COULD_NOT = "Failed to load libcublasLt.so.13: no such file"


class Session:
    """A session of the stand-in, on the providers that started."""

    def __init__(self, providers: Sequence[str]) -> None:
        self.providers, self.falls_back = list(providers), True

    def get_providers(self) -> list[str]:
        return self.providers

    def disable_fallback(self) -> None:
        self.falls_back = False


class Runtime:
    """An onnxruntime for GPUs that starts what it is told to; `asked` is what each session was asked for."""

    __version__ = "1.31.1"
    SessionOptions = types.SimpleNamespace

    def __init__(self, starts: Sequence[str] = (CUDA, CPU), printed: str = "", error: Exception | None = None) -> None:
        self.starts, self.printed, self.error = starts, printed, error
        self.asked: list[dict[str, Any]] = []
        self.loads = 0

    def get_available_providers(self) -> list[str]:
        return [TENSORRT, CUDA, CPU]

    def preload_dlls(self) -> None:
        self.loads += 1
        print(self.printed, end="")

    def InferenceSession(self, source: bytes, options: Any, **words: Any) -> Session:
        self.asked.append(words)
        print("*** EP Error ***")  # as onnxruntime 1.20 does where it goes over to the CPU
        if self.error is not None:
            raise self.error
        names = [one if isinstance(one, str) else one[0] for one in words["providers"]]
        return Session([name for name in names if name in self.starts])


def test_a_gpu_is_asked_once_whether_it_starts() -> None:
    runtime = Runtime()
    for _ in range(2):
        assert provider_names(runtime, "cuda") == [CUDA, CPU]
    assert (len(runtime.asked), runtime.loads) == (1, 1)
    assert provider_names(Runtime(starts=[CPU]), "cpu") == [CPU]


def test_the_cpu_is_not_asked() -> None:
    runtime = Runtime()
    assert provider_names(runtime, "cpu") == [CPU]
    assert runtime.asked == [] and runtime.loads == 0


@pytest.mark.parametrize(("provider", "name"), [("cuda", CUDA), ("tensorrt", TENSORRT)])
def test_a_gpu_that_does_not_start_is_an_error_with_its_reason(
    provider: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = Runtime(starts=[CPU], printed=f"{COULD_NOT}\nFailed to load libcublas.so.13\n")
    for _ in range(2):
        with pytest.raises(QdqError) as caught:
            provider_names(runtime, provider)
        expected = f"--provider: {name} does not start on this machine ({COULD_NOT}); use --provider cpu; for a GPU: "
        assert caught.value.line().endswith(expected + 'pip install "onnxruntime-gpu[cuda,cudnn]"')
        assert caught.value.exit_code == 2
    assert len(runtime.asked) == 1, "a second try with TensorRT's libraries missing ends the process"
    assert capsys.readouterr().out == "", "stdout may be JSON"


def test_an_error_of_cuda_is_not_the_models() -> None:
    runtime = Runtime(error=RuntimeError("CUDA failure 35: CUDA driver version is insufficient"))
    with pytest.raises(QdqError, match=r"\(CUDA failure 35: .*insufficient\)"):
        provider_names(runtime, "cuda")
    with pytest.raises(RuntimeError, match="failure 35"):
        open_session(runtime, b"", None, [CPU])


def test_no_provider_of_another_name_or_build() -> None:
    runtime = Runtime()
    with pytest.raises(QdqError, match="cpu, cuda, tensorrt"):
        provider_names(runtime, "tpu")
    runtime.get_available_providers = lambda: [CPU]  # type: ignore[method-assign]
    with pytest.raises(MissingPackageError, match=r"1\.31\.1 has no CUDAExecutionProvider; .*qdqtool\[gpu\]"):
        provider_names(runtime, "cuda")


def test_float32_on_a_gpu_is_float32_by_the_same_kernels() -> None:
    assert with_settings([CUDA, CPU]) == [(CUDA, {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}), CPU]
    assert with_settings([CPU]) == [CPU]


def test_sessions_of_verbs_have_the_settings(tmp_path: Path) -> None:
    import onnx

    runtime, model = Runtime(), onnx.ModelProto.FromString(one_node_model())
    options = types.SimpleNamespace(enable_cpu_mem_arena=True)
    session = start_session(runtime, (model, {}, ["y"]), options, [CUDA, CPU], "model", ["ConvAddFusion"])
    (asked,) = runtime.asked
    assert asked["providers"] == with_settings([CUDA, CPU]) and asked["enable_fallback"] == 0
    assert asked["disabled_optimizers"] == ["ConvAddFusion"]
    assert options.use_deterministic_compute and not session.falls_back
    with pytest.raises(QdqError, match="does not start"):
        start_session(Runtime(starts=[CPU]), (model, {}, ["y"]), options, [CUDA, CPU], "model")
    start_session(runtime, (model, {}, ["y"]), options, [CPU], "model")
    assert not options.use_deterministic_compute, "the CPU's kernels are as they were"


def test_sessions_on_the_cpu_take_what_a_gpu_is_asked_for() -> None:
    runtime = pytest.importorskip("onnxruntime", reason="it makes the session")
    session = open_session(runtime, one_node_model(), session_options(runtime, "ORT_ENABLE_BASIC"), [CPU])
    assert session.run(None, {"x": np.ones(1, np.float32)})[0] == 1
    assert session_of(one_node_model()).get_providers() == [CPU]


def test_an_onnxruntime_that_loads_no_libraries_is_not_asked_to() -> None:
    assert load_libraries(types.SimpleNamespace()) == ""
