# SPDX-License-Identifier: Apache-2.0
"""Float types as options name them. `-h` reads this: no onnx here."""

from __future__ import annotations

from typing import Literal

HalfType = Literal["fp16", "bf16"]
Rest = Literal["fp16", "bf16", "fp32"]
