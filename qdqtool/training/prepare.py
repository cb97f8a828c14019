# SPDX-License-Identifier: Apache-2.0
"""From a training form, data and options to a `TrainingRun`: loss, gradient graph, checks, parameters and limits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.data.loader import Batch
from qdqtool.graph.model import Model
from qdqtool.precision.assignment import REST_TYPES
from qdqtool.precision.rounded import rounded
from qdqtool.training.batches import Batches
from qdqtool.training.loss_scale import LOSS_SCALE, loss_scale_of
from qdqtool.training.losses.gradient_paths import reached_parameters
from qdqtool.training.losses.loss_graph import LossGraph
from qdqtool.training.mixed_precision import choose_training_types, typed_forward, with_loss_scale
from qdqtool.training.moving_scales import moving_maxima, with_watched_scales
from qdqtool.training.objective import Objective
from qdqtool.training.optimizers import make_optimizer
from qdqtool.training.options import TrainingOptions
from qdqtool.training.parameters import Parameters
from qdqtool.training.shapes import make_forward
from qdqtool.training.start_checks import check_gradients, check_same_forward
from qdqtool.training.student import GraphStudent, HeldOutLoss, SessionOptions
from qdqtool.training.training_graph import TrainingGraph
from qdqtool.training.training_run import TrainingRun
from qdqtool.training.weight_limits import at_bound, decayed, lr_multipliers, magnitude_bounds

Float32 = npt.NDArray[np.float32]

_RANGES_OF = 8  # held-out batches whose values say what half precision holds


def prepare(
    form: TrainingGraph,
    objective: Objective,
    batches: Batches,
    backend: GradientBackend,
    options: TrainingOptions,
    measured: Collection[Batch] | None = None,
) -> TrainingRun:
    """Build and check everything that the loop needs.

    Raises:
        QdqError: what the back end and the checks refuse.
    """
    graph, first = objective.graph, batches.held[0]
    maxima = moving_maxima(form) if options.ranges == "ema" else None
    moving = maxima.values() if maxima else {}

    proto, largest = with_watched_scales(graph.proto, form, maxima)
    reached = reached_parameters(proto, graph.loss, (*form.parameters, *graph.extra_parameters))
    feed = {**objective.feed(first), **moving}
    minimized, scale = graph.loss, loss_scale_of(options.update)
    if scale is not None:
        proto, minimized = with_loss_scale(proto, graph.loss)
        feed = {**feed, LOSS_SCALE: np.ones((), np.float32)}
    forward = make_forward(proto, reached, minimized, (graph.loss, *graph.parts.values(), *largest), feed)
    forward_error = check_same_forward(form, {name: first[name] for name in objective.inputs})
    gradients = backend.build(forward)
    gradient_error = check_gradients(forward, gradients, feed, options.run.seed)
    in_half: tuple[str, ...] = ()
    if scale is not None:
        inside = {name for node in form.proto.graph.node for name in node.output}
        feeds = [{**objective.feed(batch), **moving, LOSS_SCALE: scale.value} for batch in batches.held[:_RANGES_OF]]
        rest = REST_TYPES[options.update.precision]
        choice = choose_training_types(forward, inside, feeds, rest)
        gradients = backend.build(typed_forward(forward, choice))
        if options.provider == "cpu":  # which has no such kernels
            gradients = replace(gradients, proto=rounded(Model(gradients.proto)).proto)
        in_half = (f"training graph: {choice.headline()}",)

    sessions = SessionOptions(options.run.threads, options.provider)
    changing = (*reached, *moving)
    values = _start_values(form, graph, reached)
    parameters = Parameters(values, scales=[name for name in reached if name in frozenset(form.scales)])
    multiplier = lr_multipliers(form, parameters, values, options.update)
    bounds = magnitude_bounds(form, parameters, values)
    multiplier[at_bound(parameters, bounds)] = 0
    return TrainingRun(
        parameters=parameters,
        student=GraphStudent(gradients, graph.loss, graph.parts, largest, objective.feed, sessions, parameters),
        batches=batches,
        measure=HeldOutLoss(
            Model(graph.proto),
            objective.measured,
            changing,
            batches.held if measured is None else measured,
            objective.feed,
            sessions,
        ),
        optimizer=make_optimizer(options.update, parameters.vector.size),
        lr_multiplier=multiplier,
        decayed=decayed(form, parameters, values),
        maxima=maxima,
        loss_scale=scale,
        bounds=bounds,
        exported=tuple(name for name in changing if name not in frozenset(graph.extra_parameters)),
        checked=(forward_error, gradient_error),
        notes=(*graph.notes, *in_half, *_notes([name for name in form.parameters if name not in frozenset(reached)])),
    )


def _start_values(form: TrainingGraph, graph: LossGraph, reached: Sequence[str]) -> dict[str, Float32]:
    """What the form has, and what projections begin with."""
    own = form.initial()
    extra = {t.name: t for t in graph.proto.graph.initializer if t.name in frozenset(graph.extra_parameters)}
    return {name: own[name] if name in own else np.array(onnx.numpy_helper.to_array(extra[name])) for name in reached}


def _notes(lost: Sequence[str]) -> tuple[str, ...]:
    if not lost:
        return ()
    return (f"{len(lost)} parameters are not trained because the loss does not depend on them, such as {lost[0]}",)
