"""Ours and what it stands on, on the same work in one run: `python -m benchmarks`. Never a gate."""
