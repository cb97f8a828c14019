# SPDX-License-Identifier: Apache-2.0
"""`deploy` and `improve` as Python calls them: given the command line, by which their candidates' steps run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.commands import Commands

if TYPE_CHECKING:
    from qdqtool.data.loader import Data
    from qdqtool.graph.io import ModelSource
    from qdqtool.workflows.deploy_options import DeployOptions
    from qdqtool.workflows.deploy_result import DeployResult
    from qdqtool.workflows.improve_options import ImproveOptions
    from qdqtool.workflows.improve_result import ImproveResult


def deploy(model: ModelSource, data: Data, output: str | Path, options: DeployOptions) -> DeployResult:
    """Try ways to INT8 for a board, judge each by the task, keep the best and write all that builds it there.

    The data are split by what the samples hold: scales come from one part, the choice from another, and the figures of
    the result from a third, or from `eval_data`. Figures are computed by onnxruntime with the rounding of the
    target, and costs by rules or a compiler's plan: nothing is measured on the board. A call that was interrupted or
    killed goes on when it is made again.

    Args:
        model: a plain model; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: samples; see `open_loader`.
        output: the folder, made whole or not at all.
        options: see `DeployOptions`.

    Raises:
        QdqError: no such board, a model with Q/DQ, data or labels that do not fit, a folder that cannot be used or that
            another call writes. Nothing is written then.
        MissingPackageError: onnxruntime, Pillow (for images) or pycocotools (for labels of boxes) is not installed.
    """
    from qdqtool.workflows.deploy import deploy

    return deploy(model, data, output, options, Commands())


def improve(model: ModelSource, data: Data, output: str | Path, options: ImproveOptions) -> ImproveResult:
    """Try what wins accuracy back, one change after the other, until samples show that the loss is small enough.

    Its own scales placed anew, other methods of calibration, edits of the weights, operators in float, training: each
    is judged by every sample, on models that the sample did not calibrate, and the best is written, also where it is
    not enough; then the operators are named that lose most. A call that was interrupted or killed goes on when it is
    made again.

    Args:
        model: a Q/DQ model; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: samples; see `open_loader`.
        output: the file for the best model.
        options: see `ImproveOptions`.

    Raises:
        QdqError: a model without Q/DQ, a source with it, data or labels that do not fit, a file that cannot be
            written. Nothing is written then.
        MissingPackageError: onnxruntime, Pillow (for images) or pycocotools (for labels of boxes) is not installed.
    """
    from qdqtool.workflows.improve import improve

    return improve(model, data, output, options, Commands())
