# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the C kernel, which may fail to build, files of other folders, equal bytes."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# Folder in the package -> files of the source tree; an editable install reads them where they are.
COPIED = {
    "rules": sorted(Path("rules").glob("*.toml")),
    "example": [Path("models/tiny_classifier.onnx"), *sorted(Path("models").glob("digits8_*.npz"))],
}


class BuildPython(build_py):
    """Also copies `COPIED`."""

    def run(self) -> None:
        """Build as ever, then copy."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._copied().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What `run` makes, the copies among it."""
        copies = [] if self.editable_mode else list(self._copied().values())
        return [*super().get_outputs(include_bytecode), *copies]

    def _copied(self) -> dict[str, str]:
        target = Path(self.build_lib, "qdqtool")
        return {str(one): str(target / folder / one.name) for folder, files in COPIED.items() for one in files}


class BuildKernel(build_ext):
    """Links without the folder of the Python that builds: a module of the limited API loads no libpython."""

    def build_extensions(self) -> None:
        """Build as ever."""
        if hasattr(self.compiler, "linker_so"):
            self.compiler.linker_so = [word for word in self.compiler.linker_so if "-rpath" not in word]
        super().build_extensions()


class SourceArchive(sdist):
    """With SOURCE_DATE_EPOCH the bytes of the archive depend on the files alone, as those of a wheel do."""

    def make_archive(self, base_name: str, *words: object, **named: object) -> str:
        """Write the archive."""
        path = Path(super().make_archive(base_name, *words, **named))
        if "SOURCE_DATE_EPOCH" not in os.environ or not path.name.endswith(".tar.gz"):
            return str(path)
        epoch = int(os.environ["SOURCE_DATE_EPOCH"])
        entries = {}
        with tarfile.open(path) as written:
            for old in written:
                entry, file = tarfile.TarInfo(old.name), written.extractfile(old)
                entry.type, entry.size, entry.mtime = old.type, old.size, epoch
                entry.mode = 0o755 if old.isdir() or old.mode & 0o100 else 0o644
                entries[old.name] = (entry, None if file is None else io.BytesIO(file.read()))
        with (
            path.open("wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, epoch) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for _, (entry, content) in sorted(entries.items()):
                archive.addfile(entry, content)
        return str(path)


kernel = Extension(
    "qdqtool.amax._kernel",
    [f"qdqtool/amax/{name}.c" for name in ("_kernel", "_squared_errors", "_divergences")],
    depends=["qdqtool/amax/_arrays.h"],
    # Products and sums as NumPy rounds; no debugging information, which would name folders of the builder.
    extra_compile_args=[] if sys.platform == "win32" else ["-ffp-contract=off", "-g0"],
    extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],
    py_limited_api=True,
    optional=True,  # without a compiler NumPy counts, and `qdqtool.amax.kernel.why()` says so
)

setup(
    ext_modules=[] if os.environ.get("QDQTOOL_KERNEL") == "numpy" else [kernel],  # without it: a py3-none-any wheel
    cmdclass={"build_py": BuildPython, "build_ext": BuildKernel, "sdist": SourceArchive},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
