# SPDX-License-Identifier: Apache-2.0
"""Which gradient back ends this environment has: one flavor of onnxruntime at most, with or without its training part.

`qdqtool doctor` tells the same clash; here a run that could not be trusted stops before it begins.
"""

from __future__ import annotations

from typing import Literal

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.autodiff.builtin import Builtin
from qdqtool.autodiff.installed import check_environment, check_training_wheel, has_gradient_kernels
from qdqtool.autodiff.ort_training import OrtTraining
from qdqtool.errors import QdqError

BackendName = Literal["auto", "builtin", "ort-training"]


def make_backend(name: BackendName = "auto") -> GradientBackend:
    """A gradient back end.

    Raises:
        QdqError: no such back end.
        MissingPackageError: the back end's wheel is not installed; several flavors of onnxruntime are.
    """
    if name not in ("auto", "builtin", "ort-training"):
        raise QdqError("--backend", f"{name!r} is not one", "choose one of auto, builtin, ort-training")
    if name == "ort-training":
        check_training_wheel()
    if name == "builtin":
        check_environment()
    if name == "ort-training" or (name == "auto" and has_gradient_kernels()):
        return OrtTraining()

    return Builtin()
