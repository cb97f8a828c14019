# SPDX-License-Identifier: Apache-2.0
"""The back ends' part of the training bench, by whichever interpreter holds the wheel: gradients, and their operators.

training_backends.py gradients BACKEND FOLDER | operators BACKEND
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from training_cases import read_case

from qdqtool.graph.model import Model


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


def main(argv: list[str]) -> None:
    """Do one of the two."""
    what, name, *rest = argv
    if what == "operators":
        print(json.dumps(list(backend_of(name).operators())))
    else:
        gradients(name, Path(rest[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
