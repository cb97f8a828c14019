# SPDX-License-Identifier: Apache-2.0
"""A few samples through a model stage by stage: one session at a time, its weights and its values. Not what they show.

onnxruntime computes what follows from constants when a session starts: of a model with Q/DQ that is every weight once
more, in float. In one session that is held for the whole model, and twice while it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from qdqtool.graph.weighted import weight_index
from qdqtool.progress import steps
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.session import session_options, start_session
from qdqtool.runtime.stage_models import StageModels, Take, Values, all_tensors
from qdqtool.runtime.staged_activations import add_weights, tensor_bytes
from qdqtool.runtime.stages import CutOptions

Array = npt.NDArray[Any]


def pass_samples(
    model: ObservableModel, wanted: Sequence[str], samples: Sequence[Mapping[str, Array]], take: Take
) -> None:
    """Run samples, and hand over some tensors as they are made.

    Raises:
        QdqError: onnxruntime refuses the model, or cannot run it.
    """
    operators = frozenset(node.key for node in model.view.nodes if weight_index(model.view, node) is not None)
    sizes = tensor_bytes(model, wanted)
    if sizes is not None:
        add_weights(sizes, model.view, operators)
    parts = StageModels(model, wanted, operators, CutOptions(sizes=sizes, hold=False))
    if not _passed(parts, wanted, samples, take):
        parts.join()
        _passed(parts, wanted, samples, take)


def _passed(parts: StageModels, wanted: Sequence[str], samples: Sequence[Mapping[str, Array]], take: Take) -> bool:
    """Whether all stages ran: no session takes a sequence or an optional that passes a cut."""
    values: list[Values] = [dict(sample) for sample in samples]
    for at, stage in enumerate(parts.stages):
        made = {name for node in stage.nodes for name in node.outputs}
        values = _behind(parts, at, values, [name for name in wanted if name in made], take)
        if not all_tensors(values):
            return False
    return True


def _behind(parts: StageModels, at: int, values: list[Values], wanted: Sequence[str], take: Take) -> list[Values]:
    """What is read after a stage, whose session is gone then."""
    model, stage = parts.model, parts.stages[at]
    given = (*parts.proto((node.proto for node in stage.nodes), values), list(dict.fromkeys((*stage.gives, *wanted))))
    options = session_options(model.runtime, model.optimization)
    session = start_session(model.runtime, given, options, model.providers, model.where, few_runs=True)

    def hand_over(number: int, got: Mapping[str, Array]) -> None:
        take(number, {name: got[name] for name in wanted})

    return parts.through(at, session, steps(values, "sample"), wanted, hand_over)
