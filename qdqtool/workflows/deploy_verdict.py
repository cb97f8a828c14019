# SPDX-License-Identifier: Apache-2.0
"""The first line of `deploy`: whether INT8 or FP8 is worth it on the board, by how much, how sure that is, and why."""

from __future__ import annotations

from qdqtool.deploying.board_ratios import over_boards
from qdqtool.deploying.target import DeployTarget
from qdqtool.display import counted
from qdqtool.forecasting.boards import device_of
from qdqtool.forecasting.model_layers import layers_in
from qdqtool.graph.model import Model
from qdqtool.verbs.forecast import BoardForecast, Engines

_NAMED = 4  # boards that a line names
_BENCH = "bench.sh measures it."
_FORECAST = "Forecast by qdqtool, not measured on the board"


def verdict_line(
    target: DeployTarget,
    expected: BoardForecast | None,
    opened: Model,
    asked: str,
    attended: BoardForecast | None = None,
) -> str:
    """The verdict as one line.

    Args:
        target: what the model is made for.
        expected: FP16, INT8 and, where it runs, FP8 by the cost model; None where sizes or the board's figures are not
            known.
        opened: the model, which is not changed.
        asked: the board as it was named.
        attended: the same with every attention quantized; None where it has none, or where data have decided.
    """
    place = target.place.title.replace(": ", ", ")
    if not target.int8:
        return f"No INT8 on {place}: its GPU has no kernels for it."
    unknown = f"Whether INT8 pays on {place} is not known"
    if target.kind == "dla":
        stored = target.form == "qdq"
        why = (
            "no document says whether the DLA multiplies INT8 or only stores it"
            if stored
            else "no times of DLAs are known"
        )
        return f"{unknown}: {why}. {_BENCH}"
    if expected is not None:
        fp16, *rows = expected.rows
        fastest = max(rows, key=lambda row: (row.verdict == "pays", row.ratio))
        moved = f" It moves {fastest.megabytes:.1f} MB where FP16 moves {fp16.megabytes:.1f}." if expected.pays else ""
        said = expected.sentences[rows.index(fastest)]
        for row in rows:
            if row is not fastest:
                other = f"{row.format.upper()} {row.ratio:.2f}x, {row.ratio_low:.2f} to {row.ratio_high:.2f}"
                said = said.replace(")", f"; {other})", 1)
        said = said.replace(" (", f" on {place} (", 1)
        if attended is not None:
            ratios = ", ".join(f"{row.format.upper()} {row.ratio:.2f}x" for row in attended.rows[1:])
            moved += f" Data decide whether attention is quantized: with all of it {ratios}."
        return f"{said}{moved} {_FORECAST}; its range holds four times in five. {_BENCH}"
    if target.place.board is not None:
        why = (
            "sizes of tensors are not known"
            if device_of(asked) is not None
            else "rules/devices.toml has no figures of it"
        )
        return f"{unknown}: {why}. {_BENCH}"
    version = target.version
    if version is None or not layers_in(opened, version, "gpu", rest="fp16"):
        return f"{unknown}: sizes of tensors are not known. {_BENCH}"
    engines = Engines(opened.copy())
    layers = engines.fp16(version, "gpu"), engines.int8(version, "gpu")
    found = sorted(over_boards(*layers, version), key=lambda one: -one.ratio)
    if not found:
        return f"{unknown}: it depends on the board, which --for names. {_BENCH}"
    paying = [one for one in found if one.verdict == "pays"]
    best = ", ".join(f"{one.device} {one.ratio:.2f}x" for one in (paying or found[:1])[:_NAMED])
    on = f"{len(paying)} of {counted(len(found), 'board')} known" if paying else f"none of {len(found)} boards known"
    said = f"INT8 on {place}: it surely pays on {on}, at best {best} FP16's speed. {_FORECAST}"
    return f"{said}. --for BOARD asks for one. {_BENCH}"
