# SPDX-License-Identifier: Apache-2.0
"""What a calibration cache loses at the outputs, simulated on some of its samples. How it is made: ptq.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.cache.text import Cache
from qdqtool.data.single_samples import first_samples
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.model_bytes import size_of
from qdqtool.measuring.answers import MOST_BYTES, Answers
from qdqtool.measuring.keep_float import OutputLoss
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.simulate import simulated_model
from qdqtool.verbs.simulate_options import SimulateOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import DataLoader
    from qdqtool.trtversion import TrtVersion

SAMPLES = 4
ANSWERED = 8  # samples whose best classes or boxes are compared


def cache_loss(
    opened: Model, cache: Cache, on: tuple[str, TrtVersion], loader: DataLoader, provider: str = "cpu"
) -> OutputLoss:
    """The loss at the outputs of a plain model with its cache, every layer with a scale in INT8."""
    if loader.once:
        return OutputLoss(None, reason="the data can be read once only")
    if size_of(opened.proto) > MOST_BYTES or len(opened.files) > 1:
        return OutputLoss(None, reason="the model is large")
    try:
        simulated = simulated_model(opened.proto, SimulateOptions(on[0], on[1], cache=cache))
        answered = first_samples(loader, ANSWERED)
        samples = [dict(batch) for batch in first_samples(answered, SAMPLES)]
        plain, judged = (Model(one, simulated.folder) for one in (simulated.plain, simulated.model))
        reference = OutputReference.of(ObservableModel(plain, provider, opened.name), samples)
        executor = Executor(judged, reference.outputs, opened.name, provider)
        got = [tuple(found[name] for name in reference.outputs) for found in map(executor.run, samples)]
        answers = Answers.of(plain, list(map(dict, answered)), opened.name, provider)
    except QdqError as error:
        return OutputLoss(None, reason=error.reason)
    return OutputLoss(reference.loss_of(got), len(samples), "", answers.loss(judged), answers.reads)
