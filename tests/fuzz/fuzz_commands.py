# SPDX-License-Identifier: Apache-2.0
"""The commands that are attacked: every verb, with the files it reads by their role. Not the files themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qdqtool.match.options import PlanOptions
from qdqtool.options import declared
from qdqtool.verbs.insert_options import InsertOptions
from tests.fuzz.seed_graphs import CODED

_DATA = "--data {data} --limit 2"
_DLA = "--target dla --trt-version 8502"
_GPU = "--target gpu --trt-version 8502"
_PEEL = "peel {qdq} -o out.onnx --cache out.cache"


@dataclass(frozen=True)
class Command:
    """A command: words in which {role} stands for a file, and how often it is drawn beside the others.

    `saves` names what it writes, for the faults while saving; empty where it writes nothing. Weight 0: for
    those alone.
    """

    name: str
    words: str
    weight: int = 2
    saves: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """The files it needs, in order."""
        return tuple(dict.fromkeys(re.findall(r"{(\w+)}", self.words)))


def _inserting() -> list[Command]:
    insert, keep = "insert {model} -o out.onnx", "--keep-float 0"
    return [
        Command("insert", insert, 8, ("out.onnx",)),
        Command("insert-dla", f"{insert} {_DLA}", 2),
        Command("insert-rtx", f"{insert} --target rtx", 2),
        Command("insert-scales", f"{insert} --scales {{scales}}", 4),
        Command("insert-data", f"{insert} {_DATA} {keep}", 6, ("out.onnx",)),
        Command("insert-keep", f"{insert} {_DATA} --max-output-loss 0.5", 2),
        Command("insert-fold", f"{insert} {_DATA} {keep} --fold-bn --fold-constants --method entropy", 2),
        Command("insert-condition", f"{insert} {_DATA} {keep} --condition auto", 3, ("out.onnx",)),
        Command("insert-rules", f"{insert} --rules {{rules}}", 3),
        Command("insert-again", f"insert {{qdq}} -o out.onnx {_DATA} --requantize {keep}", 2),
        Command("insert-explain", "insert {model} --explain x --json", 1),
    ]


def _declared() -> list[Command]:
    """`insert` with each flag and each choice that its options declare."""
    options = [*declared(PlanOptions).values(), *declared(InsertOptions).values()]
    words = [[one.flags[-1], word] for one in options for word in one.choices or ()]
    words += [one.flags[-1:] for one in options if one.is_flag and one.help is not None]
    return [Command(f"insert{'='.join(one)}", f"insert {{model}} -o out.onnx {' '.join(one)}", 1) for one in words]


def _calibrating() -> list[Command]:
    calibrate = "calibrate {model} -o out.scales.json"
    saved = ("out.scales.json",)
    return [
        Command("calibrate", f"{calibrate} {_DATA} --method mse", 5, saved),
        Command("calibrate-auto", f"{calibrate} {_DATA}", 2),
        Command("calibrate-npy", f"{calibrate} --data {{npy}} --method max", 3),
        Command("calibrate-json", f"{calibrate} --load-inputs {{inputs}} --method percentile=99.9", 3),
        Command("calibrate-images", f"{calibrate} --data {{images}} --preprocess scale=255 --method max", 4),
        Command("calibrate-resume", f"{calibrate} --data {{data}} --method mse --checkpoint {{kept}} --resume", 4),
        Command("calibrate-shard", f"calibrate {{model}} {_DATA} --shard 1/2 -o out.state", 2, ("out.state",)),
        Command("calibrate-merge", "calibrate --merge {one} {two} -o out.scales.json", 5, saved),
        Command("condition", f"condition {{model}} -o out.onnx {_DATA}", 4, ("out.onnx",)),
        Command("ptq", f"ptq {{model}} --cache out.cache {_DATA} {_GPU}", 4, ("out.cache", "out.cache.json")),
        Command("ptq-dla", f"ptq {{model}} --cache out.cache {_DATA} {_DLA}", 2),
    ]


def _caches() -> list[Command]:
    cached = ("out.cache", "out.cache.json")
    merge = "cache merge {cache} {other_cache} -o out.cache --on-conflict max"
    rename = "--sanitize-names --model {model} --model-output out.onnx"
    formats = ("ort-flatbuffers", "ort-json", "tao-json", "polygraphy-script", "csv", "json")
    convert = [
        Command(f"cache-to-{kind}", f"cache convert {{cache}} --to {kind} -o out.table", 1, ("out.table",))
        for kind in formats
    ]
    back = [
        Command(f"cache-from-{kind}", f"cache convert {{{kind.replace('-', '_')}}} --to trt -o out.cache {version}", 2)
        for kind, version in [(kind, "--trt-version 8502") for kind in formats if kind != "polygraphy-script"]
    ]
    return [
        Command("cache-show", "cache show {cache}", 3),
        Command("cache-check", "cache check {cache} {model}", 3),
        Command("cache-diff", "cache diff {cache} {other_cache}", 2),
        Command("cache-retarget", "cache retarget {cache} --trt-version 7103 -o out.cache", 2, cached),
        Command("cache-merge", merge, 2, cached),
        Command("cache-sanitize", f"cache convert {{cache}} --to trt -o out.cache {rename}", 1, (*cached, "out.onnx")),
        *convert,
        *back,
        Command("graft", "graft {model} --cache {cache} -o out.onnx", 4, ("out.onnx",)),
        Command("graft-everywhere", "graft {model} --cache {dla_cache} --everywhere -o out.onnx", 2),
    ]


def _peeling() -> list[Command]:
    peeled = ("out.onnx", "out.cache", "out.cache.json")
    jobs = tuple(f"out.{end}" for end in ("trtexec.sh", "polygraphy.py", "precision.json"))
    emit = "--emit trtexec,polygraphy-script,deepstream,triton,json"
    return [
        Command("peel", f"{_PEEL} {_GPU} --allow-estimated", 6, peeled),
        Command(
            "peel-wide", f"{_PEEL} {_GPU} --allow-estimated --on-asymmetric widen --on-conflict max --bake-weights", 4
        ),
        Command("peel-dla", f"{_PEEL} {_DLA} --allow-estimated", 3, peeled),
        Command("peel-dla-data", f"{_PEEL} {_DLA} {_DATA} --force-ptq", 2),
        Command("peel-emit", f"{_PEEL} {_GPU} --allow-estimated {emit}", 3, (*peeled, *jobs)),
        Command("peel-source", f"{_PEEL} {_GPU} --source {{model}}", 3),
    ]


def _linting() -> list[Command]:
    return [
        Command("lint", "lint {model}", 6),
        Command("lint-qdq", "lint {qdq} --all --json", 4),
        Command("lint-fix", "lint {qdq} --fix -o out.onnx", 4, ("out.onnx",)),
        Command("engine-predicted", "engine show {qdq} --predicted", 3),
        Command("engine-show", "engine show {layer_info} --model {model} --trt-version 8.5.2", 5),
        Command("lint-rtx", "lint {qdq} --target rtx --no-parser", 3),
        Command("report", "report {qdq} --no-parser -o out.html", 4, ("out.html",)),
        Command("report-cache", "report {model} --cache {cache} --no-parser -o out.html", 3),
        Command("report-data", f"report {{qdq}} --model {{model}} {_DATA} --no-parser -o out.html", 3),
        Command("report-layers", "report {model} --layers {layer_info} --no-parser -o out.html", 3),
        Command("report-diff", "report {model} --diff {qdq} --no-parser -o out.html", 2),
        Command("report-state", "report {model} --state {kept} --no-parser -o out.html", 3),
        Command("lint-dla", f"lint {{model}} {_DLA} --format sarif", 3),
    ]


def _typed() -> list[Command]:
    amp, rest = "amp {model} -o out.onnx", "--trt-version 11.1 --rest fp16"
    return [
        Command("amp", f"{amp} {_DATA}", 5, ("out.onnx",)),
        Command("amp-qdq", f"amp {{qdq}} -o out.onnx {_DATA} --to bf16", 3),
        Command("amp-scales", f"{amp} --scales {{scales}} --io fp16", 3),
        Command("amp-range", f"{amp} --assume-range 8 --explain x", 2),
        Command("amp-again", f"amp {{half}} -o out.onnx {_DATA} --max-output-loss 0.01", 2),
        Command("insert-rest", f"insert {{model}} -o out.onnx {rest} --scales {{scales}} --dq-only", 3),
        Command("insert-half", f"insert {{half}} -o out.onnx {_DATA} --keep-float 0", 3),
        Command("graft-rest", "graft {model} --cache {cache} -o out.onnx --rest fp16", 2),
        Command("peel-typed", f"peel {{typed}} -o out.onnx --cache out.cache {_GPU} --allow-estimated", 4),
        Command("lint-typed", "lint {typed} --trt-version 11.1 --no-parser --all", 3),
        Command("lint-half", f"lint {{half}} {_DATA} --no-parser", 2),
        Command("engine-typed", "engine show {typed} --predicted --trt-version 11.1", 2),
        Command("simulate-typed", f"simulate {{typed}} {_DATA} -o out.npz", 2),
        Command("finetune-typed", "finetune {typed} -o out.onnx --data {data} --steps 1 --limit 2", 2),
    ]


def _pruning() -> list[Command]:
    prune = "prune {model} -o out.onnx"
    return [
        Command("prune", f"{prune} --ratio 0.5", 4, ("out.onnx",)),
        Command("prune-qdq", "prune {qdq} -o out.onnx --macs 0.7", 3),
        Command("prune-typed", "prune {typed} -o out.onnx --ratio 0.5 -pg 2 --exclude x", 2),
        Command("prune-taylor", f"{prune} --ratio 0.5 --importance taylor {_DATA}", 2),
        Command("prune-data", f"{prune} -pth 0.5 -pg 1 -nf 1 --importance activation {_DATA} --json", 2),
        Command("prune-latency", "prune {model} --latency 0.9 --for orin-nx --dry-run", 2),
        Command(
            "finetune-pruned", "finetune {model} --teacher {model} -o out.onnx --data {data} --steps 1 --limit 2", 2
        ),
    ]


def _formats() -> list[Command]:
    """Number formats beside INT8, on a model that has room for their blocks."""
    insert = f"insert {{wide}} -o out.onnx {_DATA} --keep-float 0 --format"
    made = [Command(f"insert-{name}", f"{insert} {name}", 2, ("out.onnx",)) for name in (*CODED, "mixed")]
    return made + [
        command
        for name in CODED
        for command in (
            Command(f"peel-{name}", f"peel {{{name}}} -o out.onnx {_GPU} --source {{wide}}", 1, ("out.onnx",)),
            Command(f"lint-{name}", f"lint {{{name}}} --no-parser --fix -o out.onnx", 1),
            Command(f"simulate-{name}", f"simulate {{{name}}} {_DATA} -o out.npz", 1),
            Command(f"report-{name}", f"report {{{name}}} --model {{wide}} --no-parser -o out.html", 1),
        )
    ]


def _beginning() -> list[Command]:
    return [
        Command("init", "init {model} {images}", 2),
        Command("init-arrays", "init {model} {data}", 1),
        Command("forecast", "forecast {model} --for orin-nx:jp6.1", 3),
        Command("forecast-qdq", "forecast {qdq}", 1),
        Command("forecast-profile", "forecast {model} --for rtx4090 --profile {layer_info}", 1),
        Command("build", "build {model} -o out.plan", 1),
        Command("completion", "completion bash", 1),
        Command(
            "insert-untrusted", f"insert {{model}} -o out.onnx {_DATA} --keep-float 0 --untrusted", 1, ("out.onnx",)
        ),
        Command("cache-untrusted", "cache check {cache} {model} --untrusted", 1),
    ]


def _deploying() -> list[Command]:
    deploy, improve = "deploy {model} --data {more} --effort fast -o out", "improve {qdq} --data {more} -o out.onnx"
    return [
        Command("deploy", f"{deploy} --for 8.6.1", 2, ("out/deploy.json",)),
        Command("deploy-dla", f"{deploy} --for xavier-nx:jp4.6.1 --dla", 2),
        Command("deploy-typed", f"{deploy} --for 11.4 --max-loss 0.1", 1),
        Command("improve", f"{improve} --max-loss 0.2 --effort fast", 2, ("out.onnx",)),
        Command("calibrate-part", "calibrate {model} -o out.scales.json --data {more} --part 0:f --method max", 2),
    ]


def _judging() -> list[Command]:
    finetune = "finetune {qdq} -o out.onnx --data {data} --steps 1"
    pictures = ("pictures/a.png", "pictures/b.png", "pictures/detections.json")
    return [
        Command("evaluate", "evaluate {classifier} --data {labeled}", 3),
        Command("evaluate-csv", "evaluate {classifier} --data {images} --preprocess scale=255 --labels {csv}", 3),
        *(
            Command(
                f"evaluate-{kind}",
                f"evaluate {{detector}} --data {{images}} --preprocess yolox --labels {{{kind}}} --names {{names}}",
                3,
            )
            for kind in ("coco", "voc", "yolo")
        ),
        Command(
            "evaluate-agreement",
            "evaluate {classifier} --baseline {classifier} --data {images} --preprocess scale=255",
            2,
        ),
        Command("compare", f"compare {{model}} {{qdq}} {_DATA}", 4),
        Command(
            "compare-draw",
            "compare {detector} {detector} --data {images} --preprocess yolox --draw pictures --names {names}",
            1,
        ),
        Command("sensitivity", f"sensitivity {{model}} {_DATA}", 2),
        Command("simulate", f"simulate {{qdq}} {_DATA} -o out.npz", 4, ("out.npz",)),
        Command("simulate-dla", f"simulate {{model}} --cache {{dla_cache}} --target dla {_DATA} -o out.npz", 2),
        Command("infer", "infer {detector} --data {images} --preprocess yolox -o pictures", 4, pictures),
        Command("infer-classes", "infer {classifier} --data {images} --preprocess scale=255 -o pictures", 2),
        Command("finetune", f"{finetune} --limit 2", 4, ("out.onnx",)),
        Command("finetune-workers", f"{finetune} --limit 2 --workers 2", 0, ("out.onnx",)),
        Command("finetune-blocks", f"{finetune} --limit 2 --blocks --ranges learn", 2, ("out.onnx",)),
        Command("finetune-teacher", f"{finetune} --limit 2 --teacher {{model}} --ranges learn --log out.jsonl", 2),
        Command("finetune-resume", f"{finetune} --checkpoint {{tuned}} --resume", 3),
        Command("bench", "bench {model} {qdq} --runs 2 --warm-up 0 --threads 1", 2),
        Command("run", "run {recipe} -o out.run", 2),
        Command("run-dry", "run {recipe} --dry-run --json", 1),
        Command("doctor", "doctor", 1),
    ]


COMMANDS = (
    *_inserting(),
    *_declared(),
    *_calibrating(),
    *_caches(),
    *_peeling(),
    *_linting(),
    *_typed(),
    *_pruning(),
    *_formats(),
    *_beginning(),
    *_deploying(),
    *_judging(),
)
