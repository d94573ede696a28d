"""The properties of a device, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ortconv.nnapi.codes import FeatureLevel, Operand, Operation
from ortconv.nnapi.device import NEVER, Device, Performance
from ortconv.nnapi.operations import rows
from ortconv.nnapi.operations.table import OperationRow
from ortconv.nnapi.simulated import SPECIAL, SimulatedDevice, main_operand


def operations(device: Device) -> dict[Operation, list[Operand]]:
    """The operations that a device supports at its feature level, with the types of the main operand for each."""
    found = {}
    for code, row in rows().items():
        known = [kind for kind, level in main_types(row).items() if max(level, row.level) <= device.feature_level]
        if kinds := [kind for kind in sorted(known) if device.takes(code, kind)]:
            found[code] = kinds
    return found


def main_types(row: OperationRow) -> dict[Operand, FeatureLevel]:
    """The possible types of the main operand, each with the feature level that introduced it."""
    found: dict[Operand, FeatureLevel] = {}
    for form in row.forms:
        slot = form.required[main_operand(row.operation)]
        allowed = slot.allowed(None, row.types)
        if allowed is None:
            allowed = {kind: kind.level for kind in Operand if kind.is_tensor and not kind.is_oem}
        for kind, level in allowed.items():
            found[kind] = min(level, found.get(kind, level))
    return found


def document(device: Device, profile: str | None = None) -> dict[str, Any]:
    """All properties, for JSON. `profile` is the source of the device. A device is never chosen for a performance of None."""
    table = device.capabilities
    figures = {kind.name: _figures(table.types.get(kind, NEVER)) for kind in Operand}
    figures |= {key: _figures(getattr(table, name)) for name, key in SPECIAL.items()}
    taken = operations(device)
    return {
        "name": device.name,
        "profile": profile,
        "type": device.type.name,
        "version": device.version,
        "feature_level": device.feature_level.ordinal,
        "api_level": int(device.feature_level),
        "performance": figures,
        "supported_operations": len(taken),
        "operations": {code.name: [kind.name for kind in kinds] for code, kinds in taken.items()},
        "extensions": [extension.name for extension in device.extensions],
        "cache_files": {"model": device.cache_files[0], "data": device.cache_files[1]},
        "memory": {"alignment": device.alignment, "padding": device.padding},
        **(_simulation(device) if isinstance(device, SimulatedDevice) else {}),
    }


def _figures(performance: Performance) -> dict[str, float] | None:
    return None if performance == NEVER else asdict(performance)


def _simulation(device: SimulatedDevice) -> dict[str, Any]:
    faults = device.faults
    named = {
        "compile": faults.compile and faults.compile.name,
        "execute": faults.execute and faults.execute.name,
        "good_executions": faults.good_executions or None,
        "dies_after": faults.dies_after,
        "slow_s": faults.slow_s or None,
    }
    return {
        "fp16": device.fp16,
        "gets_work": device.capabilities.ever_beat_cpu,
        "costs": {"launch_us": device.launch_us, "copy_gb_per_s": device.copy_gb_per_s},
        "faults": {name: value for name, value in named.items() if value is not None},
    }
