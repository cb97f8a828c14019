# SPDX-License-Identifier: Apache-2.0
"""Prints the oldest versions that pyproject.toml allows, as pip takes them: `make oldest`. No tests here."""

from __future__ import annotations

from qdqtool.requirements import own_requirements

EXTRAS = ("", "cpu", "images", "eval")


def pins() -> list[str]:
    """`name==bound.*` for what every installation needs, onnxruntime, Pillow and pycocotools."""
    found = []
    for one in own_requirements():
        bounds = [version for sign, version in one.clauses if sign == ">="]
        if one.extra in EXTRAS and one.applies and bounds:
            found.append(f"{one.name}=={bounds[0]}.*")
    return found


if __name__ == "__main__":
    print(*pins(), sep="\n")
