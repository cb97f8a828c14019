# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a Q/DQ model, by what its tensors hold; whether it costs accuracy, `diagnose` measures.

`FAULTS` are ways in which the model was made wrong. `TRAITS` are properties of the network that INT8 suits badly: they
are measured in the model without the faults, as putting much in float brings back part of any loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdqtool.amax.method_table import METHODS, REFERENCE
from qdqtool.conditioning.channel_histograms import ErrorTable
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.decisions import Provenance
from qdqtool.diagnosis.cause import LEAST_GAIN, Cause, CauseName
from qdqtool.diagnosis.evidence import Evidence, PairedTensor
from qdqtool.diagnosis.one_change import float_input, with_float_operators, with_scales, with_weights
from qdqtool.display import counted
from qdqtool.evaluation.known_preprocess import known_preprocess, other_values
from qdqtool.formats import FP8, INT8, MIXED
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.graph.weighted import is_depthwise, weight_index
from qdqtool.linting.check_attention import count_attentions, torn_attentions
from qdqtool.linting.check_fp16 import overflowing
from qdqtool.linting.check_placement import decode_reads
from qdqtool.linting.lint_context import LintContext, is_other_format
from qdqtool.match.options import names_word
from qdqtool.metadata import stored_table
from qdqtool.observers.pre_activation import before_silu
from qdqtool.passes.condition.layout import as_cube, from_cube, readable
from qdqtool.passes.insert import is_estimated
from qdqtool.precision.assignment import rest_name
from qdqtool.precision.casts import types_over_pairs
from qdqtool.recipe.values import OptionValue, RecipeStep
from qdqtool.scales import Scale
from qdqtool.simulation.rounding import fake_quantize_weight

# A range is suspected from so many dB below the best one on, where it leaves less than this many dB.
_DROP, _POOR = 6.0, 30.0
_FEW = 3  # tensors that are a fault of their own; more of them have one cause together
MOST = 0.5  # of the loss, that the change of a less likely cause wins
_OFF = 2.0  # a range of an input beyond this ratio is of other values
_MOSTLY = 0.5  # a tensor is dead where more of its values become zero
_LOST, _TIMES = 0.02, 4.0  # of the signal of a mean channel; how much less it would be with a scale of its own
_SEEN = 0.0005  # a share of values that a sentence gives
_UNLIKE = 8.0  # channels of a weight whose float values are not known
_STEPS = 4  # a channel with fewer has hardly any
_FEW_SAMPLES = 8  # that scales come from
_CUTTING = ("max", "percentile")  # methods that ask no consumer what it loses
_AXIS_OPSET = 13  # from which on a pair may have several scales


@dataclass(frozen=True)
class Suspect:
    """A cause that is not measured yet.

    Attributes:
        cause: without a gain.
        change: makes the model without it; None where no change shows what its remedy wins.
        named: whether it is a cause whatever its gain is.
        part: of the loss, that the change wins of a cause.
        narrower: makes models without causes of fewer places, which win nearly all that `change` wins where they are
            the cause.
        after: makes the model that `change` is held against, where that is better than the given one: without it two
            things would change.
    """

    cause: Cause
    change: Callable[[Model], Model] | None
    named: bool = False
    part: float = 0.2
    narrower: tuple[Callable[[Model], Model], ...] = ()
    after: Callable[[Model], Model] | None = None


def insert_step(**options: OptionValue) -> RecipeStep:
    """The step of `insert` with some options, whose names have underscores for dashes."""
    return RecipeStep("insert", "insert", options={name.replace("_", "-"): value for name, value in options.items()})


