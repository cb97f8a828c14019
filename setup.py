# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the C kernel, which may fail to build, and rules/ as part of the package."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


class BuildPython(build_py):
    """Also copies rules/*.toml to qdqtool/rules; an editable install reads them where they are."""

    def run(self) -> None:
        """Build as ever, then copy."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._rules().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What `run` makes, the rules among it."""
        rules = [] if self.editable_mode else list(self._rules().values())
        return [*super().get_outputs(include_bytecode), *rules]

    def _rules(self) -> dict[str, str]:
        target = Path(self.build_lib, "qdqtool", "rules")
        return {str(source): str(target / source.name) for source in sorted(Path("rules").glob("*.toml"))}


kernel = Extension(
    "qdqtool.amax._kernel",
    [f"qdqtool/amax/{name}.c" for name in ("_kernel", "_squared_errors", "_divergences")],
    depends=["qdqtool/amax/_arrays.h"],
    extra_compile_args=[] if sys.platform == "win32" else ["-ffp-contract=off"],  # products and sums as NumPy rounds
    py_limited_api=True,
    optional=True,  # without a compiler NumPy counts, and `qdqtool.amax.kernel.why()` says so
)

setup(
    ext_modules=[kernel],
    cmdclass={"build_py": BuildPython},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
