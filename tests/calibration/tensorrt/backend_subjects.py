# SPDX-License-Identifier: Apache-2.0
"""What every back end of `ptq` is put through, as plain facts that a process can print. No assertions here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from qdqtool.calibration.tensorrt.backend import Backend, Request
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from tests.graphs import model_of

Batch = dict[str, np.ndarray]
Outcome = dict[str, Any]

NET = """net (float[2,4,8,8] x) => (float[2,3] y) <float[4,4,3,3] w1, float[4] b1, float[4,4,3,3] w2, float[64,3] fc>
{ c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1],strides=[2,2]>(r1, w2)
  f = Flatten(c2) y = MatMul(f, fc) }"""
ZERO = "net (float[2,4] x) => (float[2,4] y) { o = Sub(x, x) y = Add(x, o) }"
INDEXED = """net (float[2,4] x, int64[3] at) => (float[2,3] y) <float[4,3] w>
{ g = Gather<axis=1>(x, at) m = MatMul(x, w) y = Add(g, m) }"""


class LoaderError(Exception):
    """What a user's own loader raises."""


@dataclass(frozen=True)
class Scenario:
    """A model, a method and batches."""

    text: str
    batches: Callable[[], Iterable[Batch]]
    method: str = "entropy"


def model(text: str) -> onnx.ModelProto:
    """The model with weights in halves: with data in quarters every sum is exact, in whatever order it is made."""
    proto = model_of(text)
    for tensor in proto.graph.initializer:
        halves = np.rint(onnx.numpy_helper.to_array(tensor) * 2) / 2
        tensor.CopyFrom(onnx.numpy_helper.from_array(halves.astype(np.float32), tensor.name))
    return proto


def batches(count: int = 3, shape: tuple[int, ...] = (2, 4, 8, 8), growth: float = 2.0) -> list[Batch]:
    """Seeded batches in quarters, each larger than the one before: the first does not settle a range."""
    values = np.random.default_rng(7)
    made = [values.normal(size=shape) * growth**index for index in range(count)]
    return [{"x": (np.rint(one * 4) / 4).astype(np.float32)} for one in made]


def _broken_loader() -> Iterator[Batch]:
    yield batches()[0]
    raise LoaderError("the disk is gone")


def _with(index: int, change: Callable[[np.ndarray], np.ndarray]) -> list[Batch]:
    made = batches(4)
    made[index] = {"x": change(made[index]["x"])}
    return made


def _indexed() -> list[Batch]:
    return [{**one, "at": np.array([3, 1, 2], np.int64)} for one in batches(3, (2, 4))]


SCENARIOS: dict[str, Scenario] = {
    "plain": Scenario(NET, batches),
    "again": Scenario(NET, batches),
    "turned": Scenario(NET, lambda: batches()[::-1]),
    "one batch": Scenario(NET, lambda: batches(1)),
    "max": Scenario(NET, batches, "max"),
    "zero": Scenario(ZERO, lambda: batches(2, (2, 4))),
    "indexed": Scenario(INDEXED, _indexed),
    "no batches": Scenario(NET, list),
    "no such method": Scenario(NET, _broken_loader, "entropie"),
    "a loader that raises": Scenario(NET, _broken_loader),
    "another shape": Scenario(NET, lambda: _with(2, lambda x: x[:, :3])),
    "a missing input": Scenario(NET, lambda: [*batches(2), {"z": batches(1)[0]["x"]}]),
    "NaN": Scenario(NET, lambda: _with(1, lambda x: np.full_like(x, np.nan))),
}


def outcome(backend: Backend, name: str) -> Outcome:
    """What a back end makes of a scenario: bits by tensor, or the error that came out."""
    scenario = SCENARIOS[name]
    walked = 0

    def counted() -> Iterator[Batch]:
        nonlocal walked
        for batch in scenario.batches():
            walked += 1
            yield batch

    request = Request(Model(model(scenario.text)), where="net", method=scenario.method)
    before = request.model.proto.SerializeToString()
    try:
        found = backend.calibrate(request, counted())
    except QdqError as error:
        return {"error": "QdqError", "line": error.line(), "walked": walked}
    except LoaderError as error:
        return {"error": "LoaderError", "line": str(error), "walked": walked}
    table = found.table
    return {
        "error": "",
        "scales": {tensor: scale.hex() for tensor, scale in table.scales.items()},
        "unscaled": table.unscaled,
        "samples": table.provenance.samples,
        "method": table.provenance.method,
        "each": sorted({(scale.origin, scale.method, scale.samples) for scale in table.scales.values()}),
        "written": found.written.decode(),
        "walked": walked,
        "model_unchanged": request.model.proto.SerializeToString() == before,
    }
