"""Measures the cost of keephold, as ratios against the library below it: `make bench`, `make soak`."""
