# SPDX-License-Identifier: Apache-2.0
"""Cases of the training bench: a Q/DQ network with a loss behind it, and a batch, in a folder that any worker reads.

forward.onnx: the graph; case.json: parameters, loss, shapes and types, as `Forward` has them; batch.npz: all it is fed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.graph.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # another interpreter has qdqtool not installed

if TYPE_CHECKING:
    from qdqtool.autodiff.backend import Forward


@dataclass(frozen=True)
class TrainingNet:
    """A network of the corpus.

    Attributes:
        name: of its file, without the ending.
        batch: samples in a step; 1 where the file says so.
        steps: in one round, a second or two.
    """

    name: str
    batch: int
    steps: int


NETS = (
    TrainingNet("cifar_resnet20", 32, 8),
    TrainingNet("cifar_resnet20_bn", 32, 8),
    TrainingNet("ultraface_rfb320_raw", 1, 20),
    TrainingNet("yolox_nano_coco", 1, 4),
)


def write_case(folder: Path, forward: Forward, batch: Mapping[str, Any]) -> None:
    """Write a forward and what it is fed."""
    import numpy as np
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(forward.proto, str(folder / "forward.onnx"))
    np.savez(folder / "batch.npz", **batch)
    facts = {
        "parameters": list(forward.parameters),
        "loss": forward.loss,
        "auxiliary": list(forward.auxiliary),
        "shapes": {name: list(shape) for name, shape in forward.shapes.items()},
        "types": dict(forward.types),
    }
    (folder / "case.json").write_text(json.dumps(facts))


def read_case(folder: Path) -> tuple[Forward, dict[str, Any]]:
    """What `write_case` wrote."""
    import numpy as np
    import onnx

    from qdqtool.autodiff.backend import Forward

    facts = json.loads((folder / "case.json").read_text())
    names = tuple(facts["parameters"]), facts["loss"], tuple(facts["auxiliary"])
    shapes = {name: tuple(shape) for name, shape in facts["shapes"].items()}
    proto = onnx.load(str(folder / "forward.onnx"))
    return Forward(proto, *names, shapes, facts["types"]), dict(np.load(folder / "batch.npz"))


def make_case(net: TrainingNet, corpus: Path, folder: Path) -> None:
    """Quantize a network by `insert` (mse, per channel), take the distance to its float outputs as loss, write it.

    Inputs are seeded noise of an image's size: what is measured is time.
    """
    import numpy as np

    import qdqtool as verbs
    from qdqtool.data.model_inputs import inputs_of
    from qdqtool.graph.io import open_model
    from qdqtool.observers.options import CalibrationOptions
    from qdqtool.training.losses.loss_graph import append_losses
    from qdqtool.training.losses.options import LossOptions
    from qdqtool.training.losses.teacher import Teacher, float_twin
    from qdqtool.training.shapes import make_forward, run_once
    from qdqtool.training.training_graph import make_form
    from qdqtool.verbs.insert_options import InsertOptions

    plain = open_model(corpus / "models" / f"{net.name}.onnx")
    value = inputs_of(plain.proto.graph)[0]
    shape = tuple(int(one) for one in value.shape[1:])
    array = np.random.default_rng(0).normal(0, 1, (net.batch, *shape)).astype(np.float32)
    folder.parent.mkdir(parents=True, exist_ok=True)
    samples = folder.parent / f"{folder.name}.npz"
    np.savez(samples, **{value.name: array[:4]})
    options = InsertOptions(calibration=CalibrationOptions("mse"), keep_float=0)
    quantized = verbs.insert(plain.proto, data=str(samples), options=options).model
    form = make_form(Model(quantized), "fixed", "keep", ())
    batch = {value.name: array}
    seen = run_once(Model(form.proto), batch)
    teacher = Teacher(Model(float_twin(form.proto)), batch, "the model in float")
    outputs = [one.name for one in form.proto.graph.output]
    shapes = {name: one.shape for name, one in seen.items()}
    loss = append_losses(form.proto, outputs, LossOptions(), teacher, shapes)
    targets = teacher.run(batch)
    feed = {**batch, **{taker: targets[name] for name, taker in loss.targets.items()}}
    write_case(folder, make_forward(loss.proto, form.parameters, loss.loss, (), feed), feed)
