# SPDX-License-Identifier: Apache-2.0
"""The session of onnxruntime that tests run models in, apart from qdqtool's own: on one thread, Q/DQ as written.

With onnxruntime's own settings each session starts threads that wait by turning: two and a half times the CPU time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

PLAIN, BASIC, OPTIMIZED = "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"


def session_of(model: onnx.ModelProto | bytes | Path, level: str = BASIC) -> Any:
    """A quiet session; skips the test where there is no onnxruntime.

    Args:
        model: a model, its bytes, or its file.
        level: how much is optimized: PLAIN, BASIC or OPTIMIZED, onnxruntime's default.
    """
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(str(source) if isinstance(source, Path) else source, options)
