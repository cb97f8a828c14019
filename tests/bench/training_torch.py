# SPDX-License-Identifier: Apache-2.0
"""PyTorch's part of the training bench, by an interpreter of its own: gradients of a case, and the price of its steps.

    training_torch.py gradients FOLDER | steps FOLDER STEPS ROUNDS FORMAT | detector FOLDER

A case is a folder as `training_nets` writes it; see there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from training_interpreter import Interpreter

RATE, CLIP = 1e-6, 1.0  # small: all rounds do the same work


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


def steps(folder: Path, count: int, rounds: int, layout: str) -> None:
    """Print the loss and the CPU seconds of each round of steps: forward, backward, clipping, AdamW."""
    net, feed = _opened(folder)
    if layout == "channels_last":
        net.channels_last()
        feed = {k: v.contiguous(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in feed.items()}
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.0, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = net(feed)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        return float(loss.detach())

    timed(step, count, rounds)


def timed(step: Callable[[], float], count: int, rounds: int) -> None:
    """Print as JSON what rounds of `count` steps cost after three that warm up; the loss is that of the first."""
    first = step()
    for _ in range(2):
        step()
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            step()
        spent.append(time.process_time() - start)
    print(json.dumps({"loss": first, "seconds": spent}))


def main(argv: list[str]) -> None:
    """Do one of the three."""
    what, folder, *rest = argv
    if what == "gradients":
        gradients(Path(folder))
    elif what == "steps":
        steps(Path(folder), int(rest[0]), int(rest[1]), rest[2])
    else:
        from training_detector import write_detector

        write_detector(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
