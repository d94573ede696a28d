"""ortconv devices"""

from __future__ import annotations

import json
from typing import Any

import click

from ortconv.cli import color


@click.command()
@click.option(
    "--device", "profiles", multiple=True, metavar="PROFILE", help="Another profile, a TOML file; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(profiles: tuple[str, ...], as_json: bool) -> None:
    """List NNAPI devices: the CPU, the simulated accelerators that come with ortconv, and those of other profiles.

    Their profiles are what run's --device takes. Figures of performance are relative to the CPU; smaller is better.
    """
    from ortconv import nnapi

    found = [_document(None, nnapi.get_device("nnapi-reference"))]
    found += [_document(name, nnapi.load_device(name)) for name in (*nnapi.bundled_profiles(), *profiles)]
    if as_json:
        click.echo(json.dumps({"version": 1, "devices": found}, indent=1))
        return
    for d in found:
        figures = ", ".join(f"{name} {d['performance'][name]:g}" for name in d["performance"])
        profile = "always there" if d["profile"] is None else f"--device {d['profile']}"
        title = f"{click.style(d['name'], bold=True)}  {d['type']}, version {d['version']}, feature level {d['feature_level']}"
        click.echo(f"{title}  ({profile})\n  time relative to the CPU: {figures or 'not stated'}", color=color())


def _document(profile: str | None, device: Any) -> dict[str, Any]:
    from ortconv.nnapi import Operand
    from ortconv.nnapi.device import NEVER

    figures = {
        "float32": device.capabilities.of(Operand.TENSOR_FLOAT32, False),
        "relaxed": device.capabilities.of(Operand.TENSOR_FLOAT32, True),
        "quant8": device.capabilities.of(Operand.TENSOR_QUANT8_ASYMM, False),
    }
    return {
        "name": device.name,
        "profile": profile,
        "type": device.type.name,
        "version": device.version,
        "feature_level": int(device.feature_level),
        "performance": {name: figure.exec_time for name, figure in figures.items() if figure is not NEVER},
    }
