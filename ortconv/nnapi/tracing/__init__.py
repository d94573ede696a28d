"""Durations of runs, as measured here or read from a phone's trace, and the runtime's log."""
