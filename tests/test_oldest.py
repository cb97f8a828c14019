# SPDX-License-Identifier: Apache-2.0
"""`make oldest` installs the lower bounds of pyproject.toml and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.oldest import pins

ROOT = Path(__file__).resolve().parent.parent


def test_each_lower_bound_is_pinned() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("numpy", "onnx", "onnxruntime", "polygraphy", "onnx-graphsurgeon", "tqdm"):
        bound = re.search(rf'"{name}>=([\d.]+)"', text)
        assert bound is not None and f"{name}=={bound[1]}.*" in pins()
    assert not [pin for pin in pins() if not re.fullmatch(r"[\w-]+==[\d.]+\.\*", pin)]


def test_every_test_that_it_names_is_there() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    core = re.search(r"^CORE := (.*)$", text, re.MULTILINE)
    assert core is not None
    files = [
        pattern.replace("%", name)
        for pattern, names in re.findall(r"\$\(patsubst %,([^,]+),([^)]*)\)", core[1])
        for name in names.split()
    ]
    folders = re.sub(r"\$\([^)]*\)", "", core[1]).split()
    assert len(files) > 10 and {"graph", "match", "cache", "passes"} <= set(folders)
    assert not [one for one in (*files, *folders) if not (ROOT / "tests" / one).exists()]
