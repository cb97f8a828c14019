# SPDX-License-Identifier: Apache-2.0
"""One model and one data set through both back ends of `ptq`, scale by scale. Not which of the two is right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.cache.diff import diff
from qdqtool.cache.text import Cache, scale_hex
from qdqtool.display import Cells, Displayed, counted, named
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.io import ModelSource
from qdqtool.verbs.ptq import open_data, open_job, run_job
from qdqtool.verbs.ptq_options import PtqOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader

_SHOWN = 40


@dataclass(frozen=True)
class ScalePair:
    """One tensor with two scales."""

    name: str
    embedded: np.float32
    tensorrt: np.float32

    @property
    def ratio(self) -> float:
        """TensorRT's over ours."""
        return float(self.tensorrt) / float(self.embedded)

    @property
    def ulps(self) -> int:
        """How many float32 numbers they are apart."""
        return abs(int(self.embedded.view(np.uint32)) - int(self.tensorrt.view(np.uint32)))


@dataclass(frozen=True, repr=False)
class BackendComparison(Displayed):
    """Two caches of the same model, data and method.

    Attributes:
        tensorrt: the version that was run, build included.
        method: of both.
        samples: how many each of them saw.
        equal: tensors with the same bits.
        near: those one unit in the last place apart.
        different: those further apart, the largest ratio first.
        only_embedded: tensors that TensorRT gives no scale.
        only_tensorrt: names in TensorRT's cache alone: constants, and those that it makes up.
    """

    tensorrt: str
    method: str
    samples: int
    equal: tuple[str, ...]
    near: tuple[ScalePair, ...]
    different: tuple[ScalePair, ...]
    only_embedded: tuple[str, ...]
    only_tensorrt: tuple[str, ...]

    def headline(self) -> str:
        """How many scales are equal, near and different."""
        counts = f"{len(self.equal)} equal, {len(self.near)} within 1 ulp, {len(self.different)} different"
        return f"{counts}; method {self.method}, {counted(self.samples, 'sample')}, TensorRT {self.tensorrt}"

    def summary(self, *, every: bool = False) -> list[str]:
        """What `qdqtool ptq --compare-backends` prints: the scales that differ, most first, then the counts.

        Args:
            every: whether all of them are shown.
        """
        pairs = [*self.different, *self.near]
        shown = pairs if every else pairs[:_SHOWN]
        lines = []
        if pairs:
            width = max(6, *(len(pair.name) for pair in shown))
            lines.append(f"{'tensor':<{width}}  {'embedded':<13}  {'tensorrt':<13}  ratio")
            lines += [
                f"{pair.name:<{width}}  {pair.embedded:<13.7g}  {pair.tensorrt:<13.7g}  {pair.ratio:.7g}"
                for pair in shown
            ]
            if len(pairs) > len(shown):
                lines.append(f"and {len(pairs) - len(shown)} more (all of them with -v)")
        for side, names in (("embedded", self.only_embedded), ("tensorrt", self.only_tensorrt)):
            if names:
                lines.append(f"in {side} alone: {named(names, _SHOWN)}")
        return [*lines, f"{self.headline()}; nothing written"]

    def rows(self) -> Cells:
        """One row for each scale that differs, most first."""
        pairs = [*self.different, *self.near]
        rows = [(one.name, f"{one.embedded:.7g}", f"{one.tensorrt:.7g}", f"{one.ratio:.7g}") for one in pairs]
        return [("tensor", "embedded", "tensorrt", "ratio"), *rows] if rows else ()

    def to_json(self) -> dict[str, Any]:
        """Counts first, then every scale that differs, both bits and the ratio."""
        groups = {"equal": self.equal, "within_1_ulp": self.near, "different": self.different}
        alone = {"only_embedded": self.only_embedded, "only_tensorrt": self.only_tensorrt}
        return {
            "tensorrt": self.tensorrt,
            "method": self.method,
            "samples": self.samples,
            "counts": {name: len(group) for name, group in {**groups, **alone}.items()},
            "differences": [
                {
                    "tensor": pair.name,
                    "embedded": scale_hex(pair.embedded),
                    "tensorrt": scale_hex(pair.tensorrt),
                    "ratio": pair.ratio,
                    "ulps": pair.ulps,
                }
                for pair in (*self.different, *self.near)
            ],
            **{name: list(group) for name, group in alone.items()},
        }


def compare_backends(model: ModelSource, data: Data | DataLoader, options: PtqOptions) -> BackendComparison:
    """Calibrate with both back ends and hold their scales side by side; nothing is written.

    Args:
        model: as for `ptq`.
        data: as for `ptq`; it is walked twice.
        options: as for `ptq`; the back end in it does not count.

    Raises:
        QdqError: what either back end refuses, TensorRT's before any data is read.
        MissingPackageError: no TensorRT.
    """
    theirs = open_job(model, replace(options, backend="tensorrt"))
    ours = open_job(model, replace(options, backend="embedded"))
    reading, _ = with_known(options, theirs.opened, data, anew=True)
    loader = open_data(replace(theirs, options=reading), data)
    made = run_job(theirs, loader)
    run = made.table.provenance
    return compared(run_job(ours, loader).cache, made.cache, run.tensorrt, run.method, run.samples)


def compared(embedded: Cache, tensorrt: Cache, version: str, method: str, samples: int) -> BackendComparison:
    """Two caches as a `BackendComparison`; tensors in the order of the first."""
    found = diff(embedded, tensorrt)
    pairs = [ScalePair(change.name, change.first, change.second) for change in found.changed]
    far = sorted((pair for pair in pairs if pair.ulps > 1), key=lambda pair: -max(pair.ratio, 1 / pair.ratio))
    near = tuple(pair for pair in pairs if pair.ulps == 1)
    alone = (tuple(found.only_first), tuple(found.only_second))
    return BackendComparison(version, method, samples, found.same, near, tuple(far), *alone)
