"""Benchmarks: claims of speed as ratios, measured side by side in one run on one machine."""
