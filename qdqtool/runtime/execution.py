# SPDX-License-Identifier: Apache-2.0
"""How onnxruntime is to run, as options have it. What the words mean: installed.py."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.options import Option, check_choices, option

PROVIDER_WORDS = ("cpu", "cuda", "tensorrt")
PROVIDER = Option("--provider", "execution provider of onnxruntime (default %(default)s)", choices=PROVIDER_WORDS)


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """The base of options of what runs models over data; its fields are given by name.

    Attributes:
        progress: whether a bar is drawn on stderr; None draws one where stderr is a terminal.
    """

    provider: str = option("cpu", PROVIDER)
    progress: bool | None = None

    def __post_init__(self) -> None:
        """Refuse a word that is none of an option's choices."""
        check_choices(self)
