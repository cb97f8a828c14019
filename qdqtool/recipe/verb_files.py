# SPDX-License-Identifier: Apache-2.0
"""What verbs write, and which of their options name files: the words that a recipe's paths are resolved by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerbOutput:
    """The main output of a verb.

    Attributes:
        option: the option that names it, without dashes.
        ending: of the file where the recipe does not name it.
        is_model: whether it is a model that the next step takes.
        beside: option -> ending of a further file that is named after the step.
        is_folder: whether it is a folder, which the verb refuses to write to where it holds files.
        unless: the step writes nothing where this option is absent.
    """

    option: str
    ending: str
    is_model: bool = False
    beside: tuple[tuple[str, str], ...] = ()
    is_folder: bool = False
    unless: str = ""


OUTPUTS = {
    "insert": VerbOutput("output", ".onnx", True),
    "amp": VerbOutput("output", ".onnx", True),
    "condition": VerbOutput("output", ".onnx", True),
    "prune": VerbOutput("output", ".onnx", True),
    "graft": VerbOutput("output", ".onnx", True),
    "finetune": VerbOutput("output", ".onnx", True),
    "peel": VerbOutput("output", ".onnx", True, (("cache", ".cache"),)),
    "lint": VerbOutput("output", ".onnx", True, unless="fix"),
    "ptq": VerbOutput("cache", ".cache"),
    "calibrate": VerbOutput("output", ".scales.json"),
    "build": VerbOutput("output", ".engine"),
    "infer": VerbOutput("output", "", is_folder=True),
    "report": VerbOutput("output", ".report.html"),
    "cache retarget": VerbOutput("output", ".cache"),
    "cache merge": VerbOutput("output", ".cache"),
    "cache convert": VerbOutput("output", ""),
}

# Verbs that a recipe does not call: they call others, or ask the machine.
REFUSED = ("run", "deploy", "improve", "init", "doctor", "demo")

# Options whose value is a file or folder that must be there. A `:function` may stand behind a .py.
READ = frozenset(
    [
        "data", "data-loader-script", "load-inputs", "baseline", "cache", "scales", "source", "rules", "eval-data",
        "teacher", "layer-precisions", "merge", "profile", "model", "layers", "state", "sensitivity", "diff",
    ]
)  # fmt: skip
# Options whose value is a file where there is one of that name, and a word else: `coco`, `filename`, `mse`.
READ_WHERE_THERE = frozenset(
    ["labels", "names", "postprocess", "eval-labels", "eval-names", "eval-decoder", "decoder", "loss", "label"]
)
# Options whose value is a file or folder that is written: it goes to the run's folder.
WRITTEN = frozenset(["output", "emit-dir", "checkpoint", "log", "draw", "model-output", "timing-cache", "report"])
# Verbs that keep unfinished work in --checkpoint, to be taken up by --resume -> the options beside which they do not.
RESUMED = {"finetune": frozenset(["checkpoint", "resume", "blocks"])}
# Options that a verb reads, though others write them.
READ_BY = {"report": frozenset(["log"])}
# A step is the same whatever these are.
WITHOUT_EFFECT = frozenset(["workers", "threads", "max-memory", "max-data", "verbose", "quiet", "color"])
