# SPDX-License-Identifier: Apache-2.0
"""Runs in the rig's Python: our back end on NVIDIA's bindings, called through their virtual table. Prints JSON.

The parser and the builder are the stand-in's, as the real ones need libraries that a rig has not; the calibrator's
class is NVIDIA's, its callbacks are called from below it, and Polygraphy copies with its own CUDA wrapper.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorrt as real

from qdqtool.calibration.tensorrt.backend import Request
from qdqtool.calibration.tensorrt.calibrator import TensorrtBackend
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from tests.calibration.tensorrt.backend_subjects import NET, SCENARIOS, batches, model, outcome
from tests.fake_tensorrt import Fake, installed


@contextlib.contextmanager
def rig() -> Iterator[Fake]:
    """The stand-in with NVIDIA's calibrators, driven through C++."""
    import drive
    from polygraphy.cuda import cuda

    with installed(real.__version__, calibrators=real, callbacks=drive.Calibration) as fake:
        cuda.G_CUDA = None  # so that Polygraphy loads the rig's library by itself
        yield fake


def facts() -> dict[str, Any]:
    """Outcomes of all scenarios, what was read from the pointers, and what happens without the stand-in."""
    found: dict[str, Any] = {"version": real.__version__}
    request = Request(Model(model(NET)), where="net")
    try:
        TensorrtBackend().calibrate(request, batches())
    except QdqError as error:
        found["alone"] = [error.exit_code, error.line()]
    if not hasattr(real, "IInt8EntropyCalibrator2"):
        return found
    with rig() as fake:
        found["outcomes"] = {name: outcome(TensorrtBackend(), name) for name in SCENARIOS}
        fake.calls.clear()
        fake.fed.clear()
        TensorrtBackend().calibrate(request, batches())
        pairs = zip(fake.fed, batches(), strict=True)
        found["fed_as_given"] = all(np.array_equal(fed["x"], given["x"]) for fed, given in pairs)
        found["calls"] = fake.calls
    return found


sys.stdout.write(json.dumps(facts()))
