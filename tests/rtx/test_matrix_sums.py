# SPDX-License-Identifier: Apache-2.0
"""What an INT8 matrix product writes in a file whose rest is FP16: sums in FP32, or, with FP16 scales, in FP16.

Sums reach 127 * 127 a term, and FP16 ends at 65504. The engine was built, not run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine

WIDTH, CHANNELS = 128, 256
ACTIVATION = np.float32(2**-5)
WEIGHTS = (2.0 ** -np.random.default_rng(0).integers(3, 8, CHANNELS)).astype(np.float32)  # powers: exact in FP16


def product(scales: type[np.floating]) -> onnx.ModelProto:
    """A matrix product with scales of a type, its rest in FP16."""
    given = "float16" if scales is np.float16 else "float"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 19]> g ({given}[1,64,{WIDTH}] x) => (float16[1,64,{CHANNELS}] y) {{'
        "xq = QuantizeLinear(x, as, z) xd = DequantizeLinear(xq, as, z) wd = DequantizeLinear<axis=1>(w, ws, zs)"
        "xh = Cast<to=10>(xd) wh = Cast<to=10>(wd) m = MatMul(xh, wh) y = Softmax(m) }"
    )
    weight = np.random.default_rng(1).integers(-127, 128, (WIDTH, CHANNELS)).astype(np.int8)
    constants = {"as": ACTIVATION.astype(scales), "ws": WEIGHTS.astype(scales), "w": weight}
    constants |= {"z": np.int8(0), "zs": np.zeros(CHANNELS, np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items())
    return model


@pytest.mark.rtx
@pytest.mark.parametrize(("scales", "written"), [(np.float16, "FP16"), (np.float32, "FP32")])
def test_with_scales_in_fp16_the_sums_themselves_are_written_in_fp16(
    scales: type[np.floating], written: str, tmp_path: Path
) -> None:
    engine = build_engine(product(scales), RtxBuildOptions(engine_path=tmp_path / "e"))
    (layer,) = [one for one in engine.layers if one.is_product]
    assert (layer.product_type, layer.outputs[0].type) == ("INT8", written)
    found = (tmp_path / "e").read_bytes()
    assert (WEIGHTS * ACTIVATION).astype(scales).tobytes() in found  # the whole scale is multiplied after the product
    assert WEIGHTS.astype(scales).tobytes() not in found
