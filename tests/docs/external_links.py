# SPDX-License-Identifier: Apache-2.0
"""Asks every address that the documentation links whether it is there: `make links`, for a scheduled job.

No test and no other target uses the network; links within the documentation are checked by the suite.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_ADDRESS = re.compile(r"https?://[^\s<>\"'`)\]|]+")
_TIMEOUT, _TRIES = 20.0, 2
# Namespaces and examples are no pages.
_NO_PAGES = ("http://www.w3.org/", "http://localhost", "http://127.0.0.1")
# What a server answers that is there, and takes no programs.
_THERE = {401, 403, 405, 429}


def pages() -> list[Path]:
    """Every page of the documentation, at the top of the project, in docs/ and in models/."""
    return sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "models").glob("*.md")])


def addresses_of(files: Iterable[Path]) -> dict[str, list[str]]:
    """Address -> the pages that link it, as `file:line`."""
    found: dict[str, list[str]] = {}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for address in _ADDRESS.findall(line):
                address = address.rstrip(".,;:")
                if not address.startswith(_NO_PAGES):
                    found.setdefault(address, []).append(f"{file.name}:{number}")
    return found


def fault_of(address: str) -> str:
    """Why an address cannot be had; "" where it can."""
    fault = ""
    for _ in range(_TRIES):
        request = urllib.request.Request(address, headers={"User-Agent": "qdqtool link check"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                return ""
        except urllib.error.HTTPError as error:
            fault = "" if error.code in _THERE else f"{error.code} {error.reason}"
        except (OSError, ValueError) as error:
            fault = str(error) or type(error).__name__
        if not fault:
            return ""
    return fault


def main(files: Iterable[Path] | None = None) -> int:
    """Print what cannot be had; the exit code, 1 where there is such."""
    found = addresses_of(pages() if files is None else files)
    with ThreadPoolExecutor(8) as pool:
        faults = dict(zip(found, pool.map(fault_of, found), strict=True))
    broken = {address: fault for address, fault in faults.items() if fault}
    for address, fault in broken.items():
        print(f"{', '.join(found[address])}: {address}: {fault}")
    print(f"{len(found)} addresses, {len(broken)} cannot be had")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
