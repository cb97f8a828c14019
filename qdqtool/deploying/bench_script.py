# SPDX-License-Identifier: Apache-2.0
"""`bench.sh` and `README.md` of a deployment as text: one times its engines on the board, the other says how."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.emit.trtexec import FIND_TRTEXEC

BENCH, README = "bench.sh", "README.md"

_HEAD = """#!/bin/sh
# Times the engines of this folder: median GPU time of one inference, without copies. Builds those that are not there.
"""
_CLOCKS = "Fix the clocks first: `sudo nvpmodel -m 0` and `sudo jetson_clocks`."
_TIME_OF = r"""cd "$(dirname "$0")" || exit 1
time_of() { # script, engine, further flags
  script="$1" engine="$2"
  shift 2
  if [ ! -f "$engine" ]; then
    echo "building $engine" >&2
    sh "$script" > "$engine.build.log" 2>&1 || { tail -n 20 "$engine.build.log" >&2; exit 1; }
  fi
  "$trtexec" "--loadEngine=$engine" --warmUp=1000 --duration=10 "$@" > "$engine.bench.log" 2>&1 ||
    { tail -n 20 "$engine.bench.log" >&2; exit 1; }
  sed -n '/GPU Compute/,$p' "$engine.bench.log" | sed -n 's/.*median[ =:]*\([0-9.]*\) ms.*/\1/p' | head -n 1
}
"""


@dataclass(frozen=True)
class BuildScript:
    """A script of the folder that builds one engine."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The command that it runs."""
        return shlex.split(self.text[self.text.index("\nexec ") :].replace("\\\n", ""))

    @property
    def engine(self) -> str:
        """The file that it writes."""
        words = self.words
        saved = [word.partition("=")[2] for word in words if word.startswith("--saveEngine=")]
        return saved[0] if saved else words[words.index("-o") + 1]

    @property
    def stem(self) -> str:
        """What the model's files are called."""
        return self.name.removesuffix(".sh").rpartition(".")[0]


def bench_script(builds: Sequence[BuildScript], *, dla: bool, rtx: bool) -> str:
    """The script that times the engines of one or two scripts, and says how much faster the first one is."""
    lines = []
    for number, one in enumerate(builds, 1):
        best = [word.partition("=")[2] for word in one.words if word.startswith(("--shapes=", "--optShapes="))]
        flags = [*(["--useDLACore=0"] if dla else []), *(f"--shapes={text}" for text in best)]
        lines.append(f"time{number}=$(time_of {shlex.join([one.name, one.engine, *flags])}) || exit 1")
        lines.append(f'printf "%s: %s ms\\n" {shlex.quote(one.stem)} "$time{number}"')
    if builds[1:]:
        lines.append('awk -v first="$time1" -v second="$time2" \'BEGIN { printf "%.2f", second / first }\'')
        lines.append(f'printf " times the speed of %s\\n" {shlex.quote(builds[1].stem)}')
    find = 'trtexec="${TENSORRT_RTX:-tensorrt_rtx}"\n' if rtx else FIND_TRTEXEC
    return f"{_HEAD}{find}{_TIME_OF}" + "\n".join(lines) + "\n"


def readme(title: str, said: Sequence[str], builds: Sequence[BuildScript], served: Sequence[str]) -> str:
    """What to do with the folder.

    Args:
        title: the board and its software.
        said: whether INT8 is worth it there, and what was kept.
        builds: the scripts, that of what was kept first.
        served: files by which others run the engine.
    """
    engines = " and ".join(f"`{one.engine}`" for one in builds)
    others = " and ".join(f"`{name}`" for name in served)
    lines = [
        f"# {builds[0].stem} for {title}",
        *said,
        "",
        f"Copy this folder to the board; run `sh {BENCH}`: it builds {engines} and prints the GPU time of each.",
        *([_CLOCKS] if "Jetson" in title else []),
        f"`sh {builds[0].name}` builds what was kept; flags may follow."
        + (f" {others} {'run' if served[1:] else 'runs'} it." if others else ""),
        "`candidates.txt` lists what was tried; `deploy.json` has all figures.",
        "`qdqtool run recipe.toml` makes the kept model again.",
    ]
    return "\n".join(lines) + "\n"
