# SPDX-License-Identifier: Apache-2.0
"""The back ends' part of the training bench, by whichever interpreter holds the wheel: gradients, and steps' price.

training_steps.py gradients BACKEND FOLDER | steps BACKEND FOLDER STEPS ROUNDS | operators BACKEND
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from training_nets import read_case

from qdqtool.graph.model import Model

RATE, CLIP = 1e-6, 1.0


def backend_of(name: str) -> Any:
    """A back end by its name."""
    from qdqtool.autodiff.backends import make_backend

    return make_backend(name)  # type: ignore[arg-type]


def gradients(name: str, folder: Path) -> None:
    """Write the loss and every gradient into NAME.npz."""
    import numpy as np

    forward, batch = read_case(folder)
    graph = backend_of(name).build(forward)
    run, values = _session(graph, forward)
    loss, *found = run({**batch, **values})
    answers = {f"g.{parameter}": one for parameter, one in zip(graph.gradients, found, strict=True)}
    np.savez(folder / f"{name}.npz", loss=np.asarray(loss), **answers)


def _session(graph: Any, forward: Any) -> tuple[Any, dict[str, Any]]:
    """A run of loss and gradients, and the parameters' values."""
    import numpy as np
    from onnx import numpy_helper

    from qdqtool.training.student import Session, SessionOptions

    session = Session(Model(graph.proto), [forward.loss, *graph.gradients.values()], SessionOptions())
    stored = {one.name: one for one in forward.proto.graph.initializer}
    return session.run, {name: np.array(numpy_helper.to_array(stored[name])) for name in forward.parameters}


def steps(name: str, folder: Path, count: int, rounds: int) -> None:
    """Print the loss and the CPU seconds of each round of steps: forward, backward, clipping, AdamW in NumPy."""
    import numpy as np

    from qdqtool.training.optimizers import AdamW, clip_to_norm
    from qdqtool.training.parameters import Parameters

    forward, batch = read_case(folder)
    graph = backend_of(name).build(forward)
    run, values = _session(graph, forward)
    parameters = Parameters(values)
    gradient, optimizer = np.zeros_like(parameters.vector), AdamW(parameters.vector.size)
    inside = [0.0]

    def step() -> float:
        fed = parameters.values()
        start = time.process_time()
        loss, *found = run({**batch, **fed})
        inside[0] += time.process_time() - start
        gradient[...] = 0
        parameters.gather(dict(zip(graph.gradients, found, strict=True)), fed, gradient)
        clip_to_norm(gradient, CLIP)
        direction = optimizer.direction(gradient)
        direction *= np.float32(RATE)
        parameters.vector[...] -= direction
        return float(loss)

    first = step()
    for _ in range(2):
        step()
    inside[0], spent = 0.0, []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            step()
        spent.append(time.process_time() - start)
    print(json.dumps({"loss": first, "seconds": spent, "inside": inside[0] / sum(spent)}))


def main(argv: list[str]) -> None:
    """Do one of the three."""
    what, name, *rest = argv
    if what == "operators":
        print(json.dumps(list(backend_of(name).operators())))
    elif what == "gradients":
        gradients(name, Path(rest[0]))
    else:
        steps(name, Path(rest[0]), int(rest[1]), int(rest[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
