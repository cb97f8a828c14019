# SPDX-License-Identifier: Apache-2.0
"""The execution provider asked for: its name, its settings, and a session on it, or an error: never on another one.

Left to itself, onnxruntime goes on with the CPU where a GPU does not start or fails in a run; stdout tells.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import one_line

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

CPU = PROVIDERS["cpu"]

# By default onnxruntime multiplies float32 in TF32, with 10 bits of mantissa for 23, and times the kernels of a
# convolution to choose one, so that last bits differ from run to run (microsoft/onnxruntime issue 19822).
_SETTINGS = {PROVIDERS["cuda"]: {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}}
_TODO = 'use --provider cpu; for a GPU: pip install "onnxruntime-gpu[cuda,cudnn]"'
_IR_VERSION, _OPSET = 8, 13  # that every onnxruntime reads


def provider_names(runtime: Any, provider: str) -> list[str]:
    """What onnxruntime calls the provider asked for, and the one that takes what it leaves.

    Raises:
        QdqError: no such provider; it does not start here.
        MissingPackageError: the installed onnxruntime was built without it.
    """
    if provider not in PROVIDERS:
        raise QdqError("--provider", f"{provider!r} is not one", f"choose one of {', '.join(PROVIDERS)}")
    name = PROVIDERS[provider]
    if name not in runtime.get_available_providers():
        reason = f"the installed onnxruntime {runtime.__version__} has no {name}"
        raise MissingPackageError("--provider", reason, 'pip uninstall -y onnxruntime, then pip install "qdqtool[gpu]"')
    if provider != "cpu" and (error := _start_error(runtime, name)) is not None:
        raise error
    return list(dict.fromkeys((name, CPU)))


def with_settings(providers: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """Providers as a session takes them, with what makes a GPU compute float32 as float32, and by the same kernels."""
    return [(name, dict(_SETTINGS[name])) if name in _SETTINGS else name for name in providers]


def open_session(
    runtime: Any,
    source: str | bytes,
    options: Any,
    providers: Sequence[str | tuple[str, dict[str, str]]],
    disabled: Sequence[str] = (),
) -> Any:
    """A session on the first provider, which does not go over to another one later either.

    Raises:
        QdqError: the provider does not start.
        Exception: onnxruntime's own, where it refuses the model.
    """
    first = providers[0] if isinstance(providers[0], str) else providers[0][0]
    words = {"providers": list(providers), "disabled_optimizers": list(disabled), "enable_fallback": 0}
    try:
        session = runtime.InferenceSession(source, options, **words)
    except (RuntimeError, ValueError) as error:  # what onnxruntime says of a model is neither
        if first == CPU:
            raise
        raise _does_not_start(first, one_line(error)) from error
    session.disable_fallback()
    if first not in session.get_providers():
        raise _does_not_start(first, "")
    return session


def load_libraries(runtime: Any) -> str:
    """Load NVIDIA's libraries from their wheels, where this onnxruntime can, so that no LD_LIBRARY_PATH is needed."""
    if not hasattr(runtime, "preload_dlls"):
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runtime.preload_dlls()
    return printed.getvalue().strip().partition("\n")[0]


@functools.cache
def _start_error(runtime: Any, name: str) -> QdqError | None:
    """What keeps a provider from starting a session of one node; None where it starts. It is asked once in a process.

    Asked again, onnxruntime says it again on stderr, and of TensorRT without its libraries the process ends.
    """
    failed = load_libraries(runtime)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # onnxruntime 1.20 goes over to the CPU, and prints so
            open_session(runtime, one_node_model(), options, (name, CPU))
    except QdqError as error:
        return _does_not_start(name, failed) if failed else error
    return None


def one_node_model() -> bytes:
    """A model that gives the one number that it is fed: `x` to `y`, float32 of shape [1]."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "one_node", values[:1], values[1:])
    model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", _OPSET)])
    made: bytes = model.SerializeToString()
    return made


def _does_not_start(name: str, reason: str) -> QdqError:
    return QdqError("--provider", f"{name} does not start on this machine{f' ({reason})' if reason else ''}", _TODO)
