# SPDX-License-Identifier: Apache-2.0
"""A cache as a script for Polygraphy's `--trt-npps`, and the ranges of such a script, which is read and never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from qdqtool.cache.amax import amax_of, cache_of
from qdqtool.cache.text import Cache
from qdqtool.errors import QdqError

_TABLE = "RANGES"
_OPENING = f"\n{_TABLE} = {{"
_SCRIPT = '''\
"""Sets the dynamic ranges of a TensorRT network, up to TensorRT 10.

polygraphy run model.onnx --trt --int8 --trt-npps THIS_FILE
"""

import sys

import tensorrt as trt

# Tensor name -> amax; TensorRT's scale is amax / 127.
RANGES = {
%s}


def postprocess(network):
    """Give every tensor that is named here its range; say how many names the network lacks."""
    if int(trt.__version__.split(".")[0]) >= 11:
        raise RuntimeError("TensorRT 11 has no dynamic ranges: quantize the model with Q/DQ nodes instead")
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    for layer in (network.get_layer(i) for i in range(network.num_layers)):
        tensors += [layer.get_output(i) for i in range(layer.num_outputs)]
    found = set()
    for tensor in tensors:
        amax = RANGES.get(tensor.name)
        if amax is not None:
            tensor.dynamic_range = (-amax, amax)
            found.add(tensor.name)
    lost = [name for name in RANGES if name not in found]
    if lost:
        words = (len(lost), len(RANGES), lost[0])
        sys.stderr.write("%%d of %%d ranges name no tensor of the network, such as %%s\\n" %% words)
'''


def write_polygraphy(cache: Cache) -> str:
    """A Python file whose `postprocess(network)` sets the ranges, for Polygraphy's `--trt-npps`."""
    return _SCRIPT % "".join(f"    {name!a}: {amax_of(scale)!r},\n" for name, scale in cache.entries.items())


def is_ranges_script(text: str) -> bool:
    """Whether a text looks like a script with ranges: what `write_polygraphy` and `peel --emit` write."""
    return _OPENING in f"\n{text}"


def read_polygraphy(text: str, where: object) -> Cache:
    """The cache without a header that the dictionary `RANGES` of a script stands for: tensor name -> amax.

    The dictionary is read as text, and only where it is one of names and numbers; no line of the script is run.

    Raises:
        QdqError: no such dictionary, several of them, one that is computed, or a range that `cache_of` refuses.
    """
    todo = f"give a script that `cache convert` or `peel --emit` wrote, with {_TABLE} = {{name: amax, ...}}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes in texts of the script, which are no matter here
            tree = ast.parse(text)
        tables = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_named(node)]
        if len(tables) != 1:
            raise QdqError(where, f"has {'several' if tables else 'no'} {_TABLE} at its top level", todo)
        pairs = list(_pairs(tables[0]))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        reason = f"{f'line {line}: ' if line else ''}{_TABLE} is not a dictionary of names and numbers"
        raise QdqError(where, reason, todo) from None
    return cache_of(pairs, where)


def _pairs(table: ast.expr) -> Iterator[tuple[str, object]]:
    """Names and values of a dictionary as it is written, one that is there twice included."""
    if not isinstance(table, ast.Dict):
        raise TypeError
    for key, value in zip(table.keys, table.values, strict=True):
        name = None if key is None else ast.literal_eval(key)
        if not isinstance(name, str):
            raise TypeError
        yield name, ast.literal_eval(value)


def _is_named(node: ast.Assign) -> bool:
    return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == _TABLE
