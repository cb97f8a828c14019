# SPDX-License-Identifier: Apache-2.0
"""Samples that come as dictionaries: Polygraphy's loader scripts and JSON inputs. No checks against a model here."""

from __future__ import annotations

import base64
import binascii
import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qdqtool.data.arrays import array_of_bytes
from qdqtool.data.model_inputs import Item
from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, parse_json, read_text

_INPUTS = FileKind("Polygraphy's JSON inputs", 0, "write it with --save-inputs")  # its bound is --max-data
_LEGACY = "polygraphy_serialized_json_type"  # how older files mark a value: {"__polygraphy_encoded_<type>": this}
_SCRIPT = re.compile(r"(?s)(?P<path>.*\.py)(?::(?P<function>\w+))?")


def split_script(text: str) -> tuple[Path, str] | None:
    """The path and the function of ``loader.py`` or ``loader.py:function``, None where the text names no script."""
    match = _SCRIPT.fullmatch(text)
    return (Path(match["path"]), match["function"] or "load_data") if match else None


def load_script(path: Path, function: str) -> Callable[[], Iterable[Any]]:
    """Run a loader script and return what makes its samples, anew on each call.

    The module gets a name of its own, so that a script called json.py is not mistaken for the library. While it loads,
    it finds modules that lie beside it, as with Polygraphy.

    Raises:
        QdqError: the script cannot be run or has no such function.
    """
    module = _module(path)
    loader = getattr(module, function, None)
    if loader is None:
        names = [name for name in vars(module) if callable(getattr(module, name))]
        near = difflib.get_close_matches(function, names, 1)
        guess = f", did you mean {near[0]}" if near else ""
        raise QdqError(
            path, f"defines no {function}{guess}", f"define def {function}(), or name another: {path.name}:FUNCTION"
        )
    return loader if callable(loader) else lambda: loader


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise QdqError(path, "does not exist", "give the script that defines load_data()")
    name = "qdqtool_data_" + hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise QdqError(path, "is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and multiprocessing in a script look their module up
    try:
        with _importing_from(str(path.resolve().parent)):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise QdqError(path, f"fails when it is loaded ({_reason(error)})", "run it with python, or add -v") from error
    return module


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the script took it out itself
            sys.path.remove(folder)


def items_of(where: object, make: Callable[[], Iterable[Any]]) -> Iterator[Item]:
    """The samples that a loader makes, as arrays by input name.

    Raises:
        QdqError: the loader fails (with its message), or a sample is not a mapping of names to arrays of numbers.
    """
    count = 0
    try:
        for item in make():
            yield _arrays(where, count, item)
            count += 1
    except QdqError:
        raise
    except Exception as error:
        raise QdqError(
            where, f"fails at sample {count} ({_reason(error)})", "fix the loader; -v shows where"
        ) from error


def _arrays(where: object, count: int, item: Any) -> Item:
    if not isinstance(item, Mapping):
        kind = type(item).__name__
        raise QdqError(where, f"sample {count} is a {kind}, not {{input name: array}}", "yield a dict of arrays")
    arrays = {str(name): np.asarray(value) for name, value in item.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise QdqError(
                where,
                f"input {name!r} of sample {count} is not an array of numbers ({array.dtype})",
                "yield numpy arrays",
            )
    return arrays


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def read_json(path: Path, max_bytes: int) -> list[Item]:
    """The samples of a file that Polygraphy's `save_json` wrote: a mapping from input name to array, or a list of them.

    Only arrays are read (no pickle, no tensors of other libraries).

    Raises:
        QdqError: not such a file, or larger than `max_bytes`.
    """
    if path.is_file() and path.stat().st_size > max_bytes:
        raise QdqError(path, f"is larger than the {max_bytes} bytes allowed", "raise --max-data")
    text = read_text(path, replace(_INPUTS, max_bytes=max_bytes))
    document = parse_json(text, path, _INPUTS, lambda pairs: _object(path, dict(pairs)))
    samples = document if isinstance(document, list) else [document]
    return list(items_of(path, lambda: samples))


def _object(path: Path, value: dict[str, Any]) -> Any:
    kind = value.get("polygraphy_class")
    if value.get("__polygraphy_encoded_ndarray") == _LEGACY:
        kind = "ndarray"
    if kind is None:
        return value
    if kind != "ndarray":
        raise ValueError(f"it holds a {kind!r}, only ndarray is read")
    try:
        data = base64.b64decode(value["array"], validate=True)
    except (KeyError, TypeError, binascii.Error):
        raise ValueError("an array is not base64") from None
    return array_of_bytes(path, data)
