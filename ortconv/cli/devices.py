"""ortconv devices"""

from __future__ import annotations

from typing import Any

import click

from ortconv.cli import completion, present
from ortconv.cli.nnapi_options import DEVICES, VLOG, load_devices, messages
from ortconv.cli.options import JSON, add
from ortconv.cli.render import columns
from ortconv.cli.usage import Commands
from ortconv.errors import UsageError
from ortconv.report.sections import Section
from ortconv.wording import counted

SHOWN_TYPES = {"float32": "TENSOR_FLOAT32", "relaxed": "relaxed", "quant8": "TENSOR_QUANT8_ASYMM"}
"""Columns of the table, and their performance figures."""


@click.group(cls=Commands, invoke_without_command=True)
@add(DEVICES, VLOG, JSON)
@click.pass_context
def command(ctx: click.Context, /, profiles: tuple[str, ...], vlog: str | None, **_: Any) -> None:
    """List the NNAPI devices of this machine: the CPU, simulated ones, and those of installed packages.

    Performance figures are execution time and power, relative to the CPU; smaller is better.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = profiles
        return
    with messages(vlog):
        documents = _documents(profiles)
    short = [{key: value for key, value in d.items() if key != "operations"} for d in documents]
    present(lambda: {"version": 1, "devices": short}, lambda: _list(documents))


@command.command()
@click.argument("name", shell_complete=completion.device_names)
@add(DEVICES, VLOG, JSON)
@click.pass_obj
def show(outer: tuple[str, ...] | None, /, name: str, profiles: tuple[str, ...], vlog: str | None, **_: Any) -> None:
    """Show all properties of the device NAME. NAME may also be a profile's name or file."""
    with messages(vlog):
        documents = _documents((*(outer or ()), *profiles))
        found = [d for d in documents if name in (d["name"], d["profile"])]
        if not found and name.endswith(".toml"):
            found = _documents((name,))[-1:]
    if not found:
        known = ", ".join(d["name"] for d in documents)
        raise UsageError(f"there is no device '{name}'", hint=f"there are {known}; --device FILE adds one")
    present(lambda: {"version": 1, "device": found[0]}, lambda: _details(found[0]))


def _documents(profiles: tuple[str, ...]) -> list[dict[str, Any]]:
    """The CPU, the bundled profiles, the devices of installed packages, then those given."""
    from ortconv.nnapi import bundled_profiles, get_device, installed_devices, registered
    from ortconv.nnapi.inventory import document

    names = list(dict.fromkeys([*bundled_profiles(), *installed_devices(), *profiles]))
    devices = load_devices(names)
    with registered(*devices):
        found = [document(get_device(len(devices)))]
        return found + [document(device, name) for device, name in zip(devices, names, strict=True)]


def _list(documents: list[dict[str, Any]]) -> str:
    header = ("device", "profile", "type", "version", ">level", ">operations", *SHOWN_TYPES)
    rows = [
        (
            d["name"], d["profile"] or "built in", d["type"], d["version"], d["feature_level"], d["supported_operations"],
            *(_figures(d["performance"][key]) for key in SHOWN_TYPES.values()),
        )
        for d in documents
    ]  # fmt: skip
    return columns(header, rows)


def _figures(figures: dict[str, float] | None) -> str:
    return "never" if figures is None else f"{figures['exec_time']:g} / {figures['power_usage']:g}"


def _simulated(d: dict[str, Any]) -> dict[str, str]:
    """The facts that only a simulated device has."""
    from ortconv.nnapi.device import NO_WORK

    speed = d["costs"]["copy_gb_per_s"]
    return {
        "work": "where its figure is below the CPU's 1" if d["gets_work"] else NO_WORK,
        "relaxed float32": "computed in float16" if d["fp16"] else "computed in float32",
        "costs": f"{d['costs']['launch_us']:g} us to launch, {f'{speed:g} GB/s to copy' if speed else 'nothing to copy'}",
        "faults": ", ".join(f"{key} {value}" for key, value in d["faults"].items()) or "none",
    }


def _details(d: dict[str, Any]) -> list[Section]:
    facts = {
        "profile": d["profile"] or "built in",
        "type": d["type"],
        "version": d["version"],
        "feature level": f"{d['feature_level']} (its number is {d['api_level']})",
        "cache files": f"{d['cache_files']['model']} for models, {d['cache_files']['data']} for data",
        "memory": f"aligned to {d['memory']['alignment']} bytes, padded to {d['memory']['padding']}",
    }
    if "fp16" in d:
        facts |= _simulated(d)
    lines = [f"{name:16}{value}" for name, value in facts.items()]
    performance = {name: _figures(figures) for name, figures in d["performance"].items()}
    operations = {name: " ".join(k.removeprefix("TENSOR_") for k in kinds) for name, kinds in d["operations"].items()}
    count = counted(d["supported_operations"], "operation")
    return [
        Section(d["name"], lines),
        Section("Performance: execution time / power, relative to the CPU", _grouped(performance)),
        Section(f"{count}, by the types of their main operand", _grouped(operations)),
    ]


def _grouped(values: dict[str, str]) -> list[str]:
    """A line for each value, with the names that have it."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return [f"{value}: {' '.join(names)}" for value, names in found.items()]
