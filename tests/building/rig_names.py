# SPDX-License-Identifier: Apache-2.0
"""Runs in the rig's Python: which of the names that `build` uses NVIDIA's bindings have. Prints JSON."""

from __future__ import annotations

import json
import sys

import tensorrt


def found(dotted: str) -> bool:
    """Whether the module has `Class.attribute`."""
    value = tensorrt
    for name in dotted.split("."):
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


sys.stdout.write(json.dumps({"version": tensorrt.__version__, **{name: found(name) for name in sys.argv[1:]}}))
