"""The indices that a Slice selects along one axis."""

from __future__ import annotations

_WHOLE = (2**31 - 1, 2**63 - 1)
"""Ends that include the first element if the step is negative: onnxruntime interprets them so, and exporters rely on it."""


def sliced(start: int, end: int, step: int, size: int) -> range:
    """The indices that a Slice selects. With a negative step, `stop` is -1 if they go down to the first element."""
    if step > 0:
        return range(*slice(start, end, step).indices(size))
    start = start + size if start < 0 else start
    end = -1 if end in _WHOLE else end + size if end < 0 else end
    # Unlike in Python, a start before the first element is the first element.
    return range(min(max(start, 0), size - 1), max(end, -1), step) if size else range(0)
