# SPDX-License-Identifier: Apache-2.0
"""What a report forecasts, and what there is to win: causes of the loss, and time that INT8 does not save. No HTML."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike

from qdqtool.data.preprocess import Preprocess
from qdqtool.deploying.board_ratios import BoardRatio
from qdqtool.diagnosis.cause import LossCauses
from qdqtool.display import counted
from qdqtool.engine.layer_work import Unit
from qdqtool.forecasting.devices import load_device
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.reporting.forecast_tables import Opportunity, forecast_section
from qdqtool.reporting.page import Section
from qdqtool.workflows.report_look import LookedModel
from qdqtool.workflows.report_options import ReportOptions

_OF_TIME = 0.05  # less of the time is no opportunity
_LAUNCHES = 0.5  # of the time: then the kernels are too small for the format to matter
_NOT_MEASURED = "GPU time of one inference; a forecast from published figures, not a measurement."


def forecast_of(found: LookedModel) -> Section | None:
    """The section; None where a size is not known, or no board runs INT8."""
    if not found.ratios or not found.work:
        return None
    device, times = _device(found.ratios)
    planned = "" if found.view.pairs else " INT8 is that of the pairs which qdqtool insert would place without data."
    boards = [(one.device, one.fp16, one.int8) for one in found.ratios]
    layers = list(zip(found.work, times.of_each(found.work), strict=True))
    return forecast_section(boards, layers, device, _NOT_MEASURED + planned, found.row.title)


def _device(ratios: Sequence[BoardRatio]) -> tuple[str, LayerTimes]:
    """The board whose times kernels are shown with: the default one, or the first that runs the version."""
    known = [one.device for one in ratios]
    default = load_device().name
    name = default if default in known else known[0]
    return name, LayerTimes(load_device(name))


def opportunities(found: LookedModel, causes: LossCauses | None, options: ReportOptions) -> list[Opportunity]:
    """What there is to win: accuracy first, by causes; then time."""
    rows = list(_causes(found, causes, options)) if causes is not None else []
    return [*rows, *_times(found)]


def _causes(found: LookedModel, causes: LossCauses, options: ReportOptions) -> Iterator[Opportunity]:
    model = str(found.context.model.path or found.context.model.name)
    output = f"{model.removesuffix('.onnx')}.better.onnx"
    source = str(options.reference) if isinstance(options.reference, (str, PathLike)) else None
    for number, one in enumerate(causes.causes):
        if number:  # what it brings then is another figure
            how = f"mend {causes.causes[0].name} first, and make the report again"
            yield Opportunity(f"{one.name}: {one.evidence}", one.gain_text(), how)
            continue
        commands = one.commands(model, output, _data_words(options), source)
        commands[-1][-2:-2] = target_words(options)
        text = " && ".join(shlex.join(["qdqtool", *words]) for words in commands)
        yield Opportunity(f"{one.name}: {one.evidence}", one.gain_text(), text, command=True)


def _data_words(options: ReportOptions) -> list[str]:
    """The data as the command line names them; a stand-in for data that Python gave."""
    data = options.data
    words = ["--data", str(data) if isinstance(data, (str, PathLike)) else "DATA"]
    asked = None if options.data_options is None else options.data_options.preprocess
    if isinstance(asked, (str, Preprocess)):
        words += ["--preprocess", str(asked)]
    return words


def target_words(options: ReportOptions) -> list[str]:
    """The target and version as the command line names them, where they are not the defaults."""
    version = options.trt_version
    words = ["--target", options.target] if options.target != "gpu" else []
    return [*words, *(["--trt-version", version.text] if version is not None else [])]


def _times(found: LookedModel) -> Iterator[Opportunity]:
    """Parts of the time on one board, where they are large enough."""
    if not found.ratios or not found.work:
        return
    device, times = _device(found.ratios)
    each = list(zip(found.work, times.of_each(found.work), strict=True))
    total = sum(time for _, time in each)
    launches = times.launch * len(each)
    if found.view.pairs and not any(one.verdict == "pays" for one in found.ratios):
        yield Opportunity(
            f"{found.row.title} pays on no board known",
            "FP16 loses less, at about the same speed",
            "take the FP32 model to qdqtool amp, and bench both on the board",
        )
    converts = [time for layer, time in each if layer.converts]
    if found.view.pairs and sum(converts) > _OF_TIME * total:
        yield Opportunity(
            f"{counted(len(converts), 'kernel')} only convert or copy",
            _gain(sum(converts), total, device),
            f"the violet boxes of the graph: each lies between a layer in {found.row.title} and one in float",
        )
    rest: list[tuple[Unit, Unit, str, str]] = [
        ("single", "half", "compute in FP32", "qdqtool amp, or --rest fp16 of qdqtool insert, gives them FP16"),
    ]
    if found.view.pairs:
        how = (
            "the yellow and red boxes of the graph say why each is in float; measure the loss before you quantize more"
        )
        rest.append(("half", "int8", "compute in FP16", how))
    for unit, better, what, how in rest:
        products = [(layer, time) for layer, time in each if layer.products and layer.unit == unit]
        saved = sum(time - times.of(replace(layer, unit=better)) for layer, time in products)
        if saved > _OF_TIME * total:
            title = f"{counted(len(products), 'kernel')} with {'products' if len(products) > 1 else 'a product'} {what}"
            yield Opportunity(title, _gain(saved, total, device), how)
    if launches > _LAUNCHES * total:
        yield Opportunity(
            f"launches of {counted(len(each), 'kernel')}",
            f"{launches / total:.0%} of the time on {device}",
            "a larger batch, a larger input or CUDA graphs; the number format changes little",
        )


def _gain(microseconds: float, total: float, device: str) -> str:
    return (
        f"up to {microseconds / 1e3:.3g} ms of {total / 1e3:.3g} ms ({microseconds / total:.0%}) on {device}, forecast"
    )
