# SPDX-License-Identifier: Apache-2.0
"""Types and formats of tensors as engine files spell them: `Int8`, `Half`, `Row major linear FP16 format`."""

from __future__ import annotations

import re

# The order decides: uint8 holds int8, and bfloat16 holds float.
_TYPES = (
    ("uint8", "UINT8", 8),
    ("int8", "INT8", 8),
    ("int4", "INT4", 4),
    ("int32", "INT32", 32),
    ("int64", "INT64", 64),
    ("ue8m0", "UE8M0", 8),
    ("fp8", "FP8", 8),
    ("fp4", "FP4", 4),
    ("bf16", "BF16", 16),
    ("bfloat", "BF16", 16),
    ("fp16", "FP16", 16),
    ("half", "FP16", 16),
    ("fp32", "FP32", 32),
    ("float", "FP32", 32),
    ("bool", "BOOL", 8),
)
_BITS = {name: bits for _, name, bits in _TYPES}
FLOATS = frozenset({"FP32", "FP16", "BF16"})

_LANES = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32}
_WIDE = re.compile(r"([a-z-]+) wide channel vectorized row major")
_MAJOR = re.compile(r"channel major.*?(?:channel % (\d+) == 0|$)")
_SHORT = re.compile(r"\(([a-z0-9]+)\)")


def data_type(text: str) -> str:
    """INT8, FP16, ... of a type or a format as a file writes it; "" where it names none."""
    words = text.lower()
    return next((name for word, name, _ in _TYPES if word in words), "")


def bits_of(name: str) -> int | None:
    """How many bits a value of a type takes; None for a type that is not known."""
    return _BITS.get(name)


def short_format(text: str) -> str:
    """`CHW32` for `Thirty-two wide channel vectorized row major Int8 format`; "" where the text tells no format."""
    words = text.strip().lower()
    if named := _SHORT.match(words):
        return {"linear": "CHW", "nhwc": "HWC"}.get(named[1], named[1])
    if (wide := _WIDE.search(words)) and wide[1] in _LANES:
        return f"CHW{_LANES[wide[1]]}"
    if major := _MAJOR.search(words):
        return f"HWC{major[1] or ''}"
    return "CHW" if "row major" in words else ""
