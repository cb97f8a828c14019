# SPDX-License-Identifier: Apache-2.0
"""PyTorch's part of the training bench, by an interpreter of its own: gradients of a case, and a detector.

    training_torch.py gradients FOLDER | detector FOLDER

A case is a folder as `training_cases` writes it; see there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from training_interpreter import Interpreter


def _opened(folder: Path) -> tuple[Interpreter, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    facts = json.loads((folder / "case.json").read_text())
    model = onnx.load(str(folder / "forward.onnx"))
    feed = {name: torch.tensor(array) for name, array in np.load(folder / "batch.npz").items()}
    return Interpreter(model, facts["parameters"], facts["loss"], facts["shapes"]), feed


def gradients(folder: Path) -> None:
    """Write the loss (under "") and every gradient, by autograd, into torch.npz."""
    net, feed = _opened(folder)
    loss = net(feed)
    loss.backward()
    found = {name: value.grad.numpy() for name, value in net.trained.items()}
    np.savez(folder / "torch.npz", **{"loss": loss.detach().numpy(), **{f"g.{k}": v for k, v in found.items()}})


def main(argv: list[str]) -> None:
    """Do one of the two."""
    what, folder = argv
    if what == "gradients":
        gradients(Path(folder))
    else:
        from training_detector import write_detector

        write_detector(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
