"""Tests of the workloads that tests and benchmarks share. Those lie with the benchmarks."""

import sys
from pathlib import Path

# The benchmarks are scripts, not a package: each finds its neighbours in its own folder.
BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)
