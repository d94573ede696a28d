"""Shell completion of values that options do not list: passes, operators, backends, devices and profiles."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from ortconv.choices import REFERENCE_DEVICE

FILE = "file"
"""The type of a completion item for which the shell offers files."""


def passes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The optimizer's passes with their summaries. --enable-pass offers those that run only on request."""
    from ortconv.optimizer.catalog import entries

    only_opt_in = param.name == "enable_passes"
    found = {e.name: e.doc[0] if e.doc else "" for e in entries() if e.opt_in or not only_opt_in}
    return [CompletionItem(name, help=help) for name, help in found.items() if _begins(name, incomplete)]


def operators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Operators of ONNX. In a comma separated list, the last one is completed."""
    from ortconv.ir.operators import operators as known

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{op}") for op in known() if _begins(op, last)]


def backends(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Backends, including those of installed packages."""
    return [CompletionItem(name) for name in _backends() if _begins(name, incomplete)]


def model_on_backend(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A model file, or after @ a backend."""
    model, at, backend = incomplete.rpartition("@")
    if not at:
        return [CompletionItem(incomplete, type=FILE)]
    return [CompletionItem(f"{model}@{name}") for name in _backends() if _begins(name, backend)]


def devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """NNAPI devices: bundled profiles, devices of installed packages, and files, which may be profiles."""
    from ortconv.nnapi import bundled_profiles, installed_devices

    names = [name for name in (*bundled_profiles(), *installed_devices()) if _begins(name, incomplete)]
    return [CompletionItem(incomplete, type=FILE), *map(CompletionItem, names)]


def device_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same devices and the CPU, without files."""
    found = [item for item in devices(ctx, param, incomplete) if item.type != FILE]
    return [*found, *([CompletionItem(REFERENCE_DEVICE)] if _begins(REFERENCE_DEVICE, incomplete) else [])]


def _backends() -> Iterable[str]:
    from ortconv.runtime.backend import discover

    return (*discover(), "numpy:reference")


def _begins(name: str, incomplete: str) -> bool:
    return name.lower().startswith(incomplete.lower())
