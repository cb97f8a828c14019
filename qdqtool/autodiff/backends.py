# SPDX-License-Identifier: Apache-2.0
"""Gradient back ends, and which of them this environment has: at most one flavor of onnxruntime, with training or not.

`qdqtool doctor` tells the same clash; here a run that could not be trusted stops before it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from qdqtool.autodiff.backend import Forward, GradientBackend, GradientGraph
from qdqtool.autodiff.installed import check_environment, check_training_wheel, has_gradient_kernels
from qdqtool.autodiff.reverse_mode import differentiate
from qdqtool.autodiff.rules.ort_kernels import with_kernels
from qdqtool.autodiff.rules.table import RULES, operators
from qdqtool.errors import QdqError

BackendName = Literal["auto", "builtin", "ort-training"]
_HIGHEST_OPSET = 21  # that onnxruntime 1.19.2 reads


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


class Builtin:
    """Gradients by standard operators, on any onnxruntime and any device."""

    name = "builtin"

    def build(self, forward: Forward) -> GradientGraph:
        """The gradient of the loss by every parameter; see `reverse_mode.differentiate`."""
        return differentiate(forward, RULES)

    def operators(self) -> Sequence[str]:
        """Every operator that it differentiates, sorted. What has the gradient zero by definition is not among them."""
        return operators(RULES)


class OrtTraining:
    """The same derivatives, with kernels of onnxruntime-training 1.19.2 where they are faster; they run on it alone.

    Its gradient builder and its Python package are not used. The builder is silently wrong about some operators, sees
    no attributes in gradients of one's own, and would ask for every derivative again; the package needs PyTorch.
    """

    name = "ort-training"

    def build(self, forward: Forward) -> GradientGraph:
        """The gradient of the loss by every parameter; see `reverse_mode.differentiate`.

        Raises:
            QdqError: the graph has an opset that the wheel does not read.
            MissingPackageError: the wheel is not installed, or two flavors of onnxruntime are.
        """
        check_training_wheel()
        opset = max((one.version for one in forward.proto.opset_import if one.domain in ("", "ai.onnx")), default=0)
        if opset > _HIGHEST_OPSET:
            reason = f"is of opset {opset}, and the ort-training back end takes {_HIGHEST_OPSET} at most"
            raise QdqError(forward.proto.graph.name or "model", reason, "convert it, or use --backend builtin")
        return differentiate(forward, with_kernels(RULES))

    def operators(self) -> Sequence[str]:
        """Every operator that it differentiates, sorted: those of the other back end."""
        return operators(RULES)
