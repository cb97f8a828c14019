# SPDX-License-Identifier: Apache-2.0
"""Cases of the training bench: a Q/DQ network with a loss after it, and a batch, in a folder that any worker reads.

forward.onnx: the graph; case.json: parameters, loss, shapes and types, as `Forward` has them; batch.npz: all it is fed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # another interpreter has qdqtool not installed

if TYPE_CHECKING:
    from qdqtool.autodiff.backend import Forward


def write_case(folder: Path, forward: Forward, batch: Mapping[str, Any]) -> None:
    """Write a forward and what it is fed."""
    import numpy as np
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(forward.proto, str(folder / "forward.onnx"))
    np.savez(folder / "batch.npz", **batch)
    facts = {
        "parameters": list(forward.parameters),
        "loss": forward.loss,
        "auxiliary": list(forward.auxiliary),
        "shapes": {name: list(shape) for name, shape in forward.shapes.items()},
        "types": dict(forward.types),
    }
    (folder / "case.json").write_text(json.dumps(facts))


def read_case(folder: Path) -> tuple[Forward, dict[str, Any]]:
    """What `write_case` wrote."""
    import numpy as np
    import onnx

    from qdqtool.autodiff.backend import Forward

    facts = json.loads((folder / "case.json").read_text())
    names = tuple(facts["parameters"]), facts["loss"], tuple(facts["auxiliary"])
    shapes = {name: tuple(shape) for name, shape in facts["shapes"].items()}
    proto = onnx.load(str(folder / "forward.onnx"))
    return Forward(proto, *names, shapes, facts["types"]), dict(np.load(folder / "batch.npz"))
