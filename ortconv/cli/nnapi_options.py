"""Options for the backend "nnapi": the execution provider's flags, and the simulated phone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ortconv.choices import FEATURE_LEVEL, FEATURE_LEVELS_TEXT
from ortconv.cli import completion
from ortconv.cli.options import FEATURE_LEVEL_NUMBER, OUTPUT_FOLDER, names_in
from ortconv.errors import UsageError

if TYPE_CHECKING:
    from ortconv.runtime.backend import Backend

FLAGS_TEXT = "fp16, nchw, cpu_disabled or cpu_only, comma separated"

LEVEL = click.option(
    "--nnapi-feature-level",
    type=FEATURE_LEVEL_NUMBER,
    help=f"The NNAPI feature level of the phone: {FEATURE_LEVELS_TEXT}.  [default: {FEATURE_LEVEL}]",
)
NNAPI = (
    click.option(
        "--nnapi-flags",
        default="",
        show_default=False,
        metavar="FLAGS",
        help=f"For backend nnapi: flags of the NNAPI provider: {FLAGS_TEXT}.",
    ),
    LEVEL,
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="DEVICE",
        shell_complete=completion.devices,
        help="For backend nnapi: a simulated device by its name or TOML file (docs/nnapi.md), or an installed one by its name; "
        "may be repeated.",
    ),
    click.option(
        "--nnapi-cache",
        type=OUTPUT_FOLDER,
        metavar="DIRECTORY",
        help="For backend nnapi: the directory of the devices' compilation caches.",
    ),
)
CHOICES = ("nnapi_flags", "nnapi_feature_level", "devices", "nnapi_cache")


def configured(backends: Sequence[str], flags: dict[str, Any], repeat: int = 1) -> list[str | Backend]:
    """The named backends, which may be comma separated. The backend nnapi gets the flags, and uses a burst if it runs repeatedly.

    UsageError for flags of a backend that is not named.
    """
    names = names_in(",".join(backends))
    is_given = any(flags[key] for key in CHOICES)
    if is_given and "nnapi" not in names:
        raise UsageError("flags of NNAPI are given, but not the backend nnapi", hint="add --backend nnapi")
    if "nnapi" not in names or (repeat == 1 and not is_given):
        return list(names)
    return [_nnapi(flags, burst=repeat > 1) if name == "nnapi" else name for name in names]


def _nnapi(flags: dict[str, Any], *, burst: bool) -> Backend:
    from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, flags_of

    level = flags["nnapi_feature_level"]
    settings = flags_of(flags["nnapi_flags"]) | ({} if level is None else {"feature_level": level})
    return Nnapi(NnapiOptions(**settings, devices=flags["devices"], cache=flags["nnapi_cache"], burst=burst))
