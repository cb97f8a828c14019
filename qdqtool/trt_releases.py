# SPDX-License-Identifier: Apache-2.0
"""What is known of TensorRT's releases, a row each: the boards that ship it and where that was read. Data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["documented", "guess", "unknown"]


@dataclass(frozen=True)
class KnownRelease:
    """One statement about a release.

    Attributes:
        numbers: major, minor and patch.
        platforms: the board software that ships it.
        status: documented, or guess where it comes from memory.
        see: where it was read.
    """

    numbers: tuple[int, int, int]
    platforms: tuple[str, ...]
    status: Status
    see: str


def _documented(version: str, see: str, *platforms: str) -> KnownRelease:
    return KnownRelease(_numbers(version), platforms, "documented", see)


def _guess(version: str, *platforms: str) -> KnownRelease:
    return KnownRelease(_numbers(version), platforms, "guess", "from memory")


def _numbers(version: str) -> tuple[int, int, int]:
    major, minor, patch = map(int, version.split("."))
    return major, minor, patch


def _jetpack(*versions: str) -> tuple[str, ...]:
    return tuple(f"JetPack {version}" for version in versions)


_CACHE = "header of a published calibration cache"
_DLA = "NVIDIA/Deep-Learning-Accelerator-SW operators/README.md"

KNOWN: tuple[KnownRelease, ...] = (
    _guess("5.0.6", *_jetpack("4.2")),
    _documented("5.1.0", "NVIDIA/TensorRT sampleINT8 README"),
    _documented("5.1.2", _CACHE),
    _guess("5.1.3"),
    _documented("5.1.5", "NVIDIA/TensorRT, tag v5.1.5"),
    _documented("5.1.6", "jkjung-avt/tensorrt_demos README", *_jetpack("4.2.2")),
    _guess("5.1.6", *_jetpack("4.2.1", "4.2.3")),
    _documented("6.0.1", _CACHE),
    _guess("6.0.1", *_jetpack("4.3")),
    _documented("6.3.1", "forums.developer.nvidia.com topic 187109", "DRIVE OS 5.2"),
    _guess("6.4.0", "DRIVE OS 5.2.6"),
    _documented("7.0.0", _CACHE),
    _guess("7.1.0", *_jetpack("4.4 DP")),
    _documented("7.1.3", "NVIDIA-AI-IOT/deepstream_tao_apps README", *_jetpack("4.4", "4.4.1", "4.5", "4.5.1")),
    *(_documented(f"7.2.{patch}", _CACHE) for patch in (0, 1, 2, 3)),
    _guess("8.0.0"),
    _documented("8.0.1", "gist Tiryoh/2b5dc1f", *_jetpack("4.6")),
    _documented("8.0.2", "docs.nvidia.com/deeplearning/sdk/tensorrt-archived"),
    _documented("8.0.3", _CACHE),
    _guess("8.2.0"),
    _documented(
        "8.2.1", "gist Tiryoh/2b5dc1f; uwarg wiki", *_jetpack("4.6.1", "4.6.2", "4.6.3", "4.6.4", "4.6.5", "4.6.6")
    ),
    _guess("8.2.2"),
    _guess("8.2.3"),
    _documented("8.2.4", _CACHE),
    _guess("8.2.5"),
    _documented("8.3.0", "DRIVE OS 6.0.3 archive, TensorRT documentation", "DRIVE OS 6.0.2"),
    _documented("8.4.0", _CACHE),
    _guess("8.4.0", *_jetpack("5.0", "5.0.1")),
    _guess("8.4.1", *_jetpack("5.0.2")),
    *(_guess(f"8.4.{patch}") for patch in (2, 3, 10)),
    _guess("8.4.11", "DRIVE OS 6.0.4"),
    _documented("8.4.12", "DRIVE OS 6.0.5, TensorRT documentation; log of a published build", "DRIVE OS 6.0.5"),
    _documented("8.5.1", _CACHE),
    _documented(
        "8.5.2",
        f"{_DLA}; NVIDIA/TensorRT#3385",
        *_jetpack("5.1", "5.1.1", "5.1.2", "5.1.3", "5.1.4", "5.1.5", "5.1.6"),
    ),
    _guess("8.5.3"),
    _documented("8.5.10", _DLA, "DRIVE OS 6.0.6"),
    _documented("8.6.0", _CACHE),
    _documented("8.6.1", _CACHE),
    _documented("8.6.2", _DLA, *_jetpack("6.0")),
    _guess("8.6.3"),
    _documented("8.6.10", _DLA, "DRIVE OS 6.0.7"),
    _documented("8.6.11", _DLA, "DRIVE OS 6.0.8", "DRIVE OS 6.0.8.1"),
    _documented("8.6.12", f"{_DLA}; DRIVE OS 6.0.9.1 release notes", "DRIVE OS 6.0.9", "DRIVE OS 6.0.9.1"),
    _guess("8.6.13", "DRIVE OS 6.0.10"),
    *(_guess(version) for version in ("9.0.1", "9.1.0", "9.2.0", "9.3.0", "10.0.0")),
    _documented("10.0.1", _CACHE),
    _guess("10.1.0"),
    _guess("10.2.0"),
    _documented("10.3.0", "pytorch/TensorRT jetpack.rst; dusty-nv/jetson-containers", *_jetpack("6.1", "6.2", "6.2.1")),
    _guess("10.4.0"),
    _guess("10.5.0"),
    _documented("10.6.0", _CACHE),
    _documented("10.7.0", "dusty-nv/jetson-containers; TensorRT guide, working with DLA", "JetPack 6 with CUDA 12.8"),
    _guess("10.8.0"),
    _guess("10.9.0"),
    _documented("10.10.0", _CACHE),
    _documented("10.10.10", "TensorRT 10.10.10 release notes for DRIVE OS 7.0.3", "DRIVE OS 7.0.3"),
    _guess("10.11.0"),
    _documented("10.12.0", _CACHE),
    _guess("10.13.0"),
    _guess("10.13.2"),
    _documented("10.13.3", "tensorrt_cu12_bindings wheel"),
    _guess("10.13.3", *_jetpack("7.0", "7.1")),
    _documented("10.14.1", _CACHE),
    _guess("10.15.1"),
    _documented("10.16.1", "dusty-nv/jetson-containers"),
    _guess("10.16.1", *_jetpack("7.2")),
    *(_guess(f"11.{minor}.0") for minor in (0, 1, 2, 3)),
    _documented("11.4.0", "tensorrt_cu12_bindings wheel"),
    _documented("11.4.1", "TensorRT 11.4.1 release notes; guide, working with DLA", *_jetpack("7.2.2")),
    _documented("11.5.0", "TensorRT 11.5.0 release notes; NVIDIA/TensorRT, tag v11.5"),
)

# operators.md of onnx-tensorrt at each release. 7.2: sources say 11 and 13. 8.4: from memory. 10.x: "20 and later", so
# no number is safe to refuse by. 11.x: the developer guide says 9 to 25.
MAX_OPSET: dict[tuple[int, ...], int] = {
    (5, 1): 9,
    (7, 0): 11,
    (7, 1): 11,
    (7, 2): 11,
    (8, 0): 13,
    (8, 2): 13,
    (8, 4): 16,
    (8, 5): 17,
    (8, 6): 17,
    (9, 2): 19,
    (11,): 25,
}