def _step_as_made(found: Evidence, **changed: OptionValue) -> RecipeStep:
    """The step of `insert` that changes one thing, and makes the rest as the model has it, as far as that is known.

    That is the method, what accuracy keeps in float, heads, weights, and what `kept_options` says.
    """
    methods, table = {*found.methods.values()}, stored_table(found.context.model.proto)
    kept = (None if table is None else table.decisions.float_layers) or {}
    named = bool(kept) and not any("," in name for name in kept)
    made: dict[str, OptionValue] = {"method": methods.pop() if len(methods) == 1 else _reference(found)}
    made |= kept_options(found.context)
    made |= {} if "max_output_loss" in changed else {"keep_float": names_word([*kept]) if named else "0"}
    made |= {"float_heads": "none"} if found.quantized_heads else {}
    made |= {"weights": "per-tensor"} if 2 * len(found.coarse_weights) > len(found.context.weighted) else {}
    return insert_step(**{**made, **changed})


def step_against_all(found: Evidence, causes: Sequence[Cause]) -> RecipeStep:
    """The step of `insert` that makes all the changes of several causes."""
    made, changed = _step_as_made(found).options, dict[str, OptionValue]()
    for cause in causes:
        remedy = cause.remedy if cause.remedy.verb == "insert" else _step_as_made(found, weights="per-channel")
        changed |= {name: value for name, value in remedy.options.items() if made.get(name) != value}
    return _step_as_made(found, **{name.replace("-", "_"): value for name, value in changed.items()})


def kept_options(context: LintContext) -> dict[str, OptionValue]:
    """The options with which `insert` keeps the number format, the attentions and the float type of a Q/DQ model."""
    kept: dict[str, OptionValue] = {}
    if context.number_format != INT8.name:
        kept["format"] = context.number_format
    quantized, most = count_attentions(context)
    if context.number_format != MIXED and 0 < quantized == most:
        kept["attention"] = "int8"
    if (record := types_over_pairs(context.proto)) is not None:
        kept["rest"] = rest_name(record.assignment.rest)
    return kept


# ---------------------------------------------------------------------- faults


def zero_points(found: Evidence) -> Iterator[Suspect]:
    """Pairs with zero points, which TensorRT refuses."""
    pairs = [
        (pair.tensor, found.context.zero_point(pair)) for made in found.context.view.pairs.values() for pair in made
    ]
    odd = {name: zero for name, zero in pairs if zero is not None and _is_asymmetric(zero)}
    if odd:
        name, zero = next(iter(odd.items()))
        text = f"{len(odd)} of {counted(len(pairs), 'pair')} are no symmetric INT8, such as {name} "
        text += f"({zero.dtype} with zero point {zero.reshape(-1)[0]}); TensorRT refuses them"
        why = "TensorRT builds no engine of the model as it is"
        figures = {"pairs": len(odd), "of": len(pairs)}
        step = insert_step(method="auto")
        cause = Cause("zero points", tuple(odd), text, step, None, why, figures, refused=True)
        yield Suspect(cause, None, named=True)


def _is_asymmetric(zero: npt.NDArray[np.generic]) -> bool:
    """Whether a zero point is another than INT8's, and none of another format that TensorRT reads, nor of a bias."""
    return (
        zero.dtype.kind in "iu" and zero.dtype != np.int32 and not (is_other_format(zero) or INT8.has_zero_point(zero))
    )


def per_tensor_weights(found: Evidence) -> Iterator[Suspect]:
    """Weights with one scale whose channels differ in size."""
    context = found.context
    weights, worst, integers = {}, dict[str, float](), True
    for node, index, pair, axis in found.coarse_weights:
        array = float_input(found.plain.view, node, index)
        if array is None or array.dtype.kind != "f":
            continue
        channels = np.abs(np.moveaxis(array.astype(np.float32, copy=False), axis, 0)).reshape(array.shape[axis], -1)
        sizes = channels.max(axis=1, initial=0)
        if sizes.size > 1 and sizes.max() > 0:
            worst[pair.tensor] = float(sizes.max() / max(np.median(sizes), sizes.max() / INT8.largest**2))
            weights[pair.tensor] = fake_quantize_weight(array.astype(np.float32, copy=False), axis)
            held = context.view.array(pair.tensor) if pair.quantize is None else None
            integers &= held is not None and np.array_equal(array, held)
    if not weights or (integers and max(worst.values()) < _UNLIKE):
        return
    order = tuple(sorted(worst, key=lambda name: -worst[name]))
    paired = sum(context.weight_pair(*one) is not None for one in context.weighted)
    text = f"{len(weights)} of {counted(paired, 'weight')} have one scale"
    text += f"; in {order[0]} the largest channel is {worst[order[0]]:.3g} times the median one"
    figures = {"weights": len(weights), "of": paired, "largest_over_median": worst[order[0]]}
    why = "the file holds integers, and the FP32 model is not given" if integers else ""
    cause = Cause("per-tensor weights", order, text, _other_weights(found), None, why, figures)
    yield Suspect(cause, None if integers else lambda model: with_weights(model, weights))


