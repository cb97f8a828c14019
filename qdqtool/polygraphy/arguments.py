# SPDX-License-Identifier: Apache-2.0
"""What loaders are given: values, or callables that return them; and how faults are reported."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from polygraphy import util
from polygraphy.logger import G_LOGGER

from qdqtool.errors import QdqError

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon as gs

    from qdqtool.cache.text import Cache
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.scales import ScaleTable

    Model: TypeAlias = "onnx.ModelProto | gs.Graph | Callable[[], onnx.ModelProto | gs.Graph]"
    Path: TypeAlias = "str | os.PathLike[str]"
    AnyPath: TypeAlias = "Path | Callable[[], Path]"
    AnyCache: TypeAlias = "Cache | Path | Callable[[], Cache | Path]"
    AnyTable: TypeAlias = "ScaleTable | Path | Callable[[], ScaleTable | Path]"
    AnyData: TypeAlias = "Data | DataLoader | Callable[[], Data | DataLoader]"

_Result = TypeVar("_Result")


def keep_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of a loader, which keeps each argument as the attribute of its name, such as `_model`."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def kept(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        loader, *values = given.arguments.items()
        for name, value in values:
            setattr(loader[1], f"_{name}", value)

    return kept


def report_errors(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """The method with its faults reported in Polygraphy's way."""

    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> _Result:
        try:
            return call(*args, **kwargs)
        except QdqError as error:
            line = error.line()
        return G_LOGGER.critical(line)  # type: ignore[no-any-return]

    return wrapped


def loads(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """The `call_impl` of a loader: called by `__call__` alone, its faults reported in Polygraphy's way."""
    return util.check_called_by("__call__")(report_errors(call))  # type: ignore[no-any-return]


def value_of(given: Any) -> Any:
    """What was given, or what the callable that was given returns."""
    value, _ = util.invoke_if_callable(given)
    return value


def model_of(given: Any) -> Any:
    """The model; a path is refused, since the result would have to be a path as well."""
    model = value_of(given)
    if isinstance(model, (str, os.PathLike)):
        raise QdqError(model, "is a path, and a loader takes the model itself", "give OnnxFromPath of it")
    return model


def data_of(given: Any) -> Any:
    """What a loader takes; a callable that makes generators stays as it is, so that it can be walked again."""
    value = value_of(given)
    return given if isinstance(value, Iterator) else value
