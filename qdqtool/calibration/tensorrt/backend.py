# SPDX-License-Identifier: Apache-2.0
"""What a back end of `ptq` takes and gives, whoever computes the scales. No back end is here.

Two keep it: `verbs.ptq.EmbeddedBackend` (onnxruntime and our own search) and `backends.trt` (NVIDIA's calibrator).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from qdqtool.cache.text import Cache
from qdqtool.graph.model import Model
from qdqtool.scales import ScaleTable

BACKENDS = ("embedded", "tensorrt")


@dataclass(frozen=True)
class Request:
    """A plain model whose tensors want scales.

    Attributes:
        model: external data not loaded; no back end changes it.
        where: what messages call it.
        method: mse, max, entropy, ... as `parse_method` reads it.
    """

    model: Model
    where: str = "model"
    method: str = "entropy"


@dataclass(frozen=True)
class Calibrated:
    """What a back end found.

    Attributes:
        table: one scale per float32 tensor, the tensors without one and why, and facts: `method`, `samples`, and `data`
            where the batches come from a `DataLoader`. Nothing in it differs between two equal runs.
        cache: the cache that the back end itself wrote, with the scales it shared; None where it writes none.
        written: that cache byte for byte.
    """

    table: ScaleTable
    cache: Cache | None = None
    written: bytes = b""


class Backend(Protocol):
    """Batches through a model to one scale per tensor."""

    @property
    def name(self) -> str:
        """One of `BACKENDS`."""
        ...

    def check(self, request: Request) -> None:
        """Say no before any data is read.

        Raises:
            QdqError: this back end cannot do the request; a package it needs is missing (`MissingPackageError`).
        """
        ...

    def calibrate(self, request: Request, batches: Iterable[Mapping[str, Any]]) -> Calibrated:
        """Use every batch, in order, or say why not.

        Raises:
            QdqError: what `check` refuses; no batches; whatever goes wrong with one of them, in its own words.
        """
        ...
