"""Benchmarks: ratios from one run, side by side, repeated. `make bench` runs them all and writes docs/benchmarks.md."""
