# SPDX-License-Identifier: Apache-2.0
"""The bridge between ONNX and TensorRT's two INT8 worlds: Q/DQ graphs and calibration caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from qdqtool.cache.retarget import retarget
    from qdqtool.cache.text import Cache, read_cache, write_cache
    from qdqtool.calibration.engine import CalibrationOptions, calibrate
    from qdqtool.calibration.feed import FeedOptions
    from qdqtool.errors import QdqError
    from qdqtool.match.plan import Plan, PlanOptions
    from qdqtool.scales import Scale, ScaleTable
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.graft import GraftOptions, GraftResult, graft
    from qdqtool.verbs.insert import InsertOptions, InsertResult, insert, plan
    from qdqtool.verbs.opening import load_table
    from qdqtool.verbs.peel import PeelOptions, PeelResult, peel
    from qdqtool.verbs.ptq import PtqOptions, PtqResult, ptq

# name -> the room it lives in; imported when it is first asked for, so that `import qdqtool` costs nothing.
_HOMES = {
    "Cache": "cache.text",
    "CalibrationOptions": "calibration.engine",
    "FeedOptions": "calibration.feed",
    "GraftOptions": "verbs.graft",
    "GraftResult": "verbs.graft",
    "InsertOptions": "verbs.insert",
    "InsertResult": "verbs.insert",
    "PeelOptions": "verbs.peel",
    "PeelResult": "verbs.peel",
    "Plan": "match.plan",
    "PlanOptions": "match.plan",
    "PtqOptions": "verbs.ptq",
    "PtqResult": "verbs.ptq",
    "QdqError": "errors",
    "Scale": "scales",
    "ScaleTable": "scales",
    "TrtVersion": "trtversion",
    "calibrate": "calibration.engine",
    "graft": "verbs.graft",
    "insert": "verbs.insert",
    "load_table": "verbs.opening",
    "peel": "verbs.peel",
    "plan": "verbs.insert",
    "ptq": "verbs.ptq",
    "read_cache": "cache.text",
    "retarget": "cache.retarget",
    "write_cache": "cache.text",
}

__all__ = [
    "Cache",
    "CalibrationOptions",
    "FeedOptions",
    "GraftOptions",
    "GraftResult",
    "InsertOptions",
    "InsertResult",
    "PeelOptions",
    "PeelResult",
    "Plan",
    "PlanOptions",
    "PtqOptions",
    "PtqResult",
    "QdqError",
    "Scale",
    "ScaleTable",
    "TrtVersion",
    "calibrate",
    "graft",
    "insert",
    "load_table",
    "peel",
    "plan",
    "ptq",
    "read_cache",
    "retarget",
    "write_cache",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"qdqtool.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
