# SPDX-License-Identifier: Apache-2.0
"""How far two files of one verb lie apart: bytes, numbers, scales, nodes. What cuda_provider.py prints of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

_TIMES = ("seconds", "ms")
_TINY = 1e-30


def difference(one: Path, other: Path) -> dict[str, Any]:
    """What differs between two files, with `same` for the bytes; times in JSON do not count."""
    first, second = one.read_bytes(), other.read_bytes()
    if first == second:
        return {"same": True}
    if one.suffix == ".onnx":
        return {"same": False, **_models(onnx.load_from_string(first), onnx.load_from_string(second))}
    if one.suffix == ".npz":
        with np.load(one) as left, np.load(other) as right:
            return _arrays(dict(left), dict(right))
    try:
        leaves = [dict(_leaves(json.loads(text))) for text in (first, second)]
    except ValueError:
        leaves = [dict(_lines(text.decode())) for text in (first, second)]
    return _numbers(*leaves)


def _numbers(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Equal numbers, the largest relative difference, and what else differs."""
    shared = [key for key in first if key in second]
    numbers = [key for key in shared if all(isinstance(one[key], int | float) for one in (first, second))]
    apart = {key: _relative(first[key], second[key]) for key in numbers}
    words = [key for key in shared if key not in apart and first[key] != second[key]]
    most = max(apart, key=lambda key: apart[key], default="")
    found: dict[str, Any] = {"same": False, "numbers": len(numbers), "equal": sum(one == 0 for one in apart.values())}
    if apart and apart[most]:
        found |= {"largest": float(f"{apart[most]:.2g}"), "at": f"{most}: {first[most]!r} {second[most]!r}"}
    others = [*words, *sorted(first.keys() ^ second.keys())]
    if others:
        found |= {
            "other words": len(others),
            "such as": f"{others[0]}: {first.get(others[0])!r} {second.get(others[0])!r}",
        }
    elif found["equal"] == len(numbers):
        return {"same": True}
    return found


def _models(first: onnx.ModelProto, second: onnx.ModelProto) -> dict[str, Any]:
    """Nodes by output and operator, scales by bits, integers by steps, other arrays by relative difference."""
    nodes = [{(node.op_type, *node.output) for node in model.graph.node} for model in (first, second)]
    found: dict[str, Any] = {"nodes": len(nodes[0]), "other nodes": len(nodes[0] ^ nodes[1])}
    arrays = [
        {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer} for model in (first, second)
    ]
    made = _arrays(*arrays)
    del made["same"]
    scales = [name for name in arrays[0] if name.endswith("_scale") and name in arrays[1]]
    scales = [name for name in scales if arrays[0][name].shape == arrays[1][name].shape]
    equal = sum(arrays[0][name].tobytes() == arrays[1][name].tobytes() for name in scales)
    widest = max((_apart(arrays[0][name], arrays[1][name], each=True) for name in scales), default=0.0)
    return found | {"scales": len(scales), "scales equal": equal, "scales apart": float(f"{widest:.2g}")} | made


def _arrays(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays that are equal, and the largest difference: of floats beside the largest value, of integers in steps."""
    shared = [name for name in first if name in second and first[name].shape == second[name].shape]
    equal = [name for name in shared if first[name].tobytes() == second[name].tobytes()]
    floats = [name for name in shared if first[name].dtype.kind == "f" and name not in equal]
    codes = [name for name in shared if first[name].dtype.kind in "iu" and name not in equal]
    found: dict[str, Any] = {"same": len(equal) == len(first) == len(second), "arrays": len(first), "equal": len(equal)}
    if floats:
        most = max(_apart(first[name], second[name], each=False) for name in floats)
        found["largest of floats"] = float(f"{most:.2g}")
    if codes:
        steps = [np.abs(first[name].astype(np.int64) - second[name].astype(np.int64)) for name in codes]
        found["integers that differ"] = int(sum((one > 0).sum() for one in steps))
        found["by at most"] = int(max(one.max() for one in steps))
    if len(shared) < max(len(first), len(second)):
        found["others"] = sorted(first.keys() ^ second.keys())[:3]
    return found


def _apart(one: Any, other: Any, *, each: bool) -> float:
    scale = np.abs(one) if each else np.abs(one).max()
    return float((np.abs(one.astype(np.float64) - other) / np.maximum(scale, _TINY)).max()) if one.size else 0.0


def _relative(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) / max(abs(one), abs(other), _TINY)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in _TIMES:
                yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            name = next((inner[key] for key in ("tensor", "node") if isinstance(inner, dict) and key in inner), number)
            yield from _leaves(inner, f"{path}[{name}]")
    else:
        yield path, value


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    """A calibration cache: tensor and scale as hexadecimal float32; other text by its lines."""
    for number, line in enumerate(text.splitlines()):
        name, found, word = line.rpartition(": ")
        try:
            yield name, float(np.array(int(word, 16), np.uint32).view(np.float32)) if found else line
        except (ValueError, OverflowError):
            yield str(number), line