def _other_weights(found: Evidence) -> RecipeStep:
    """The step that changes scales of weights alone: `graft` of the scales of the activations.

    What accuracy keeps in float would be INT8 after it, and pairs without a symmetric scale from data have none that it
    takes.
    """
    context, table = found.context, stored_table(found.context.model.proto)
    kept = table is not None and bool(table.decisions.float_layers)
    estimated = any(map(is_estimated, context.all_pairs))
    options = kept_options(context)
    others = context.has_halves or options.keys() - {"attention"} or kept or estimated
    if context.target == "gpu" and not others and found.tensors.keys() == context.activation_pairs.keys():
        heads: dict[str, OptionValue] = {} if found.quantized_heads else {"float-heads": "regression"}
        return RecipeStep("graft", "graft", options={**heads, **options})
    return _step_as_made(found, weights="per-channel")


def ranges(found: Evidence) -> Iterator[Suspect]:
    """Ranges of activations that do not fit the data: of a few tensors; or of all, for the data or for the method.

    The same method on these data tells both apart: what it wins is lost by the data that scales were taken from, and
    what the ranges of least error win beyond that is lost by the method.
    """
    tensors = found.tensors
    if not tensors:
        return
    said, seen = _said_of_preprocessing(found), _other_input(found)
    off = sorted((one for one in tensors.values() if one.drop >= _DROP and one.sqnr < _POOR), key=lambda one: -one.drop)
    if found.context.number_format == FP8.name and not (off or said or seen):
        return  # steps of FP8 are relative: what a range that is a little off wins or costs is chance
    if said:  # which sets the range of an input
        off = [one for one in off if one.name not in found.plain.view.inputs]
    few = off if len(off) <= _FEW else []
    step = _step_as_made(found, **({} if _is_auto(found) else {"method": _reference(found)}))
    for one in few:
        name: CauseName = "outliers" if one.zeroed <= _MOSTLY else "dead tensor"
        name = "saturated tensor" if one.amax < one.best else name
        method = f"; method {found.methods[one.name]} chose its range" if one.name in found.methods else ""
        cause = Cause(name, (one.name,), _described(one) + method, step, figures=one.figures())
        yield Suspect(cause, _with_best([one]))
    narrower = (_with_best(few),) if few else ()
    again = found.same_method if found.int8_loss >= LEAST_GAIN else {}  # which takes a calibration
    likely = bool(off or said or seen) or _calibration(found).method.startswith(_CUTTING)
    part = 0.2 if likely else MOST
    data_step = _step_as_made(found) if again else step
    changed = again or tensors
    if said or seen:
        text = "; ".join(filter(None, (said, seen)))
        data_cause = Cause("preprocessing", tuple(found.context.view.inputs), text, data_step)
        inner = [one for one in tensors.values() if one.name not in found.plain.view.inputs]
        apart = _with_best(inner)
        yield Suspect(
            data_cause, _with_best(changed.values()), bool(said), part, (*narrower, *(() if again else (apart,)))
        )
        if not again and inner:
            yield Suspect(_all_ranges(found, inner, step, of_method=True), apart, part=part, narrower=narrower)
    else:
        data_cause = _all_ranges(found, changed.values(), data_step, of_method=not again)
        yield Suspect(data_cause, _with_best(changed.values()), part=part, narrower=narrower)
    if again and not all(_is_reference(one, _reference(found)) for one in found.methods.values()):
        after = [
            replace(one, amax=again[name].best, sqnr=again[name].best_sqnr)
            for name, one in tensors.items()
            if name in again
        ]
        cause = _all_ranges(found, after, step, of_method=True)
        yield Suspect(
            cause, _with_best(tensors.values()), part=part, narrower=narrower, after=_with_best(again.values())
        )


