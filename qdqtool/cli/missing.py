# SPDX-License-Identifier: Apache-2.0
"""Every package that a command lacks, named at once, where the first of them stopped it. Not whether they work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import pairwise

from qdqtool.errors import MissingPackageError

# module -> (what pip calls it, our extra, whether a command reads what it is for)
_Needs = Callable[[Sequence[str]], bool]


def with_all(error: MissingPackageError, argv: Sequence[str]) -> MissingPackageError:
    """The error, with the other packages that the same command lacks, and one line of pip for all."""
    lacking = [(name, extra) for module, name, extra, needs in _PACKAGES if needs(argv) and not _is_there(module)]
    if len(lacking) < 2:
        return error
    names = ", ".join(name for name, _ in lacking)
    extras = ",".join(extra for _, extra in lacking)
    return MissingPackageError(argv[0], f"needs {names}, which are not installed", f'pip install "qdqtool[{extras}]"')


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _runs(argv: Sequence[str]) -> bool:
    return "--data" in argv or argv[0] in ("bench", "prune", "compare", "evaluate", "infer", "simulate")


def _reads_images(argv: Sequence[str]) -> bool:
    """Whether some word names images."""
    from qdqtool.data.image_folder import find_images

    for word in argv[1:]:
        try:
            if not word.startswith("-") and find_images(word) is not None:
                return True
        except (OSError, ValueError):
            continue
    return argv[0] == "infer" or "--preprocess" in argv


def _judges_boxes(argv: Sequence[str]) -> bool:
    """Whether average precision may be asked for: labels, or the boxes of a baseline."""
    from qdqtool.evaluation.labels import are_boxes

    if "--metric" in argv and ("top1" in argv or "miou" in argv):
        return False
    if argv[0] in ("deploy", "improve"):
        return any(option == "--labels" and are_boxes(word) for option, word in pairwise(argv))
    return argv[0] == "evaluate" and ("--labels" in argv or "--baseline" in argv)


_PACKAGES: tuple[tuple[str, str, str, _Needs], ...] = (
    ("onnxruntime", "onnxruntime", "cpu", _runs),
    ("PIL", "Pillow", "images", _reads_images),
    ("pycocotools", "pycocotools", "eval", _judges_boxes),
)
