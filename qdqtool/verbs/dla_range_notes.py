# SPDX-License-Identifier: Apache-2.0
"""What is said of operators that read two ranges where the DLA wants one. Which ones: `match/shared_scales.py`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqtool.emit.trtexec_flags import has_flag
from qdqtool.graph.view import GraphView
from qdqtool.match.shared_scales import unequal_inputs
from qdqtool.rulebook import RuleBook
from qdqtool.trtversion import TrtVersion

WANTED = "the DLA needs one range for both inputs of an elementwise layer (NvInfer.h, IElementWiseLayer)"


def notes_of_two_ranges(
    view: GraphView, rules: RuleBook, scales: Mapping[str, np.float32], version: TrtVersion
) -> list[str]:
    """A warning that names the first of these operators and the script to ask for; none where there is none."""
    found = unequal_inputs(view, rules, scales)
    if not found:
        return []
    first = view.producers[found[0]]
    many = f"1 operator reads two ranges, {first.name} ({first.op})"
    if len(found) > 1:
        many = f"{len(found)} operators read two ranges, such as {first.name} ({first.op})"
    kind = "trtexec" if has_flag("--layerPrecisions", version) else "polygraphy-script"
    return [f"{WANTED}, and {many}; run them in FP16: --emit {kind} writes a script that sets that"]
