"""Benchmarks: each compares with a floor or a peer in the same run and prints a ratio. See docs/performance.md."""
