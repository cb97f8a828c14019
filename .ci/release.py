# SPDX-License-Identifier: Apache-2.0
"""Builds a release twice, compares and checks it (`make release`), or installs what was built (`make installed`).

The sdist is packed from the last commit, the wheels from the sdist: one for this platform, and one without the C kernel
for all others. They go to dist/ with an SBOM of an installation. Uploads nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
EXTRAS = "[cpu,images,eval]"
TEST_PACKAGES = ("hypothesis", "pytest", "pytest-randomly")
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def main() -> None:
    """Build and check, or install and try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--install", metavar="PYTHON", help="install the wheel of dist/ for this Python and run the demo"
    )
    parser.add_argument("--pure", action="store_true", help="the wheel without the C kernel")
    parser.add_argument("--pins", type=Path, metavar="FILE", help="versions of other packages, as requirements")
    parser.add_argument("--tests", nargs="+", metavar="PATH", default=[], help="and these tests, below tests/")
    args = parser.parse_args()
    if args.install:
        with tempfile.TemporaryDirectory() as name:
            install(args.install, Path(name), args.pins, args.tests, pure=args.pure)
    else:
        release()


def release() -> None:
    """Build twice and compare the bytes; ask each checker; write the SBOM."""
    os.umask(0o022)  # wheels hold the modes of files
    with tempfile.TemporaryDirectory() as name:
        builds = [build(Path(name, folder)) for folder in ("one", "another")]
        if [path.name for path in builds[0]] != [path.name for path in builds[1]]:
            raise SystemExit(f"two builds made different files: {builds}")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for first, second in zip(*builds, strict=True):
            if first.read_bytes() != second.read_bytes():
                raise SystemExit(f"two builds of {first.name} differ")
            if first.suffix == ".whl":
                refuse_paths(first, (name, sys.base_prefix, sys.prefix, str(ROOT), str(Path.home())))
            shutil.copy(first, DIST)
    files = sorted(DIST.iterdir())
    run("twine", "check", "--strict", *files)
    run("check-wheel-contents", *wheels())
    run("abi3audit", "--strict", *wheels(pure=False))
    with tempfile.TemporaryDirectory() as name:
        write_sbom(install(sys.executable, Path(name), None, [], pure=False))
    if "[project.urls]" not in (ROOT / "pyproject.toml").read_text():
        print("note: pyproject.toml has no [project.urls]")
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")


def build(folder: Path) -> list[Path]:
    """The sdist and two wheels, built below a folder."""
    out, native = folder / "out", folder / "native"
    for place in (out, native):
        place.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(subprocess.check_output(["git", "archive", "HEAD"], cwd=ROOT))) as archive:
        archive.extractall(folder / "tree")  # of the project's own commit
    epoch = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    call = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
    run(sys.executable, "-c", call.format("sdist"), out, cwd=folder / "tree", env=environment)
    (sdist,) = out.iterdir()
    for place, kernel in ((native, "auto"), (out, "numpy")):
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / kernel)
        (source,) = (folder / kernel).iterdir()
        run(
            sys.executable, "-c", call.format("wheel"), place, cwd=source, env={**environment, "QDQTOOL_KERNEL": kernel}
        )
    (wheel,) = native.iterdir()
    if not any(
        Path(name).stem.startswith("_kernel.") or name.endswith(".pyd") for name in zipfile.ZipFile(wheel).namelist()
    ):
        raise SystemExit(f"{wheel.name} has no kernel: the C compiler failed, or there is none")
    if sys.platform == "linux":
        run("auditwheel", "repair", "--wheel-dir", out, wheel, env=environment)
    else:
        shutil.copy(wheel, out)
    return sorted(out.iterdir())


def refuse_paths(wheel: Path, places: tuple[str, ...]) -> None:
    """A file of a wheel that names a folder of the machine that built it is an error."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if found := [place for place in places if place.encode() in content]:
                raise SystemExit(f"{wheel.name}: {name} names {found[0]}")


def wheels(*, pure: bool | None = None) -> list[Path]:
    """The wheels of dist/: all, or those without (with) the C kernel."""
    return [path for path in sorted(DIST.glob("*.whl")) if pure is None or ("-none-any" in path.name) is pure]


def install(python: str, folder: Path, pins: Path | None, tests: list[str], *, pure: bool) -> Path:
    """Install a wheel into a bare environment, away from the sources, and run the demo and tests there; its Python."""
    run(python, "-m", "venv", folder / "venv")
    inside = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    away = folder / "away"
    away.mkdir()
    (wheel,) = wheels(pure=pure)
    words = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    run(*words, f"{wheel}{EXTRAS}", *(["-r", pins] if pins else []), *(TEST_PACKAGES if tests else []))
    run(inside, "-m", "qdqtool", "demo", "--quiet", cwd=away)
    run(
        inside,
        "-c",
        f"from qdqtool.amax import kernel; assert (kernel.in_use() == 'numpy') is {pure}, kernel.why()",
        cwd=away,
    )
    if tests:
        for name in ("tests", "models", "docs", "pyproject.toml"):
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, away / name)
        run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{path}" for path in tests), cwd=away)
    return inside


def write_sbom(inside: Path) -> None:
    """What is installed beside the wheel, as CycloneDX; known vulnerabilities of it, if the index can be asked."""
    target = next(DIST.glob("*.tar.gz")).name.removesuffix(".tar.gz") + ".cdx.json"
    run("cyclonedx-py", "environment", "--output-reproducible", "--gather-license-texts", "-o", DIST / target, inside)
    frozen = subprocess.check_output([inside, "-m", "pip", "freeze", "--exclude", "qdqtool"], text=True)
    listed = inside.parent / "requirements.txt"
    listed.write_text(frozen)
    words = ["pip-audit", "--no-deps", "--disable-pip", "--format", "json", "-r", str(listed)]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError):
        raise SystemExit(f"pip-audit failed: {asked.stderr}") from None
    known = [(one, fault["id"]) for one in packages for fault in one.get("vulns", ())]
    if known:
        lines = [f"{one['name']} {one['version']}: {identity}" for one, identity in known]
        raise SystemExit("\n".join(["known vulnerabilities:", *lines]))
    judged = sum("vulns" in one for one in packages)
    print(f"pip-audit: no known vulnerability in {judged} packages; {len(packages) - judged} unknown to its index")


def run(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a program; its output is printed if it fails, and shown as it comes where it is a test."""
    said = None if "pytest" in words else subprocess.PIPE
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, stdout=said, stderr=said and subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}\nfailed: {' '.join(map(str, words[:6]))}")


if __name__ == "__main__":
    main()
