"""Generates inputs on which a model runs: sizes of free dimensions, then elements."""
