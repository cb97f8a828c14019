# SPDX-License-Identifier: Apache-2.0
"""Options of `prune`. `-h` reads them: no onnx here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdqtool.data.options import DataOptions
from qdqtool.options import Option, TextOption, option
from qdqtool.runtime.execution import PROVIDER
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.autodiff.backends import BackendName

_HOW_MUCH = "how much is removed; give one of"


@dataclass(frozen=True)
class PruneOptions:
    """Which channels go; at most one of threshold, ratio, macs and latency, with none TAO's threshold 0.1.

    Attributes:
        granularity: None for 8 with a threshold, else 1.
        min_filters: None for 16 with a threshold, else 1.
        exclude: regular expressions.
        data_options: how data is read.
        correct: with data, weights are fitted to what is left and biases make up for the mean of what goes.
        device: a name of rules/devices.toml; None for its default.
        trt_version: of TensorRT whose fusions are forecast.
        backend: what makes gradients: auto, builtin or ort-training.
        progress: whether a bar is drawn on stderr; None draws one where stderr is a terminal.
    """

    threshold: float | None = option(
        None, "-pth", "keep channels with an importance above T (default 0.1)", metavar="T", read=float, group=_HOW_MUCH
    )
    ratio: float | None = option(
        None, "--ratio", "remove this share of each group's channels", metavar="R", read=float, group=_HOW_MUCH
    )
    macs: float | None = option(
        None, "--macs", "keep at most this share of the multiply-adds", metavar="M", read=float, group=_HOW_MUCH
    )
    normalizer: str = option(
        "max", "-n", "how the norms of a layer are normalized (default %(default)s)", choices=("max", "L2")
    )
    equalization: str = option(
        "union",
        "-eq",
        "how the importance of channels that must be removed together is combined (default %(default)s)",
        choices=("union", "intersection", "arithmetic_mean", "geometric_mean"),
    )
    granularity: int | None = option(
        None, "-pg", "keep a multiple of N channels in a group (default 8 with -pth, else 1)", metavar="N", read=int
    )
    min_filters: int | None = option(
        None, "-nf", "keep at least N channels in a group (default 16 with -pth, else 1)", metavar="N", read=int
    )
    exclude: tuple[str, ...] = option(
        (), "-el --exclude", "do not prune operators and tensors of such a name", metavar="RE", repeated=True
    )
    data_options: DataOptions | None = None
    provider: str = option("cpu", PROVIDER)
    correct: bool = option(True, "--no-correct", "with data: do not adjust the remaining weights and biases")
    latency: float | None = option(
        None, "--latency", "keep at most this share of the forecast time", metavar="L", read=float, group=_HOW_MUCH
    )
    importance: str = option(
        "l2",
        "--importance",
        "importance of a channel: l2 norm of its filters (default), or by gradients (taylor) or activations "
        "over --data",
        choices=("l2", "taylor", "activation"),
    )
    device: str | None = option(
        None, "--for", "with --latency: the device to forecast (default orin-nx)", metavar="DEVICE"
    )
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion,
        parse,
        Option("--trt-version", "with --latency: TensorRT version (default: the newest known)", metavar="V"),
    )
    backend: BackendName = "auto"
    progress: bool | None = None