def _reference(found: Evidence) -> str:
    """The method that takes the ranges of least error."""
    return FP8.method if found.context.number_format == FP8.name else REFERENCE


def _is_reference(method: str, reference: str) -> bool:
    """Whether a method takes the ranges of least error, or begins with them."""
    return method == reference or METHODS[method.partition("=")[0]].starts_from == reference


def _is_auto(found: Evidence) -> bool:
    return bool(found.methods) and all(METHODS[one.partition("=")[0]].by_consumers for one in found.methods.values())


def _calibration(found: Evidence) -> Provenance:
    """The calibration that the file names; an empty one where it names none."""
    table = stored_table(found.context.model.proto)
    return Provenance() if table is None else table.provenance


def _all_ranges(
    found: Evidence, tensors: Iterable[PairedTensor], step: RecipeStep, *, of_method: bool = False
) -> Cause:
    """Ranges that are too wide together, for a few large values; or too short, for the data or the method.

    Which of both, the noise that is too much decides, summed over the tensors as a part of their signal.
    """
    tensors = sorted(tensors, key=lambda one: -one.drop)
    wide, short = ([one for one in tensors if (one.amax > one.best) == side] for side in (True, False))
    wide_noise, short_noise = (sum(one.excess for one in side) for side in (wide, short))
    run, methods = _calibration(found), sorted({*found.methods.values()})
    counts = {"ranges": len(tensors), "wide": len(wide), "short": len(short), "samples": run.samples}
    side, how = (wide, "wider") if wide_noise > short_noise else (short, "shorter")
    worst = (side or tensors)[:_FEW]
    method = f" (method {', '.join(methods)})" if methods else ""
    few = f"; scales come from {counted(run.samples, 'sample')}" if 0 < run.samples <= _FEW_SAMPLES else ""
    text = f"{len(side)} of {counted(len(tensors), 'range')}{method} are {how} than the data ask for"
    text += f"{few if side is short else ''}; {_described(worst[0])}"
    name: CauseName = "outliers" if side is wide else "saturated tensor" if of_method else "calibration data"
    return Cause(name, tuple(one.name for one in worst), text, step, figures=counts)


def _said_of_preprocessing(found: Evidence) -> str:
    """That the model's file names another preprocessing than the data have; "" where it does not."""
    known, given = known_preprocess(found.context.model.proto), found.loader.description.get("preprocess")
    differ = other_values(parse_preprocess(given), known.spec) if known is not None and given else None
    return f"{known.source} had {differ[1]}, the data have {differ[0]}" if known is not None and differ else ""


def _other_input(found: Evidence) -> str:
    """That the range of an input is that of other values than the data have; "" where none is."""
    for one in (found.tensors[name] for name in found.context.view.inputs if name in found.tensors):
        if not 1 / _OFF <= one.amax / one.best <= _OFF and one.drop >= _DROP:
            return f"the range of the input {one.name} ends at {one.amax:.4g}, its values at {one.histogram.amax:.4g}"
    return ""


def _with_best(tensors: Iterable[PairedTensor]) -> Callable[[Model], Model]:
    """The change to the best ranges."""
    scales = {one.name: Scale.of(one.format.scale_of(one.best), format=one.format) for one in tensors}
    return lambda model: with_scales(model, scales)


def _described(one: PairedTensor) -> str:
    """The range of a tensor beside the best one, and what it does to values where that can be seen in a percent."""
    if one.amax < one.best:
        said, share, what = f"{one.name} is clipped at {one.amax:.4g}", one.clipped, "of its values are beyond"
    else:
        said = (
            f"the range of {one.name} ends at {one.amax:.4g}, so that steps are {one.amax / one.best:.3g} times as long"
        )
        share, what = one.zeroed, "of its values become 0"
    seen = f", where {share:.2%} {what}" if share >= _SEEN else ""
    return f"{said}{seen}: {one.sqnr:.1f} dB, {one.best_sqnr:.1f} dB with the end at {one.best:.4g}"


