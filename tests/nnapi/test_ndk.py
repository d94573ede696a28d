"""The C library: the guides' programs, built and run. Skipped where there is no C compiler or no shared library of Python."""

from __future__ import annotations

import ctypes
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ortconv.cli import main
from ortconv.errors import UsageError
from ortconv.nnapi import NnapiError
from ortconv.nnapi.ndk import library, pointers
from ortconv.nnapi.ndk.functions import by_name
from ortconv.nnapi.ndk.headers import headers
from ortconv.nnapi.ndk.signature import Signature
from ortconv.nnapi.tracing import timing
from tests.batches import slow_except

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "ndk"
EXPECTED = {
    "first_model": "result 0 1.5 5 0 4.5 11 0 7.5 17 0 10.5 23\nresult 0 101.5 205 0 104.5 211 0 107.5 217 0 110.5 223\n",
    "devices": "device nnapi-reference UNKNOWN type 2 level 1000008\ntakes ADD 1 MUL 1\nalignment 64 padding 64\nmeasured no\n"
    "result 2 4 6 8 10 12 14 16 18 20 22 24\n",
    "ways_to_execute": "at once 2 4\nat once 4 4\nin a burst 2 4\nin a burst 4 6\nbehind events 6 10\n"
    "room for 4: code 8, rank 1, needs 5\nroom for 5: code 0, rank 1, needs 5\nopen size 0 1 2 3 4\n",
    "control_flow": "then 8 10\nelse 15 24\n",
    "memories": "twice 6 10 14 18\nhardware buffer 22 24 26 28\nstride 96\n",
    "errors": "as on Android\n",
}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ndk")
    try:
        library.write(folder)
    except UsageError as error:
        pytest.skip(f"the library cannot be built: {error}")
    return folder


@pytest.fixture(scope="module")
def run(built: Path) -> Run:
    """Compile a program once, and run it with an environment of its own."""

    def compiled(name: str) -> Path:
        program = built / name
        if not program.exists():
            flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-I", str(built / "include")]
            ends = ["-L", str(built), "-lneuralnetworks", "-lpthread", f"-Wl,-rpath,{built}"]
            source = str(PROGRAMS / f"{name}.c")
            subprocess.run([*library.compiler(), *flags, source, "-o", str(program), *ends], check=True)
        return program

    def start(name: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(compiled(name)), *arguments], capture_output=True, text=True, env=ENVIRONMENT | settings, timeout=500
        )

    return start


