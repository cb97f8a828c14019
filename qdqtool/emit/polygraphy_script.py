# SPDX-License-Identifier: Apache-2.0
"""A network script for Polygraphy's --trt-npps: ranges of tensors and precisions of layers, up to TensorRT 10."""

from __future__ import annotations

import re
import shlex

from qdqtool.cache.amax import amax_of
from qdqtool.emit.job import EmitJob, Emitted
from qdqtool.trtversion import TrtVersion, in_range, require_caches

_BEFORE_CONSTRAINTS = "<8.2.1"  # which have no OBEY_PRECISION_CONSTRAINTS, but STRICT_TYPES
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_STRICT = '''\
def postprocess_config(builder, network, config):
    """Let the builder keep to these precisions: TensorRT before 8.2.1 calls that strict types."""
    config.set_flag(trt.BuilderFlag.STRICT_TYPES)


'''
_SCRIPT = '''\
"""Sets ranges and precisions of a TensorRT network: {made_for}.

{command}
"""

import sys

import tensorrt as trt

# Tensor name -> amax; TensorRT's scale is amax / 127.
RANGES = {{
{ranges}}}
# Layers that must not run in INT8: by name, and by the tensors they make (for layers without a name of their own).
LAYERS = {{
{layers}}}
OUTPUTS = {{
{outputs}}}
# Layers among these whose outputs have a range: their type is set too.
TYPED = {{
{typed}}}


def postprocess(network):
    """Give tensors their range and layers their precision; say what the network lacks."""
    if int(trt.__version__.split(".")[0]) >= 11:
        raise RuntimeError("TensorRT 11 has neither: quantize the model with Q/DQ nodes instead")
    types = {{"fp16": trt.float16, "fp32": trt.float32}}
    floats = (trt.float16, trt.float32)
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    met = set()
    for layer in (network.get_layer(i) for i in range(network.num_layers)):
        outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
        tensors += outputs
        keys = [("layer", layer.name)] + [("tensor", tensor.name) for tensor in outputs]
        wanted = [LAYERS.get(name) if kind == "layer" else OUTPUTS.get(name) for kind, name in keys]
        found = [precision for precision in wanted if precision]
        if not found or not any(tensor.dtype in floats for tensor in outputs):
            continue
        met.update(key for key, precision in zip(keys, wanted) if precision)
        layer.precision = types[found[0]]
        for i, tensor in enumerate(outputs):
            if tensor.name in TYPED and tensor.dtype in floats:
                layer.set_output_type(i, types[found[0]])
    ranged = set()
    for tensor in tensors:
        amax = RANGES.get(tensor.name)
        if amax is not None:
            tensor.dynamic_range = (-amax, amax)
            ranged.add(tensor.name)
    _tell("ranges name no tensor", [name for name in RANGES if name not in ranged], len(RANGES))
    _tell("float tensors are made by no layer", [n for n in OUTPUTS if ("tensor", n) not in met], len(OUTPUTS))


{config}def _tell(what, lost, total):
    if lost:
        sys.stderr.write("%d of %d %s of the network, such as %s\\n" % (len(lost), total, what, lost[0]))
'''


def write_polygraphy_script(job: EmitJob) -> Emitted:
    """The script; a layer is found by its name or by what it makes, so none is left out.

    Raises:
        QdqError: TensorRT 11 or later, which has neither ranges nor precisions.
    """
    require_caches(job.version)
    outputs = {name: layer.precision for layer in job.layers for name in layer.outputs}
    typed = [name for layer in job.layers if layer.typed for name in layer.outputs]
    text = _SCRIPT.format(
        config=_STRICT if in_range(job.version, _BEFORE_CONSTRAINTS) else "",
        made_for=job.made_for,
        command=_in_docstring(_command(job)),
        ranges="".join(f"    {name!a}: {amax_of(scale)!r},\n" for name, scale in job.scales.items()),
        layers="".join(f"    {layer.name!a}: {layer.precision!a},\n" for layer in job.named),
        outputs="".join(f"    {name!a}: {precision!a},\n" for name, precision in outputs.items()),
        typed="".join(f"    {name!a}: True,\n" for name in typed),
    )
    return Emitted(text)


def _in_docstring(text: str) -> str:
    """Lines that names of files stand in, so that none ends the docstring or means another character in it."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def polygraphy_words(model: str, cache: str, script: str, target: str, version: TrtVersion) -> list[str]:
    """The words of the `polygraphy run` that builds a plain model with its cache and the script; unquoted."""
    old = in_range(version, _BEFORE_CONSTRAINTS)
    strict = ["--trt-config-postprocess-script", script] if old else ["--precision-constraints", "obey"]
    dla = ["--use-dla", "--allow-gpu-fallback"] if target == "dla" else []
    files = ["--calibration-cache", cache, "--trt-npps", script]
    return ["polygraphy", "run", model, "--trt", "--int8", "--fp16", *strict, *dla, *files]


def _command(job: EmitJob) -> str:
    """How the script is used."""
    words = polygraphy_words(job.model, job.cache, f"{job.stem}.polygraphy.py", job.target, job.version)
    return shlex.join([*words, "--save-engine", job.engine])
