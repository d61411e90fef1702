"""Programs that measure: each prints a table and writes JSON into `benchmarks/results/`."""
