# SPDX-License-Identifier: Apache-2.0
"""The [property] group of a Gst-nvinfer configuration, as far as model, cache and preprocessing decide it.

Keys: gstnvinfer_property_parser.h, 2021; y = net-scale-factor * (x - offset): the Gst-nvinfer guide. That
it pads with black is from memory. What it builds itself is from nvdsinfer_model_builder.cpp (DeepStream 5 and 6):
network-mode=1 sets the INT8 flag of TensorRT alone and only with a cache, else it builds FP16 without INT8;
layer-device-precision sets the precision of a layer and makes TensorRT obey it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qdqtool.data.preprocess import Preprocess
from qdqtool.emit.deepstream_network import network_lines
from qdqtool.emit.input_shapes import as_fed
from qdqtool.emit.job import EmitJob, Emitted, Tensor, comments
from qdqtool.emit.trtexec_flags import has_flag
from qdqtool.errors import QdqError
from qdqtool.trtversion import require_caches

_COLORS = {"rgb": 0, "bgr": 1}
_GRAY = 2
_FP32, _INT8, _FP16 = 0, 1, 2  # of network-mode


def _elsewhere(job: EmitJob) -> list[str]:
    """Where the model is not beside this file: what must be on the board."""
    if "/" not in job.model.replace("\\", "/"):
        return []
    return ["paths are as seen from this file: copy the folders as they are, or all files into one and cut the paths"]


def write_deepstream(job: EmitJob) -> Emitted:
    """The group as text; what preprocessing has no key for is a comment and a note.

    Raises:
        QdqError: TensorRT 11 or later; the model has no single image input.
    """
    if job.cache:
        require_caches(job.version)
    job = replace(job, kinds=job.kinds | {"deepstream"})
    images = [tensor for tensor in job.inputs if tensor.shape is not None and len(tensor.shape) == 4]
    if len(images) != 1:
        reason = f"has {len(images)} inputs of four dimensions, and Gst-nvinfer feeds one image"
        raise QdqError(job.model, reason, "leave deepstream out of --emit")
    image = images[0]
    nhwc = _is_nhwc(job, image)
    keys: dict[str, object] = {"gpu-id": 0, "onnx-file": job.model, **_engine_keys(job)}
    keys |= {"batch-size": job.nvinfer_batch, "network-mode": _INT8 if job.int8 else _FP16 if job.half else _FP32}
    keys |= _dims(as_fed([image], job.data)[0], nhwc=nhwc)
    notes: list[str] = []
    if job.preprocess is None:
        notes.append(
            "no --preprocess was given: set net-scale-factor, offsets, model-color-format and the padding here"
        )
    else:
        keys |= _preprocessing(job.preprocess, _channels(image, nhwc=nhwc), notes)
    others = [one.name for one in job.inputs if one is not image]
    if others:
        notes.append(f"Gst-nvinfer feeds {image.name} alone: a library of yours gives {', '.join(others)} its values")
    if job.target == "dla":
        keys |= {"enable-dla": 1, "use-dla-core": 0}
    if job.named:
        keys["layer-device-precision"] = ";".join(f"{layer.name}:fp32:gpu" for layer in job.named)
    lines = [f"Gst-nvinfer: {job.made_for}.", *_how_built(job), *notes, *_elsewhere(job)]
    lines += [
        f"Gst-nvinfer has no setting that keeps these layers in float: {layer.op} {layer.node}: {layer.unnamed}"
        for layer in job.unnamed
    ]
    lines += [f"warning: {remark}" for remark in job.remarks]
    text = "".join(f"{key}={value}\n" for key, value in keys.items())
    return Emitted(f"{comments(lines)}[property]\n{text}{network_lines(job.network)}", tuple(notes))


def _engine_keys(job: EmitJob) -> dict[str, object]:
    """The engine; where it is not there, Gst-nvinfer builds by the cache, and saves what it built by that name."""
    engine: dict[str, object] = {"model-engine-file": job.engine}
    return {"int8-calib-file": job.cache, **engine} if job.cache else engine


def _how_built(job: EmitJob) -> Iterator[str]:
    """Who builds the engine, and what in: Gst-nvinfer has one flag of TensorRT for a network, INT8 or FP16."""
    script = f"{job.stem}.trtexec.sh"
    if job.cache:
        yield "Without the engine Gst-nvinfer builds it by the cache: INT8, and the rest in FP32, without FP16"
        if job.named:
            where = ", on the GPU, since the DLA has no FP32" if job.target == "dla" else ""
            yield f"layer-device-precision says fp32{where}: TensorRT refuses fp16 where only INT8 is allowed"
        if "trtexec" in job.kinds and (not job.layers or has_flag("--layerPrecisions", job.version)):
            yield f"To have FP16 there, too, run {script} before the first start: it builds the same file"
        return
    yield f"Run {script} on the board before the first start: it builds the engine that is read here"
    if not job.int8:
        yield "Gst-nvinfer saves what it builds itself under another name, and would build it at each start"
    elif job.version.has_caches:
        yield "Gst-nvinfer cannot build this model: without int8-calib-file it sets FP16 alone, and Q/DQ need INT8"


def _is_nhwc(job: EmitJob, image: Tensor) -> bool:
    if job.preprocess is not None and job.preprocess.layout is not None:
        return job.preprocess.layout == "nhwc"
    shape = image.shape or ()
    return shape[1] not in (1, 3) and shape[3] in (1, 3)


def _channels(image: Tensor, *, nhwc: bool) -> int:
    return (image.shape or ())[3 if nhwc else 1] or 3


def _dims(image: Tensor, *, nhwc: bool) -> dict[str, object]:
    """The size of the input, where the model fixes it."""
    _, *sizes = image.shape or ()
    if nhwc:
        sizes = [sizes[2], *sizes[:2]]
    dims: dict[str, object] = {"network-input-order": int(nhwc)}
    return dims if None in sizes else {**dims, "infer-dims": ";".join(map(str, sizes))}


def _preprocessing(spec: Preprocess, channels: int, notes: list[str]) -> dict[str, object]:
    """The keys of a preprocessing.

    (x * scale - mean) / std = net-scale-factor * (x - offset), so
    net-scale-factor = scale / std        (one number: the mean over the channels where their std differs)
    offset           = mean / scale       (one per channel, in the order of the model's channels)
    """
    notes += _beyond_keys(spec)
    keys: dict[str, object] = {}
    keys["net-scale-factor"] = _number(_factor(spec))
    means = spec.mean * channels if len(spec.mean) == 1 else spec.mean
    if any(means):
        keys["offsets"] = ";".join(_number(mean / spec.scale) for mean in means)
    keys["model-color-format"] = _GRAY if channels == 1 else _COLORS[spec.color]
    keys["maintain-aspect-ratio"] = int(spec.resize.startswith("letterbox"))
    if keys["maintain-aspect-ratio"]:
        keys["symmetric-padding"] = int(spec.resize == "letterbox")
    return keys


def _factor(spec: Preprocess) -> float:
    """The one factor: of the mean std, where channels differ."""
    return spec.scale * len(spec.std) / sum(spec.std)


def _beyond_keys(spec: Preprocess) -> Iterator[str]:
    if len(set(spec.std)) > 1:
        yield _one_factor_note(spec)
    if spec.resize.startswith("letterbox") and spec.pad:
        yield (
            f"Gst-nvinfer pads with black, the model was calibrated with grey {spec.pad}: "
            "calibrate with --preprocess ...,pad=0"
        )
    if spec.resize == "crop":
        yield "Gst-nvinfer does not cut out the center: the image is stretched here; crop it before, or calibrate so"


def _one_factor_note(spec: Preprocess) -> str:
    """What the one factor is not, how far off it is, and what makes it exact."""
    factors = ", ".join(_number(spec.scale / std) for std in spec.std)
    mean_std = sum(spec.std) / len(spec.std)
    far = max(abs(std / mean_std - 1) for std in spec.std)
    return (
        f"net-scale-factor is one number, and this model wants one per channel ({factors}): it is that of the mean "
        f"std, {100 * far:.1f} % off at most; evaluate --preprocess ...,std={_number(mean_std)} tells what that costs. "
        "Exact: multiply the first convolution's weights of each input channel by its factor, "
        f"{_plain_range(spec)}, and net-scale-factor=1"
    )


def _plain_range(spec: Preprocess) -> str:
    """The preprocessing of the model whose first convolution has the factors: x - offset."""
    offsets = ":".join(_number(mean / spec.scale) for mean in spec.mean)
    return f"calibrate it with scale=1,mean={offsets},std=1"


def _number(value: float) -> str:
    """The shortest decimal of the float32 next to a value (Gst-nvinfer computes with float32), without an exponent."""
    return np.format_float_positional(np.float32(value), trim="-")
