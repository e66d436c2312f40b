"""Speed and memory as paired ratios: `python -m benchmarks` measures, prints a table and writes benchmarks/results/."""
