# SPDX-License-Identifier: Apache-2.0
"""Verbs and options of other tools, and what does their work in qdqtool. They are refused with that answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Verb of another tool -> what does it here.
_VERBS = {
    "benchmark": "bench measures latency; forecast predicts it for a board",
    "calib": "calibrate writes a scale table, ptq a calibration cache",
    "convert": "insert writes a Q/DQ model, ptq a cache, build an engine; cache convert changes the format of a cache",
    "eval": "evaluate measures a model on its task",
    "export": "qdqtool starts from an exported ONNX file; insert makes a Q/DQ model of it, peel takes Q/DQ out again",
    "inspect": "lint shows faults, report the whole model, engine show the layers of an engine",
    "optimize": "insert quantizes a model, prune makes it smaller, improve recovers accuracy",
    "predict": "infer draws what a model finds in images",
    "qat": "insert places Q/DQ, then finetune trains the Q/DQ model",
    "quantize": "insert writes a Q/DQ model, ptq a calibration cache, deploy finds the best way for a board",
    "test": "evaluate measures a model on its task, doctor checks the installation",
    "train": "finetune trains a Q/DQ model; insert makes one",
    "trtexec": "build makes an engine, bench measures it",
}
_SAME_VERBS = {
    "quant": "quantize",
    "quantise": "quantize",
    "optimise": "optimize",
    "val": "eval",
    "validate": "eval",
    "profile": "benchmark",
    "detect": "predict",
}

# Option of another tool -> what does it here.
_ANSWERS = {
    "--cal_cache_file": "the cache is --cache: ptq and peel write it, build, graft and simulate read it",
    "--cal_json_file": "qdqtool cache convert --to tao-json writes it from a cache",
    "--cal_image_dir": "the calibration images are --data, with --preprocess",
    "--cal_data_file": "the calibration data are --data: a folder, a .npz or a script",
    "--engine_file": "the engine is -o of qdqtool build; measure one by its name: evaluate M.plan, bench M.plan",
    "--data_type": "int8: qdqtool insert (Q/DQ) or ptq (cache); fp16: amp, or build --precision fp16",
    "--force_ptq": "it is --force-ptq of qdqtool peel --target dla; ptq calibrates a plain model",
    "--batches": "the number of samples is --limit",
    "--batch_size": "samples in one run are --batch",
    "--max_batch_size": "it is --max-batch of build, peel and ptq",
    "--min_batch_size": "build --shapes x:MIN:OPT:MAX gives all three shapes",
    "--opt_batch_size": "build --shapes x:MIN:OPT:MAX gives all three shapes",
    "--max_workspace_size": "it is --workspace of qdqtool build",
    "--strict_type_constraints": "--emit trtexec keeps layers in float; TensorRT 11 takes types as given",
    "--gen_ds_config": "--emit deepstream of peel and ptq writes it",
    "--onnx_file": "the model is the first word after the verb",
    "--results_dir": "outputs are named by -o",
    "--experiment_spec": "qdqtool run RECIPE.toml runs steps of a file",
    "--experiment_spec_file": "qdqtool run RECIPE.toml runs steps of a file",
}
_OPTIONS = {
    "--enable_qat": "qdqtool finetune places Q/DQ in a model without them, and trains it",
    "--use_amp": "finetune --precision fp16 trains in mixed precision; the verb amp writes an FP16 model",
    "--amp": "finetune --precision fp16 trains in mixed precision; the verb amp writes an FP16 model",
    "--cost_scaling": "finetune --loss-scale dynamic or N, with --precision fp16",
    "--gpus": "finetune --workers N trains with N processes; --provider cuda runs a model on a GPU",
    "--num_gpus": "finetune --workers N trains with N processes; --provider cuda runs a model on a GPU",
    "--device": "--provider cuda runs a model on a GPU",
    "--int8": "qdqtool insert writes an INT8 model",
    "--fp16": "qdqtool amp writes an FP16 model; insert --rest fp16 does so beside INT8",
    "--half": "qdqtool amp writes an FP16 model; insert --rest fp16 does so beside INT8",
    "--epochs": "the length of a training is finetune --epochs or --steps",
    "--num_epochs": "the length of a training is finetune --epochs or --steps",
    "--checkpoint_interval": "finetune --checkpoint-every counts updates; --checkpoint DIR --keep N keeps the newest N",
    "--label_smoothing": "finetune --label OUTPUT:ce=smoothing=0.1",
    "--learning_rate": "it is --lr of qdqtool finetune",
    "--calib": "the cache is --cache: ptq and peel write it, build, graft and simulate read it",
    "--save_engine": "the engine is -o of qdqtool build",
    "--imgsz": "--preprocess size=WxH sets the size of images",
    "--model": "the model is the first word after the verb",
}


def foreign_verb(word: str) -> str:
    """What does the work of another tool's verb here; "" for any other word."""
    return _VERBS.get(_SAME_VERBS.get(word, word), "")


def foreign_option(word: str) -> str:
    """What does the work of another tool's option here; "" for any other word."""
    return tao_answer(word) or _answer(_OPTIONS, re.sub(r"(?<=[a-z])[A-Z]", lambda m: f"_{m[0].lower()}", word))


def tao_answer(word: str) -> str:
    """What an option of TAO is called here; "" for any other word."""
    return _answer(_ANSWERS, word)


def _answer(answers: Mapping[str, str], word: str) -> str:
    name = word.partition("=")[0]
    return answers.get("--" + name.removeprefix("--").replace("-", "_"), "") if name.startswith("--") else ""
