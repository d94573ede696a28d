"""Devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    name: str


def get_device(name: str) -> Device:
    return Device(name)