ENVIRONMENT = {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", slow_except(["first_model"], EXPECTED))
def test_programs(run: Run, name: str, tmp_path: Path) -> None:
    done = run(name, *([str(tmp_path)] if name == "devices" else []))  # the folder of its cache
    assert (done.returncode, done.stdout) == (0, EXPECTED[name]), done.stderr


def test_every_program_runs() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.c")} == {*EXPECTED, "threads"}


@pytest.mark.slow
def test_threads(run: Run) -> None:
    done = run("threads", "8", "50")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("right, ")


@pytest.mark.slow
def test_no_leak(run: Run) -> None:
    done = run("threads", "1", "100000")
    before, after = map(int, re.findall(r"(\d+) kB", done.stdout))
    assert after - before < 1024


@pytest.fixture(scope="module")
def sanitized(
    built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """Compile a program and the library with the address sanitizer, and run it. Leaks are looked for where the system allows that.

    Python allocates with malloc then, so that blocks of its pools count, too.
    """
    folder = tmp_path_factory.mktemp("asan")
    probe = folder / "probe.c"
    probe.write_text(f"#include <stdlib.h>\n{LOST}int main(void) {{ lose(); return 0; }}\n")
    compiler = [*library.compiler(), "-fsanitize=address", "-g"]
    if subprocess.run([*compiler, str(probe), "-o", str(folder / "probe")], capture_output=True).returncode:
        pytest.skip("the compiler has no address sanitizer")
    tried = subprocess.run([str(folder / "probe")], capture_output=True, env={"ASAN_OPTIONS": "detect_leaks=1"})
    leaks = int(b"detected memory leaks" in tried.stderr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", shlex.join(compiler))
        library.write(folder)

    def start(source: Path) -> subprocess.CompletedProcess[str]:
        flags = ["-D_GNU_SOURCE", "-I", str(folder / "include"), "-I", str(PROGRAMS), "-L", str(folder)]
        program = folder / source.stem
        ends = ["-lneuralnetworks", "-lpthread", f"-Wl,-rpath,{folder}", "-o", str(program)]
        subprocess.run([*compiler, *flags, str(source), *ends], check=True)
        settings = ENVIRONMENT | {"PYTHONMALLOC": "malloc"}
        command = ["env", f"ASAN_OPTIONS=detect_leaks={leaks}", str(program)]
        return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=500)

    return start


LOST = "static void lose(void) { char *volatile lost = malloc(48); lost[0] = 1; lost = NULL; }\n"

Sanitized = Callable[[Path], "subprocess.CompletedProcess[str]"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_no_invalid_access_and_no_leak(sanitized: Sanitized, name: str) -> None:
    done = sanitized(PROGRAMS / f"{name}.c")
    assert (done.returncode, done.stdout) == (0, EXPECTED[name]), done.stderr
    assert "Sanitizer" not in done.stderr


@pytest.mark.slow
def test_the_sanitizer_sees_the_library(sanitized: Sanitized, tmp_path: Path) -> None:
    """A program that says that its buffer is larger than it is."""
    source = tmp_path / "overrun.c"
    source.write_text(
        '#include "model.h"\nint main(void) {\n'
        "    float input[COUNT] = {0}, *small = malloc(8);\n"
        "    CHECK(ANeuralNetworksExecution_compute(prepare(compile(make_model(NULL)), input, small)));\n}\n"
    )
    done = sanitized(source)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


@pytest.mark.slow
def test_the_sanitizer_sees_a_leak(sanitized: Sanitized, tmp_path: Path) -> None:
    source = tmp_path / "leak.c"
    source.write_text(
        f'#include "model.h"\n{LOST}int main(void) {{\n    float input[COUNT] = {{0}}, output[COUNT];\n'
        "    CHECK(ANeuralNetworksExecution_compute(prepare(compile(make_model(NULL)), input, output)));\n"
        "    lose();\n    return 0;\n}\n"
    )
    done = sanitized(source)
    if "ASAN_OPTIONS=detect_leaks=0" in done.args:
        pytest.skip("this system does not let a program look for its leaks")
    assert "48 byte(s) leaked in 1 allocation(s)" in done.stderr


@pytest.mark.slow
def test_devices_and_messages(run: Run) -> None:
    done = run("devices", ORTCONV_NNAPI_DEVICES="sample-all", ORTCONV_NNAPI_VLOG="compilation")
    assert done.stdout.startswith("device nnapi-sample_all ")
    assert "measured yes" in done.stdout
    assert (
        "I/ExecutionPlan: ExecutionPlan::SimpleBody::finish: compilation finished successfully on nnapi-sample_all"
        in done.stderr
    )


@pytest.mark.slow
def test_trace(run: Run, tmp_path: Path) -> None:
    done = run("first_model", ORTCONV_NNAPI_TRACE=str(tmp_path / "trace.txt"))
    assert done.returncode == 0
    text = (tmp_path / "trace.txt").read_text()
    assert text.startswith(timing.FTRACE_HEAD)
    assert "[NN_LR_PC]ANeuralNetworksCompilation_finish" in text
    assert len(re.findall(r": B\|\d+\|\[NN_", text)) == len(re.findall(r": E\|\d+$", text, re.MULTILINE)) > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DEVICES", "no-such", "no-such: the profile cannot be read"),
        ("PARTITION", "3", "ORTCONV_NNAPI_PARTITION is '3', not a number from 0 to 2"),
        ("FEATURE_LEVEL", "x", "ORTCONV_NNAPI_FEATURE_LEVEL: NNAPI has no feature level 'x'"),
    ],
)
def test_a_wrong_setting(run: Run, name: str, value: str, message: str) -> None:
    done = run("devices", **{f"ORTCONV_NNAPI_{name}": value})
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_feature_level(run: Run) -> None:
    assert "level 30\n" in run("devices", ORTCONV_NNAPI_FEATURE_LEVEL="4").stdout


def test_in_a_python_process(built: Path) -> None:
    """The library uses the interpreter that is there, as for a program that loads it with dlopen."""
    code = f"import ctypes; n = ctypes.CDLL({str(built / library.LIBRARY)!r}); c = ctypes.c_uint32()\n"
    code += "assert n.ANeuralNetworks_getDeviceCount(ctypes.byref(c)) == 0; print(c.value)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.slow
def test_the_line_that_compiles(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(built)
    assert main(["nnapi", "ndk", "-o", "a folder"]) == 0
    line = capsys.readouterr().out.splitlines()[-1].removeprefix("compile with: ")
    source = str(PROGRAMS / "errors.c")
    subprocess.run(line.replace("program.c", f"-D_GNU_SOURCE {source} -o errors"), shell=True, check=True)
    assert subprocess.run([built / "errors"], cwd=tmp_path, capture_output=True, text=True).stdout == EXPECTED["errors"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The compiler is searched before Python's header: a bare Debian lacks both."""
    monkeypatch.setenv("CC", "no-such-cc")
    monkeypatch.setattr(library.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UsageError, match="there is no C compiler 'no-such-cc'"):
        library.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_cplusplus(built: Path, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source = tmp_path / "all.cpp"
    source.write_text("".join(f"#include <android/{name}>\n" for name in headers()))
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-fsyntax-only", "-I", str(built / "include"), str(source)], check=True
    )


def test_the_table() -> None:
    table = by_name()
    assert sum(name.startswith("ANeuralNetworks") for name in table) == 75
    assert {row.level for row in table.values()} == {1, 2, 3, 4, 5, 8}
    row = table["ANeuralNetworksModel_addOperation"].signature
    assert str(Signature.of(str(row))) == str(row)
    assert [row.count_of(at) for at in range(6)] == [None, None, None, 2, None, 4]


def test_memory_that_a_program_cannot_have_is_refused() -> None:
    with pytest.raises(NnapiError, match="a buffer of 9223372036854775808 bytes"):
        pointers.buffer(0, 1 << 63)
    scales = (ctypes.c_float * 1)(0.5)
    for count, address in ((0, ctypes.addressof(scales)), (1, 0)):
        parameters = ctypes.create_string_buffer(pointers.CHANNEL_QUANT.pack(0, count, address))
        with pytest.raises(NnapiError, match=f"{count} scales"):
            pointers.channel_quant(ctypes.addressof(parameters))
