"""Kernels whose attributes are a model in themselves: built into a function once per node, called once per run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ortconv.executor.registry import Function, kernel, prepare


def built(*ops: str, domain: str = "") -> Callable[[Function], Function]:
    """Register `build(*, attributes) -> function(*inputs)` as the kernel of operators: plans build it when they are made."""

    def register(build: Function) -> Function:
        @wraps(build)
        def call(*inputs: Any, **attributes: Any) -> Any:
            return build(**attributes)(*inputs)

        kernel(*ops, domain=domain)(call)
        prepare(*ops, domain=domain)(lambda operands, **attributes: build(**attributes))
        return build

    return register
