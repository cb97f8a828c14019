# SPDX-License-Identifier: Apache-2.0
"""Sessions on the CPU share one arena, which gives back what nobody holds; others keep their own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtool.runtime.session import session_options, start_session
from qdqtool.runtime.shared_arena import ARENA, SharedArena
from tests.graphs import model_of

ENTRY = "session.use_env_allocators"
CPU = ["CPUExecutionProvider"]
SIDE = 1024


def squared() -> onnx.ModelProto:
    return model_of("agraph (float[n, n] x) => (float[n, n] z) { y = Mul (x, x) z = Relu (y) }")


def test_a_session_joins_and_its_values_outlive_it() -> None:
    options = session_options(onnxruntime, "ORT_ENABLE_ALL")
    session = start_session(onnxruntime, (squared(), {}, ["z"]), options, CPU, "model", few_runs=True)
    assert options.get_session_config_entry(ENTRY) == "1" and options.enable_cpu_mem_arena
    x = np.full((SIDE, SIDE), 3, np.float32)
    (found,) = session.run(None, {"x": x})
    del session
    ARENA.shrink()
    assert (found == 9).all()


@pytest.mark.parametrize("providers", [["CUDAExecutionProvider", *CPU], ["CUDAExecutionProvider"]])
def test_other_providers_keep_their_own(providers: list[str]) -> None:
    options = onnxruntime.SessionOptions()
    assert not SharedArena().join(onnxruntime, options, providers)


def test_an_onnxruntime_without_it_keeps_its_own() -> None:
    options = session_options(onnxruntime, "ORT_ENABLE_ALL")
    assert not SharedArena().join(SimpleNamespace(), options, CPU)


def test_nothing_is_shrunk_where_there_is_none() -> None:
    SharedArena().shrink()
