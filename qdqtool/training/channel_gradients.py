# SPDX-License-Identifier: Apache-2.0
"""Gradients of a network's outputs by some of its constants, sample by sample and without labels: no training.

What is differentiated is v' y, y the tensors in which the network ends and v random; see `end_probes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backends import BackendName, make_backend
from qdqtool.graph.model import Model
from qdqtool.runtime.executor import Executor
from qdqtool.training.end_probes import draw_probes, with_probes
from qdqtool.training.shapes import make_forward, run_once
from qdqtool.training.student import Session, SessionOptions
from qdqtool.training.training_graph import make_form

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
_SEED = 20


def channel_gradients(
    model: Model,
    names: Sequence[str],
    samples: Iterable[Mapping[str, Array]],
    backend: BackendName = "auto",
) -> Iterator[dict[str, Float64]]:
    """For each sample, constant -> gradient of v' y, flattened; a constant that no end depends on is left out.

    Args:
        model: external data not loaded; Q/DQ pass gradients on where they do not cut off.
        names: float32 initializers that nothing but Mul reads.
        samples: inputs, all of the same shapes; gradients of those that are one batch are summed up.
        backend: what makes gradients.

    Raises:
        QdqError: an operator without gradient, or onnxruntime cannot run the model.
    """
    maker = make_backend(backend)
    form = make_form(model, operators=maker.operators())
    draw = np.random.default_rng(_SEED)
    session: Session | None = None
    for sample in samples:
        feed = {value.name: sample[value.name] for value in form.proto.graph.input}
        if session is None:
            forms = Model(form.proto)
            probed = with_probes(form, form.proto, run_once(forms, feed))
            values = Executor(forms, [end.tensor for end in probed.ends], "the training form")
            probes = draw_probes(probed.ends, values.run(feed), np.random.default_rng(_SEED))
            forward = make_forward(probed.proto, names, probed.scalar, (), {**feed, **probes})
            gradients = maker.build(forward)
            fixed = {t.name: onnx.numpy_helper.to_array(t) for t in probed.proto.graph.initializer if t.name in names}
            session = Session(Model(gradients.proto), list(gradients.gradients.values()), SessionOptions())
        probes = draw_probes(probed.ends, values.run(feed), draw)
        found = session.run({**feed, **probes, **fixed})
        yield {
            name: np.asarray(array, np.float64).reshape(-1)
            for name, array in zip(gradients.gradients, found, strict=True)
        }