def heads(found: Evidence) -> Iterator[Suspect]:
    """Regression heads in INT8, and pairs on what comes after them."""
    context, quantized = found.context, found.quantized_heads
    reads = [(use.node, pair) for _, use, pair in decode_reads(context)]
    if quantized or reads:
        where = tuple(dict.fromkeys([*(one.name for one in quantized), *(pair.tensor for _, pair in reads)]))
        words = [counted(len(quantized), "regression head") + " in INT8"] if quantized else []
        words += [f"box values after a head go through {counted(len(reads), 'pair')}"] if reads else []
        figures = {"heads": len(quantized), "decode_pairs": len(reads)}
        operators = [*(one.key for one in quantized), *(node.key for node, _ in reads)]
        step = _step_as_made(found, float_heads="regression")
        cause = Cause("head in INT8", where, f"{'; '.join(words)}, such as {where[0]}", step, figures=figures)
        moves = context.rules.heads.moves
        decodes = any(not context.flow.moves(node) and node.op not in moves for node, _ in reads)
        yield Suspect(cause, lambda model: with_float_operators(model, operators, found.plain.view), named=decodes)


def attentions(found: Evidence) -> Iterator[Suspect]:
    """Attentions of which some tensors have pairs and others have none."""
    torn = [(one, missing) for one, missing, _ in torn_attentions(found.context) if missing]
    if torn:
        one, missing = torn[0]
        where = tuple(attention.name for attention, _ in torn)
        text = f"{counted(len(torn), 'attention')} with some of its pairs; {one.name} has none on {', '.join(missing)}"
        operators = [node.key for attention, _ in torn for node in attention.nodes]
        cause = Cause(
            "incomplete attention", where, text, _step_as_made(found, attention="auto"), figures={"count": len(torn)}
        )
        yield Suspect(cause, lambda model: with_float_operators(model, operators, found.plain.view), named=True)


def fp16(found: Evidence) -> Iterator[Suspect]:
    """Tensors that hold values beyond FP16, in a file that has FP16 or for a builder that chooses it."""
    wide = sorted(overflowing(found.context), key=lambda one: -one[1])
    if not wide:
        return
    name, largest, kind = wide[0]
    text = f"{counted(len(wide), 'tensor')} with values that FP16 does not hold; {name} reaches {largest:.4g}"
    half = kind == TensorProto.FLOAT16
    gain = found.loss - found.int8_loss if half else None
    why = "" if half else "they are FP32 in the file; a builder that makes them FP16 loses them"
    where = tuple(name for name, _, _ in wide)
    cause = Cause("FP16 overflow", where, text, _step_as_made(found, rest="fp16"), gain, why, {"largest": largest})
    yield Suspect(cause, None, named=True)


# ---------------------------------------------------------------------- traits


