# SPDX-License-Identifier: Apache-2.0
"""One arena of memory for the values of sessions on the CPU that run by turns. Their weights are not in it.

Stages, shadows and searches are many sessions that run one after the other. An arena for each would hold the values of
all at once; without one, each value is fresh pages, which the system fills with zeros first: that takes as long as half
of the inference. From one arena each session takes what the one before it gave back. No value depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqtool.runtime.providers import CPU, one_node_model

_ENTRIES = {"session.use_env_allocators": "1", "session.use_device_allocator_for_initializers": "1"}
_SHRINK = ("memory.enable_memory_arena_shrinkage", "cpu:0")
# No limit. The arena grows by regions, each twice the last one, up to 8 MiB: many small allocations share few regions.
# A larger allocation gets a region of its own size: rounded up to a power of two, the rest is too small for a second
# one. The first region has onnxruntime's default size.
_GROWTH = {
    "max_mem": 0,
    "arena_extend_strategy": 0,
    "max_power_of_two_extend_bytes": 8 << 20,
    "initial_chunk_size_bytes": -1,
    "max_dead_bytes_per_chunk": -1,
}


class SharedArena:
    """The arena of a process, which onnxruntime makes when the first session asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runtime: Any = None
        self._shrinker: Any = None  # a session of one node, a run of which can shrink the arena

    def join(self, runtime: Any, options: Any, providers: Sequence[str]) -> bool:
        """Let a session take its values from the arena."""
        if tuple(providers) != (CPU,) or not hasattr(runtime, "create_and_register_allocator"):
            return False
        with self._lock:
            if self._shrinker is None:
                self._register(runtime)
        _take(options)
        return True

    def shrink(self) -> None:
        """Give back to the system what no session holds; nothing where there is no arena."""
        if self._shrinker is not None:
            how = self._runtime.RunOptions()
            how.add_run_config_entry(*_SHRINK)
            self._run(how)

    def _register(self, runtime: Any) -> None:
        place = runtime.OrtMemoryInfo(
            "Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
        )
        runtime.create_and_register_allocator(place, runtime.OrtArenaCfg(_GROWTH))
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        _take(options)
        self._runtime = runtime
        self._shrinker = runtime.InferenceSession(one_node_model(), options, providers=[CPU])
        self._run(None)  # onnxruntime never gives the first region back: this makes it the smallest

    def _run(self, how: Any) -> None:
        self._shrinker.run(None, {"x": np.zeros(1, np.float32)}, how)


ARENA = SharedArena()


def _take(options: Any) -> None:
    for key, value in _ENTRIES.items():
        options.add_session_config_entry(key, value)
    options.enable_cpu_mem_arena = True
