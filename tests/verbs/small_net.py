# SPDX-License-Identifier: Apache-2.0
"""A little network for the verbs that run models, and how it is written to a folder with data. No tests here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graphs import model_of

NET = """net (float[N,4,8,8] x) => (float[N,3] y) <float[4,4,3,3] w1, float[4] b1, float[4,4,3,3] w2, float[4,3] fc>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
 r1 = Relu(c1)
 c2 = Conv<pads=[1,1,1,1]>(r1, w2)
 r2 = Relu(c2)
 g = GlobalAveragePool(r2)
 f = Flatten(g)
 y = Gemm(f, fc)
}"""


def write_net(folder: Path, opset: int = 13) -> Path:
    """The network as `folder/m.onnx`, with seeded data for it as `folder/d.npz`."""
    path = folder / "m.onnx"
    path.write_bytes(model_of(NET, opset).SerializeToString())
    np.savez(folder / "d.npz", x=np.random.default_rng(3).normal(size=(6, 4, 8, 8)).astype(np.float32))
    return path
