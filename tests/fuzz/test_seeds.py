# SPDX-License-Identifier: Apache-2.0
"""The same seed gives the same mutants: seed files have the same bytes in each run, and so has what is made of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seeds are made in forked children")

_PRINT = """
import hashlib, json, sys
from pathlib import Path
from tests.fuzz.fuzz import _import_all
from tests.fuzz.fuzz_seeds import detector_family, small_family
from tests.fuzz.mutants import Source, digest, tasks
from tests.graphs import SMALL_NET, model_of
_import_all()
place = Path(sys.argv[1])
made = [small_family(place / "small", model_of(SMALL_NET, 13)), detector_family(place / "detector")]
found = {"digest": digest(made)}
for number, task in enumerate(tasks(Source(made, 1), 120, None)):
    folder = place / str(number)
    (folder / "run").mkdir(parents=True)
    task.prepare(folder)
    found[task.id] = (folder / "job.json").read_text()
print(json.dumps(found))
"""


def _mutants(folder: Path, hash_seed: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _PRINT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=folder)
    return json.loads(done.stdout)


@pytest.mark.slow  # two processes make all seed files
def test_two_runs_make_the_same_mutants(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = _mutants(tmp_path / "one", "1")
    assert len(first) == 121
    assert first == _mutants(tmp_path / "two", "2")
