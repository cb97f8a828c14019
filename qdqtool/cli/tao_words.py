# SPDX-License-Identifier: Apache-2.0
"""Options of NVIDIA's TAO that people type here, and what they are called in qdqtool. Not taken, but answered."""

from __future__ import annotations

# TAO's option -> what does it here.
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


def tao_answer(word: str) -> str:
    """What an option of TAO is called here; "" for any other word."""
    name = word.partition("=")[0]
    return _ANSWERS.get("--" + name.removeprefix("--").replace("-", "_"), "") if name.startswith("--") else ""
