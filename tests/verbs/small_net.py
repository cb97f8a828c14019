# SPDX-License-Identifier: Apache-2.0
"""A little network for the verbs that run models, and how it is written to a folder with data. No tests here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.graphs import SMALL_NET, model_of

NET = SMALL_NET


def write_net(folder: Path, opset: int = 13) -> Path:
    """The network as `folder/m.onnx`, with seeded data for it as `folder/d.npz`."""
    path = folder / "m.onnx"
    path.write_bytes(model_of(NET, opset).SerializeToString())
    np.savez(folder / "d.npz", x=np.random.default_rng(3).normal(size=(6, 4, 8, 8)).astype(np.float32))
    return path
