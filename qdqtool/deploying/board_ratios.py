# SPDX-License-Identifier: Apache-2.0
"""How much faster than FP16 an INT8 engine should be, board by board: a forecast, no measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qdqtool.engine.layer_work import LayerWork
from qdqtool.forecasting.boards import boards_of, known_boards, known_places
from qdqtool.forecasting.formats import PAYS, FormatTime, compared, time_of
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.formats import INT8, NumberFormat
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.trtversion import NEWEST, TrtVersion, in_range


@dataclass(frozen=True)
class BoardRatio:
    """How long an engine in FP16 and a quantized one should take on a device."""

    device: str
    fp16: FormatTime
    int8: FormatTime

    @property
    def ratio(self) -> float:
        """How much faster than FP16 the quantized one is."""
        return self.int8.ratio

    @property
    def verdict(self) -> str:
        """Whether it pays over FP16."""
        return self.int8.verdict


NOWHERE = "by forecast no board known"  # the beginning of what `pays_nowhere` says


def over_boards(
    fp16: Sequence[LayerWork] | None,
    int8: Sequence[LayerWork] | None,
    version: TrtVersion | None,
    row: NumberFormat = INT8,
    target: str = "gpu",
) -> Iterator[BoardRatio]:
    """The ratio on every device that runs the version and is fast in the format; none where a size is not known."""
    if fp16 and int8:
        for name, times in fast_devices(version, row, target=target):
            yield _ratio(name, times, fp16, int8, row)


def fast_devices(
    version: TrtVersion | None, *rows: NumberFormat, target: str = "gpu"
) -> Iterator[tuple[str, LayerTimes]]:
    """Every device that runs the version, has the formats, and multiplies in each of them faster than in FP16.

    A format for weights alone is one that the device reads. A version that was named by its software, such as JetPack
    6.1, runs on the boards of that software.
    """
    boards = boards_of(version.platform) if version is not None and version.platform else known_boards()
    active = [row for row in rows if "activation" in row.roles]
    for name, place, device in known_places():
        board = place.board
        runs = (
            board is not None
            and board in boards
            and board.int8
            and (board.rtx or target != RTX_TARGET)
            and int(board.sm) >= max(row.sm for row in rows)
            and (version is None or in_range(version, board.trt))
        )
        if runs and all(device.rates.get(row.name, 0) > device.rates["half"] for row in active):
            yield name, LayerTimes(device)


def _ratio(
    name: str, times: LayerTimes, fp16: Sequence[LayerWork], int8: Sequence[LayerWork], row: NumberFormat
) -> BoardRatio:
    half = time_of("fp16", fp16, times)
    return BoardRatio(name, half, compared(time_of(row.name, int8, times), half, int8, fp16, times))


def pays_nowhere(
    fp16: Sequence[LayerWork] | None,
    int8: Sequence[LayerWork] | None,
    version: TrtVersion | None,
    row: NumberFormat = INT8,
    target: str = "gpu",
) -> str:
    """A sentence where a format pays over FP16 on no board that runs the version; "" where it does on one.

    Without a version the newest is meant, as in the step that `insert` prints next.
    """
    if not (fp16 and int8) or "activation" not in row.roles:
        return ""
    ratios = dict[str, float]()
    runs = version if target == RTX_TARGET else version or NEWEST
    for name, times in fast_devices(runs, row, target=target):
        ratios[name] = times.total(fp16) / times.total(int8)
        if ratios[name] > PAYS and _ratio(name, times, fp16, int8, row).verdict == "pays":
            return ""
    if not ratios:
        return ""
    low, high = (pick(ratios, key=ratios.__getitem__) for pick in (min, max))
    place = "TensorRT for RTX" if runs is None else runs.platform or f"TensorRT {runs.text}"
    most = f" to {ratios[high]:.2f}x on {high}" if ratios[low] < ratios[high] else ""
    within = ", within the forecast's error" if ratios[high] > 1 else ""
    return (
        f"{NOWHERE} for {place} is shown to be faster in {row.title}: "
        f"{ratios[low]:.2f}x FP16's speed on {low}{most}{within}; qdqtool forecast says why"
    )
