# SPDX-License-Identifier: Apache-2.0
"""Builds beside the one that `deploy` judges: what they lose. Which one is kept: deploying/."""

from __future__ import annotations

from collections.abc import Callable

from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.deploying.choice import CandidateTrial
from qdqtool.errors import QdqError
from qdqtool.formats import number_format
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from qdqtool.verbs.simulate_options import SimulateOptions
from qdqtool.verbs.target_model import TargetModel, target_model
from qdqtool.workflows.deploy_steps import MadeFiles, StepJob, kept_name

Said = Callable[[TargetModel], str]  # a model as its target computes it -> its loss in words


def reads_caches_alone(candidate: DeployCandidate, job: StepJob) -> bool:
    """Whether Gst-nvinfer cannot build what was kept, and can build the cache that `peel` makes of it."""
    version, target = job.version, job.target
    jetson = target.place.platform.startswith("JetPack")
    cached = candidate.form == "qdq" and number_format(candidate.format).cache
    return cached and target.kind == "gpu" and version is not None and version.has_caches and jetson


def loss_of_other_build(candidate: DeployCandidate, made: MadeFiles, job: StepJob, said: Said) -> str:
    """A sentence on what the build loses that was not judged: of a cache, or with layers in FP16; "" without one."""
    try:
        if reads_caches_alone(candidate, job):
            return f"a cache peeled from it, which has more layers in INT8: {said(_peeled(made, job))}"
        if any("--layerPrecisions" in note for note in made.notes) and made.qdq is not None:
            name = f"{kept_name(candidate, job.stem)}.polygraphy.py"
            return f"built by {name}, with those layers in FP16: {said(_with_layers_in_float(made, job))}"
    except QdqError as error:
        if error.is_of_system:
            raise
        return f"another build was not measured: {error.where} {error.reason}"
    return ""


def _peeled(made: MadeFiles, job: StepJob) -> TargetModel:

    assert job.version is not None and made.qdq is not None
    plain, cache = made.qdq.with_suffix(".other.onnx"), made.qdq.with_suffix(".other.cache")  # in the folder of work
    peel(made.qdq, PeelOptions(job.version, "gpu"), output=plain, cache=cache)
    return target_model(plain, SimulateOptions("gpu", job.version, cache=cache), "the cache")


def _with_layers_in_float(made: MadeFiles, job: StepJob) -> TargetModel:

    assert job.version is not None and made.qdq is not None
    return target_model(made.qdq, SimulateOptions(job.target.kind, job.version), "layers in FP16")


def added_layers_note(kept: CandidateTrial) -> str:
    """A sentence on the layers that editing weights added on a DLA; "" where there are none."""
    added = 0 if kept.cost is None else kept.cost.added
    if not added:
        return ""
    return (
        f"{kept.candidate.name} adds {added} Mul, each a layer of its own on the DLA (Scale), which the costs tell and "
        "the choice does not count: time it beside a candidate without; insert --condition equalize,correct adds none"
    )
