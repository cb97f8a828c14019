# SPDX-License-Identifier: Apache-2.0
"""What `deploy` knows of a model's outputs, as Gst-nvinfer must be told: of the task that models are judged by."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.emit.deepstream_network import ROW, DeepStreamNetwork
from qdqtool.emit.job import Tensor
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.evaluation.decode.head import HeadDecoder
from qdqtool.evaluation.tasks import BoxAgreement, ClassAgreement, LabeledBoxes, LabeledClasses, Task
from qdqtool.workflows.deploy_options import DeployOptions
from qdqtool.workflows.deploy_other_builds import reads_caches_alone
from qdqtool.workflows.deploy_steps import StepJob, kept_name


def network_of(task: Task, names: str | None, outputs: Sequence[Tensor], labels: str) -> DeepStreamNetwork:
    """What Gst-nvinfer makes of the outputs."""
    if isinstance(task, (LabeledClasses, ClassAgreement)):
        shown = shown_names(names)
        return DeepStreamNetwork("classifier", names=shown, labels=labels if shown else "")
    decoder = task.decoder if isinstance(task, (LabeledBoxes, BoxAgreement)) else None
    if not isinstance(decoder, HeadDecoder):
        shown = shown_names(names)
        return DeepStreamNetwork(names=shown, labels=labels if shown else "")
    shown = shown_names(names, decoder.head.classes)
    shapes = [tensor.shape for tensor in outputs]
    one = shapes[0] if len(shapes) == 1 else None
    rows = decoder.family in ("nms", "rows") and one is not None and one[-1] == ROW
    return DeepStreamNetwork(
        "detector",
        decoder.family,
        shown,
        rows=rows,
        suppressed=decoder.family == "nms",
        iou=decoder.head.iou,
        labels=labels if shown else "",
    )


def nvinfer_cache_note(candidate: DeployCandidate, job: StepJob, options: DeployOptions, folder: Path) -> str:
    """The command that makes the cache from which Gst-nvinfer builds a kept Q/DQ model; empty if it needs none."""
    version = job.version
    if version is None or not reads_caches_alone(candidate, job):
        return ""
    name = kept_name(candidate, job.stem)
    words = ["qdqtool", "peel", str(folder / f"{name}.onnx"), "--target", "gpu", "--trt-version", version.text]
    words += ["-o", str(folder / f"{name}.nvinfer.onnx"), "--cache", str(folder / f"{name}.nvinfer.cache")]
    words += ["--emit", "deepstream,trtexec"]
    given = {"names": options.names, "preprocess": job.preprocess, "max-batch": job.max_batch}
    for option, value in given.items():
        words += [] if value is None else [f"--{option}", str(value)]
    return f"Gst-nvinfer builds INT8 from a cache alone; to make one of {name}.onnx: {shlex.join(words)}"
