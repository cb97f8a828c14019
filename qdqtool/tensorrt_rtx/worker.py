# SPDX-License-Identifier: Apache-2.0
"""The child process that loads TensorRT for RTX: one job on stdin, one result in a file, both JSON.

It needs the standard library and the wheel alone, so that any Python which has the wheel can run it; nothing of qdqtool
is imported here. What calls it is `child.py`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

_MOST_MESSAGES = 200
_LONGEST = 4000
_PARSING = ("Static check for parsing node: ", "Parsing node: ")
_FAILED = "While parsing node number "


class RefusedError(Exception):
    """A job that cannot be done, with what the library says about it."""


def main() -> None:
    """Do the job on stdin."""
    # Let Linux end this process when the one that started it is gone, however it went
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    job = json.load(sys.stdin)
    try:
        done = _run(job)
    except RefusedError as error:
        done = {"refused": str(error)[:_LONGEST]}
    Path(job["result"]).write_text(json.dumps(done), encoding="ascii")


def _run(job: dict[str, Any]) -> dict[str, Any]:
    own = Path(__file__).resolve().parent  # modules of qdqtool are none of the library's
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != own]
    import tensorrt_rtx_bindings as trt

    log = _make_log(trt)
    begun = time.process_time()
    builder = trt.Builder(log)
    network = builder.create_network(0)  # strongly typed, whatever the flags
    parser = trt.OnnxParser(network, log)
    accepted = _parse(parser, job)
    done: dict[str, Any] = {
        "version": str(trt.__version__),
        "accepted": bool(accepted) and network.num_outputs > 0,  # what is no model "parses" into an empty network
        "network_layers": network.num_layers,
        "errors": [_error(parser.get_error(i), log.failed) for i in range(parser.num_errors)],
        "warnings": log.warnings,
        "log_errors": log.errors,
    }
    if job["action"] == "build" and done["accepted"]:
        done["build"] = _build(trt, builder, network, log, job)
        done["warnings"] = log.warnings
    done["cpu_seconds"] = round(time.process_time() - begun, 3)
    done["peak_bytes"] = _peak_bytes()
    return done


def _make_log(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        """Keeps what a result needs of the library's messages."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.node = ""  # that the parser is at, as "<name> [<operator>]"
            self.failed: list[str] = []  # "<index> [<operator> -> <first output>]"
            self.layers: list[str] = []
            self.warnings: list[dict[str, str]] = []
            self.errors: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            word = str(severity)
            if "VERBOSE" in word:
                if ", LayerType: " in text:
                    self.layers.append(text)
                for begin in _PARSING:
                    if text.startswith(begin):
                        self.node = text[len(begin) :]
            elif "WARNING" in word and len(self.warnings) < _MOST_MESSAGES:
                self.warnings.append({"node": self.node, "text": text[:_LONGEST]})
            elif "ERROR" in word and len(self.errors) < _MOST_MESSAGES:
                self.errors.append(text[:_LONGEST])
                if _FAILED in text:
                    self.failed.append(text.partition(_FAILED)[2])

    return Log()


def _parse(parser: Any, job: dict[str, Any]) -> bool:
    if job.get("folder"):  # weights lie there, the graph does not
        return bool(parser.parse(Path(job["model"]).read_bytes(), str(Path(job["folder"]) / "model.onnx")))
    return bool(parser.parse_from_file(job["model"]))


def _error(error: Any, failed: list[str]) -> dict[str, Any]:
    index = int(error.node())
    place = next((text for text in failed if text.startswith(f"{index} [")), "")
    return {
        "code": str(error.code()).rpartition(".")[2],
        "text": str(error.desc())[:_LONGEST],
        "node": str(error.node_name()),
        "operator": str(error.node_operator()),
        "tensor": place.partition(' -> "')[2].rpartition('"]')[0],
        "stack": [str(name) for name in error.local_function_stack()],
    }


def _build(trt: Any, builder: Any, network: Any, log: Any, job: dict[str, Any]) -> dict[str, Any]:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = len(job["sm"])
    for place, number in enumerate(job["sm"]):
        capability = getattr(trt.ComputeCapability, f"SM{number}", None)
        if capability is None:
            known = sorted(name[2:] for name in trt.ComputeCapability.__members__ if name.startswith("SM"))
            raise RefusedError(f"SM{number} is not known to this version, which builds for {', '.join(known)}")
        config.set_compute_capability(capability, place)
    shapes = _shapes(network, job["shapes"])
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (low, best, high) in shapes.items():
            profile.set_shape(name, low, best, high)
        config.add_optimization_profile(profile)
    before = len(log.errors)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        return {"failed": log.errors[before:] or log.errors, "shapes": shapes}
    if job.get("engine"):
        Path(job["engine"]).write_bytes(memoryview(engine))
    return {"layers": "\n".join(log.layers), "shapes": shapes, "engine_bytes": int(engine.nbytes)}


def _shapes(network: Any, asked: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """The lowest, best and highest shape of each input that has free sides."""
    inputs = {one.name: tuple(one.shape) for one in (network.get_input(i) for i in range(network.num_inputs))}
    unknown = [name for name in asked if name not in inputs]
    if unknown:
        raise RefusedError(f"has no input {unknown[0]}; its inputs are {', '.join(inputs)}")
    found = {}
    for name, shape in inputs.items():
        if name in asked:
            _check_shape(name, shape, asked[name])
            found[name] = asked[name]
        elif -1 in shape:
            found[name] = [_usual(shape)] * 3
    return found


def _check_shape(name: str, shape: tuple[int, ...], asked: list[list[int]]) -> None:
    for sides in asked:
        fits = len(sides) == len(shape) and all(own in (-1, side) for own, side in zip(shape, sides, strict=True))
        if not fits:
            form = "x".join("?" if side < 0 else str(side) for side in shape)
            raise RefusedError(f"input {name} is {form}, and the shape {'x'.join(map(str, sides))} does not fit it")


def _usual(shape: tuple[int, ...]) -> list[int]:
    """A batch of 1; sides of a picture 320, others 64: sides of 1 would let the compiler leave work out."""
    free = 320 if len(shape) >= 4 else 64
    return [side if side >= 0 else 1 if place == 0 else free for place, side in enumerate(shape)]


def _peak_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main()
