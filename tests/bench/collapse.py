# SPDX-License-Identifier: Apache-2.0
"""Ten networks that INT8 destroys by construction: decibels even, scaled apart, and with their classes equalized.

`python -m tests.bench.collapse [--spreads 10,100,1000]`: the networks and the judgment of
`tests/conditioning/test_collapse.py`, all in INT8, by onnxruntime. `moved` is the difference of the equalized float
model from the even one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conditioning.spread_nets import NETS, spread_net
from tests.conditioning.test_collapse import decibels, equalized, quantized, run

sys.path.insert(0, str(Path(__file__).parent))
from cost import table


def collapse_row(name: str, spread: float) -> list[str]:
    """One network at one spread of its channels."""
    even, apart = spread_net(name, 1.0), spread_net(name, spread)
    exact = run(even)
    made, done = equalized(apart)
    kept, lost, back = (decibels(exact, run(quantized(proto))) for proto in (even, apart, made))
    added = len(made.graph.node) - len(apart.graph.node)
    moved = decibels(exact, run(made))
    return [
        name,
        f"{spread:g}",
        *(f"{value:.1f}" for value in (kept, lost, back, moved)),
        f"{added:+d}",
        str(len(done.edits)),
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--spreads", default="10,100,1000")
    spreads = [float(one) for one in parser.parse_args().spreads.split(",")]
    head = ["network", "spread", "even dB", "apart", "equalized", "float moved dB", "nodes", "tensors"]
    print(table(head, [collapse_row(name, spread) for name in NETS for spread in spreads]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
