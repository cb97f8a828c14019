# SPDX-License-Identifier: Apache-2.0
"""Onnxsim's structured pruner for prune.py: one model in, one out. Runs in an environment with onnxsim.

python tests/bench/prune_peer.py MODEL OUT SPARSITY
"""

from __future__ import annotations

import sys


def main() -> int:
    """Prune by its Python function, at its defaults but for the sparsity."""
    import onnx
    import onnxsim

    source, target, sparsity = sys.argv[1:4]
    onnx.save(onnxsim.apply_structured_pruning(onnx.load(source), sparsity=float(sparsity)), target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
