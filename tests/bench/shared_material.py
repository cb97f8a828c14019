# SPDX-License-Identifier: Apache-2.0
"""Where the scripts here find models and data that are no part of the project."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
"""The folder that `QDQTOOL_SHARED` names; default: `shared` beside the project."""
