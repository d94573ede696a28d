"""The shared library: C that embeds Python, one short function for each row of the table."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import ortconv
from ortconv.errors import UsageError
from ortconv.files import replacing, temporary_folder, write_text
from ortconv.nnapi.ndk.calls import NdkFunction
from ortconv.nnapi.ndk.functions import by_name
from ortconv.nnapi.ndk.headers import headers
from ortconv.nnapi.ndk.signature import UNSIGNED, Parameter

LIBRARY = "libneuralnetworks.so"


def write(folder: Path) -> list[Path]:
    """Write the headers to include/android, build the library, and return the files. UsageError, with nothing written,
    if the compiler or Python's library or header is missing.
    """
    with temporary_folder() as scratch:
        built = build(scratch)
        written = []
        for name, text in headers().items():
            written.append(folder / "include" / "android" / name)
            write_text(written[-1], text)
        written.append(folder / LIBRARY)
        with replacing(written[-1]) as draft:
            shutil.copyfile(built, draft)
    return written


def build(folder: Path) -> Path:
    """Compile the library into a folder, and return its path."""
    include = folder / "include" / "android"
    include.mkdir(parents=True)
    for name, text in headers().items():
        (include / name).write_text(text, encoding="utf-8")
    source, built = folder / "neuralnetworks.c", folder / LIBRARY
    source.write_text("".join(code()), encoding="utf-8")
    command = [*compiler(), "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(built), str(source)]
    python = _python()
    command += ["-I", str(folder / "include"), "-I", sysconfig.get_path("include"), *_defines(python)]
    command += [str(python), f"-Wl,-rpath,{python.parent}", "-ldl", "-lpthread"]
    command += [f"-Wl,-soname,{LIBRARY}"] if sys.platform.startswith("linux") else []
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise UsageError(f"{command[0]} does not compile the library: {(lines or ['no message'])[0]}")
    return built


def compiler() -> list[str]:
    """The C compiler: $CC, or cc. Raises UsageError if there is none."""
    words = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(words[0]) is None:
        hint = "install gcc or clang, or name a C compiler with the environment variable CC"
        raise UsageError(f"there is no C compiler '{words[0]}'", hint=hint)
    return words


def _python() -> Path:
    """Python's shared library. Raises UsageError if it or its header is missing."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise UsageError(f"Python's header is missing: {header}", hint="install python3-dev or its like")
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    for place in (Path(folder or "", name or ""), Path(sys.base_prefix, "lib", name or "")):
        if name and not name.endswith(".a") and place.is_file():
            return place
    hint = "use a Python that was built with --enable-shared, as Debian's is"
    raise UsageError("this Python has no shared library", hint=hint)


def _defines(python: Path) -> Iterator[str]:
    package = Path(ortconv.__file__).resolve().parent.parent
    for name, value in (("PYTHON", sys.executable), ("PACKAGE", str(package)), ("LIBPYTHON", str(python))):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        yield f'-D{name}="{quoted}"'


def code() -> Iterator[str]:
    """The C source: glue.c, then a function for each row."""
    yield Path(__file__).with_name("glue.c").read_text(encoding="utf-8")
    for row, function in enumerate(by_name().values()):
        yield _function(row, function)


def _function(row: int, function: NdkFunction) -> str:
    signature = function.signature
    passed = [(one.name, *_passed(one)) for one in signature.parameters]
    form = "".join(letter for _, letter, _ in passed)
    values = "".join(f", {cast}{name}" for name, _, cast in passed)
    answer = "" if signature.result == "void" else f"return ({signature.result})"
    return f'\nAPI {signature} {{\n    {answer}call({row}, "({form})"{values});\n}}\n'


def _passed(one: Parameter) -> tuple[str, str]:
    """The format letter of Py_BuildValue, and the cast to its type."""
    if one.type == "float":
        return "d", "(double)"
    if one.is_pointer:
        return "K", "(unsigned long long)(uintptr_t)"
    return ("K", "(unsigned long long)") if one.type in UNSIGNED else ("L", "(long long)")
