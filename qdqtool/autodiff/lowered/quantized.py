# SPDX-License-Identifier: Apache-2.0
"""The gradient of a Q/DQ pair: straight through where nothing was cut off, and by LSQ for its scale."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from qdqtool.autodiff.lowered.site import Array, LoweringContext, Shape, Wrap, integers, number, reshaped
from qdqtool.autodiff.pairs import PairFunction

_STEPS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}
_BORDER = 1 + 2.0**-22  # the border itself counts as inside, and the kernel below asks for more than zero


def pair_rule(site: LoweringContext, pair: PairFunction) -> Wrap:
    """Gives dx = g where |y - x| <= scale / 2, else 0; dscale = sum of g (y - x there, y elsewhere) / scale.

    The second is LSQ's sum(g (y - mask x)) / scale; the sum goes over what shares a scale.
    """
    shape, scale = site.shape(0), site.shape(1)
    column = scale if pair.axis is None else tuple(n if at == pair.axis else 1 for at, n in enumerate(shape))
    room, extra = _room(site, column)
    text = room + "dx = com.microsoft.ReluGrad (g, room)\n"
    names = ("x", "scale", "zero_point", *extra)
    body = tuple(pair.function(site.opset).node)
    if not pair.learned:
        return Wrap(names, text, ("x",), extra, body)
    text += "masked = com.microsoft.ReluGrad (x, room)  moved = Sub (y, masked)  part = Mul (g, moved)\n"
    text += integers("over", [at for at in range(len(shape)) if at != pair.axis])
    text += "total = ReduceSum <keepdims: int = 0> (part, over)\n" + reshaped("flat", "total", scale)
    return Wrap(names, text + "dscale = Div (flat, scale)\n", ("x", "scale"), extra, body)


def _room(site: LoweringContext, column: Shape) -> tuple[str, dict[str, Array]]:
    """Statements for how far inside the range x lies, below zero outside: half the range less the way to its middle.

    The range goes from the lower end of the lowest step to the upper end of the highest. That is |y - x| <= scale / 2,
    but takes no number half-way between two steps for one that was cut off because y was rounded to float32. Where the
    ends are not known (another type, a computed zero point), it is scale / 2 - |y - x| after all. ReluGrad, which
    passes on where its second input is above zero, is one pass where Where takes three.
    """
    steps, zero = _STEPS.get(site.types[site.inputs[2]]), site.constant(2)
    if steps is None or zero is None:
        text = number("half", 0.5 * _BORDER) + "reach = Mul (scale, half)\n" + reshaped("reaches", "reach", column)
        return text + "gap = Sub (y, x)  far = Abs (gap)  room = Sub (reaches, far)\n", {}
    middle = np.asarray((steps[0] + steps[1]) / 2 - zero.astype(np.float64), np.float32)
    same = bool((middle == middle.flat[0]).all())
    text = number("half", (steps[1] - steps[0] + 1) / 2 * _BORDER) + "reach = Mul (scale, half)\n"
    text += (number("middle", float(middle.flat[0])) if same else "") + "center = Mul (scale, middle)\n"
    text += reshaped("reaches", "reach", column) + reshaped("centers", "center", column)
    text += "gap = Sub (x, centers)  far = Abs (gap)  room = Sub (reaches, far)\n"
    return text, {} if same else {"middle": middle}
