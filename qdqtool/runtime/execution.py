# SPDX-License-Identifier: Apache-2.0
"""How onnxruntime is to run, as options have it. What the words mean: installed.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """The base of options of what runs models over data; its fields are given by name.

    Attributes:
        provider: execution provider of onnxruntime (default cpu): cpu, cuda or tensorrt.
        progress: whether a bar is drawn on stderr; None draws one where stderr is a terminal.
    """

    provider: str = "cpu"
    progress: bool | None = None