def few_channels(found: Evidence) -> Iterator[Suspect]:
    """Activations of which a few channels set the range, so that the others have few steps."""
    if (opset_of(found.model.proto) or 1) < _AXIS_OPSET or found.context.number_format != INT8.name:
        return
    scales, spread, steps = {}, dict[str, float](), dict[str, float]()
    for name, spectrum in found.channels.items():
        one = found.tensors[name]
        errors, own = ErrorTable(spectrum.counts, spectrum.amax), np.maximum(spectrum.amax, np.float32(1e-30))
        alive = errors.energy > 0
        if alive.sum() < 2:
            continue
        lost = [
            np.minimum(errors.at(clip) / np.where(alive, errors.energy, 1), 1)[alive].mean()
            for clip in (np.full(own.size, one.amax), own.astype(np.float64))
        ]
        if lost[0] >= _LOST and lost[0] >= _TIMES * lost[1]:
            scales[name] = Scale.of(INT8.scale_of(own), axis=spectrum.axis)
            spread[name] = float(lost[0])
            steps[name] = float(np.mean(own[alive] < _STEPS * one.amax / INT8.largest))
    if not scales:
        return
    order = tuple(sorted(spread, key=lambda name: -spread[name]))
    worst = found.channels[order[0]]
    large = int((worst.amax > worst.amax.max() / 2).sum())
    text = f"{large} of {worst.amax.size} channels set the range of {order[0]}, and {steps[order[0]]:.0%} of them have "
    text += f"fewer than {_STEPS} steps; so it is in {len(order)} of {counted(len(found.tensors), 'tensor')}"
    figures = {"tensors": len(order), "channels_without_steps": steps[order[0]]}
    cause = Cause("few channels", order, text, _step_as_made(found, condition="auto"), figures=figures)
    weights = _equalized_weights(found, scales)
    yield Suspect(cause, lambda model: with_weights(with_scales(model, scales), weights), part=MOST)


def _equalized_weights(found: Evidence, scales: Mapping[str, Scale]) -> dict[str, npt.NDArray[np.float32]]:
    """The INT8 weights that read some tensors, rounded as if each input channel were as large as the others.

    Equalization divides a channel of a tensor by its size and multiplies the weights that read it.
    """
    view, context, made = found.plain.view, found.context, {}
    weighted = {node.key: (node, index) for node, index in context.weighted}
    for tensor, scale in scales.items():
        for node in found.readers[tensor]:
            pair = context.weight_pair(*weighted[node.key]) if node.key in weighted else None
            index = weight_index(view, node)
            if pair is None or index is None or not readable(view, node):
                continue
            weight = np.asarray(view.array(node.inputs[index]), np.float32)
            cube = as_cube(node, weight)
            if cube.shape[0] * cube.shape[2] != scale.bits.size:
                continue
            factors = scale.bits.astype(np.float64).reshape(cube.shape[0], 1, cube.shape[2], 1)
            rows = (cube * factors).reshape(cube.shape[0] * cube.shape[1], -1).astype(np.float32)
            rounded = fake_quantize_weight(rows, 0).astype(np.float64).reshape(cube.shape) / factors
            made[pair.tensor] = from_cube(node, rounded, weight.shape).astype(np.float32)
    return made


def silu_or_depthwise(found: Evidence) -> Iterator[Suspect]:
    """Depthwise convolutions in INT8, and operators that read what a SiLU makes."""
    context = found.context
    plain = found.plain.view
    depthwise = [
        node.key
        for node, index in context.weighted
        if context.has_int8_weight(node, index) and is_depthwise(plain, plain.producers.get(node.key, node))
    ]
    silu = [name for name in before_silu(context.view, plain.producers).values() if name in context.activation_pairs]
    readers = [use.node.key for name in silu for use in context.view.consumers(name)]
    operators = [*dict.fromkeys([*depthwise, *readers])]
    if not operators or context.number_format != INT8.name:
        return
    words = [counted(len(depthwise), "depthwise convolution") + " in INT8"] if depthwise else []
    words += [f"{counted(len(silu), 'range')} of a SiLU, whose values begin at -0.28"] if silu else []
    figures = {"depthwise": len(depthwise), "silu": len(silu)}
    step = _step_as_made(found, condition="auto", max_output_loss=_LOST)
    cause = Cause("SiLU or depthwise", tuple(operators), "; ".join(words), step, figures=figures)
    yield Suspect(cause, lambda model: with_float_operators(model, operators, found.plain.view), part=MOST)


FAULTS = (zero_points, per_tensor_weights, ranges, heads, attentions, fp16)
TRAITS = (few_channels, silu_or_depthwise)


def traits_for_edited_weights(found: Evidence) -> Iterator[Cause]:
    """The traits of the network, each with the step of `insert` that edits weights and keeps all else as it is."""
    for suspect in (one for make in TRAITS for one in make(found)):
        yield replace(suspect.cause, remedy=_step_as_made(found, condition="auto"))
