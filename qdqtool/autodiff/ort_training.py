# SPDX-License-Identifier: Apache-2.0
"""The back end `ort-training`: the same derivatives, with kernels of onnxruntime-training 1.19.2 where they are faster.

Its gradient builder and its Python package are not used. The builder is silently wrong about some operators, sees no
attributes in gradients of one's own, and would ask for every derivative a second time; the package needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.autodiff.backend import Forward, GradientGraph
from qdqtool.autodiff.installed import check_training_wheel
from qdqtool.autodiff.reverse_mode import differentiate
from qdqtool.autodiff.rules.ort_kernels import with_kernels
from qdqtool.autodiff.rules.table import RULES, operators
from qdqtool.errors import QdqError

_HIGHEST_OPSET = 21  # that onnxruntime 1.19.2 reads


class OrtTraining:
    """Gradients with the kernels of onnxruntime-training; the graph runs on that wheel alone."""

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
