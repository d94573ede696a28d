"""What an option of a conversion states: the kind of its values, and who sets and records it."""

from __future__ import annotations

import json
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, field, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ortconv.choices import comma_separated, named_size
from ortconv.errors import UsageError
from ortconv.files import byte_count, digest, read_text


def _from_digest(texts: Sequence[str]) -> Any:
    raise ValueError("the content of a file is not known from its digest")


class Kind(NamedTuple):
    """A kind of values. `wanted` describes them in messages, `least` is the minimum of a number."""

    wanted: str
    check: Callable[[Any], Any]
    """The value from one that a caller gave, such as a tuple from a list. TypeError or ValueError for another type."""
    open: Callable[[Any, Path], Any] = lambda value, folder: value
    """The value from its form in a project file or on the command line. Paths are relative to a folder."""
    write: Callable[[Any], Iterable[str]] = lambda value: (str(value),)
    """The texts of its arguments. The contents of files become digests."""
    read: Callable[[Sequence[str]], Any] = _from_digest
    """The value from these texts. ValueError if they are digests of what a conversion needs."""
    least: int | None = None


class Option(NamedTuple):
    """One option of a conversion: a field of Options, and everything that other parts of ortconv derive from it."""

    name: str
    default: Any
    kind: Kind
    flag: str | None
    """The flag of `ortconv convert` without its dashes, also the key of project files. None for a field that commands set
    themselves: it is part of no stamp, manifest or journal.
    """
    recorded: bool = True
    """Whether stamps and manifests list it."""
    in_key: bool = True
    """Whether journals tell conversions apart by it. If not, a file in place is not made again because of it alone."""
    in_project: bool = True
    """Whether a project may set it."""
    in_pipeline: bool = False
    """Whether the text of a pipeline replaces it."""

    def checked(self, value: Any) -> Any:
        """The value that a caller gave, converted. UsageError for a wrong type, or a number out of range."""
        if value is None and self.default is None:
            return None
        try:
            made = self.kind.check(value)
        except (TypeError, ValueError):
            raise UsageError(f"{self.name} is {reprlib.repr(value)}: it must be {self.kind.wanted}") from None
        if self.kind.least is not None and not made >= self.kind.least:  # NaN is not, either
            raise UsageError(f"{self.name} is {value}: it must be at least {self.kind.least}")
        return made


def option(default: Any, kind: Kind | None = None, **facts: Any) -> Any:
    """A field of Options that is not like most. `facts` are fields of Option; by default, the kind is that of the default."""
    facts["kind"] = kind or KIND_OF[type(default)]
    return field(default_factory=dict, metadata=facts) if default == {} else field(default=default, metadata=facts)


def described(one: Field[Any]) -> Option:
    default = {} if one.default is MISSING else one.default
    usual = {"kind": KIND_OF.get(type(default)), "flag": one.name.replace("_", "-")}
    return Option(one.name, default, **{**usual, **one.metadata})


# ---------------------------------------------------------------------------------------------------------------- checking


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return check


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    return float(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return tuple(value)


def _sizes(value: Any) -> dict[str, int]:
    found = {name: _integer(size) for name, size in value.items()} if isinstance(value, Mapping) else None
    if found is None or not all(isinstance(name, str) and size > 0 for name, size in found.items()):
        raise ValueError
    return found


def _feed_sets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    sets = tuple(value)
    if not all(isinstance(one, Mapping) for one in sets):
        raise TypeError
    return sets


def _device(value: Any) -> Any:
    from ortconv.partition.profile import DeviceProfile

    if not isinstance(value, DeviceProfile):
        raise TypeError
    return value


# ----------------------------------------------------------------------------------------------------------------- opening


def _listed(value: Any, folder: Path) -> Any:
    """A list, which may be given as its only text."""
    return [value] if isinstance(value, str) else value


def _table_of_sizes(value: Any, folder: Path) -> dict[str, int]:
    """Sizes by name: a table, or texts NAME=N."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = [named_size(text) for text in _listed(value, folder)]
    if None in pairs:
        raise ValueError('write ["NAME=N"] or {NAME = N}')
    return dict(filter(None, pairs))


def _path(value: Any, folder: Path) -> Path:
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise ValueError("it must be the path of a file")
    return folder / value


def _profile(value: Any, folder: Path) -> Any:
    from ortconv.partition.profile import read_device

    return read_device(_path(value, folder))


def _arrays(value: Any, folder: Path) -> tuple[Any, ...]:
    paths = [_path(one, folder) for one in _listed(value, folder)]
    if not paths:
        return ()
    from ortconv.arrays import read_npz

    return tuple(map(read_npz, paths))


# ----------------------------------------------------------------------------------------------------------------- writing


def plain(value: Any) -> Any:
    """The value of an option as JSON: files and arrays become digests."""
    if isinstance(value, Path):
        return digest(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    array = np.asarray(value)
    content = json.dumps(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return [str(array.dtype), list(array.shape), _sha256(content)]


def _digests_of_sets(value: Any) -> Iterable[str]:
    """The digests of one or several sets of arrays."""
    return [_digest_of(plain(one)) for one in ((value,) if isinstance(value, Mapping) else value)]


def _digest_of(value: Any) -> str:
    return _sha256(json.dumps(value, sort_keys=True, default=str).encode())


def _sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


# ------------------------------------------------------------------------------------------------------------------- kinds

FLAG = Kind("True or False", _exactly(bool), read=lambda texts: texts[-1] == "True")
TEXT = Kind("a text", _exactly(str), read=lambda texts: texts[-1])
NUMBER = Kind("a number", _number, read=lambda texts: float(texts[-1]), least=0)
WHOLE = Kind("a whole number", _integer, read=lambda texts: int(texts[-1]), least=0)
POSITIVE = WHOLE._replace(least=1)
BYTES = WHOLE._replace(open=lambda value, folder: byte_count(value) if isinstance(value, str) else value)
NAMES = Kind("a list of texts", _names, _listed, tuple, tuple)
NAMES_IN_TEXT = Kind(
    "a list of texts",
    _names,
    lambda value, folder: comma_separated(value) if isinstance(value, str) else value,
    lambda names: (",".join(names),),
    lambda texts: comma_separated(texts[-1]),
)
"""Names in one argument, comma separated."""
SIZES = Kind(
    "a positive whole number for each name",
    _sizes,
    _table_of_sizes,
    lambda sizes: [f"{name}={size}" for name, size in sizes.items()],
    lambda texts: {name: int(size) for name, _, size in (text.rpartition("=") for text in texts)},
)
FEEDS = Kind(
    "an array for each name, or a list of such sets", _feed_sets, _arrays, _digests_of_sets, lambda texts: None
)
"""Inputs of a validation: the nodes can be repeated without them, so their digests are read as no inputs."""
LIBRARY = Kind("a path", lambda value: Path(os.fspath(value)), _path, lambda path: (digest(path),))
DEVICE = Kind(
    "a device: ortconv.partition.profile.read_device(path)",
    _device,
    _profile,
    lambda device: (_digest_of(asdict(device)),),
)
PIPELINE = Kind(
    "a text",
    _exactly(str),
    lambda value, folder: read_text(_path(value, folder)),
    lambda text: (_sha256(text.encode("utf-8", "backslashreplace")),),
)

KIND_OF: Mapping[type, Kind] = {bool: FLAG, int: WHOLE, float: NUMBER, str: TEXT, tuple: NAMES}
"""The kind of an option that states none, by the type of its default."""
