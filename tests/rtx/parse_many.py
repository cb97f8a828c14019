# SPDX-License-Identifier: Apache-2.0
"""Hundreds of graphs through NVIDIA's parser in one child process: verdict, message, and the types of the outputs.

Run as a script by a Python that has TensorRT for RTX (`child`), with a folder of models; imported, it starts that.
`tensorrt_rtx/parser.py` asks for one model at a time, and each child costs more than the parser does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECONDS = 600.0


@dataclass(frozen=True)
class ParsedTypes:
    """What the parser made of one graph.

    Attributes:
        accepted: whether it made a network.
        message: the first refusal, whole; "" where it is accepted.
        outputs: output -> element type by TensorRT's name, such as "HALF".
    """

    accepted: bool
    message: str
    outputs: dict[str, str]


def parse_many(models: Iterable[bytes], python: str) -> list[ParsedTypes]:
    """The verdicts on serialized models, in their order.

    Args:
        models: serialized.
        python: an interpreter that has TensorRT for RTX.
    """
    with tempfile.TemporaryDirectory(prefix="qdqtool-typed-") as name:
        folder = Path(name)
        for number, model in enumerate(models):
            (folder / f"{number:06d}.onnx").write_bytes(model)
        command = [python, "-B", str(Path(__file__).resolve()), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return [ParsedTypes(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def _parse_one(trt: Any, path: Path) -> dict[str, Any]:
    class ParserLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if "ERROR" in str(severity):
                self.errors.append(text)

    log = ParserLog()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    accepted = bool(parser.parse_from_file(str(path))) and network.num_outputs > 0
    found = (network.get_output(index) for index in range(network.num_outputs)) if accepted else ()
    told = [str(parser.get_error(index).desc()) for index in range(parser.num_errors)] or log.errors
    outputs = {one.name: str(one.dtype).rpartition(".")[2] for one in found}
    return {"accepted": accepted, "message": "" if accepted else next(iter(told), "?"), "outputs": outputs}


def main(folder: Path) -> None:
    """One line of JSON for each model of a folder; each is parsed in a fork, so that a crash is its own."""
    own = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != own]
    import tensorrt_rtx_bindings as trt

    for path in sorted(folder.iterdir()):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 1
            try:
                print(json.dumps(_parse_one(trt, path)), flush=True)
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"accepted": False, "message": "the library crashed", "outputs": {}}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
