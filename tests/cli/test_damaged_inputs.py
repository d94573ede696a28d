"""Arrays, profiles and configs that are damaged, hostile or endless: one message with the file, before memory is taken."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from ortconv.arrays import read_npy, read_npz
from ortconv.cli import main
from ortconv.errors import FormatError, UnsafeInputError, UsageError
from tests.batches import slow_except

GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = '<ir_version: 8, opset_import: ["": 17]>\ng (float[n,3] x) => (float[n,3] y) { y = Relu(x) }'
    Path("net.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return Path("net.onnx")


def npy(header: str, data: bytes = bytes(64), version: int = 1) -> bytes:
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def header(descr: str = "'<f4'", shape: str = "(2, 3)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def saved(array: object) -> bytes:
    made = io.BytesIO()
    np.save(made, array)  # type: ignore[arg-type]
    return made.getvalue()


def archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return made.getvalue()


def edited(data: bytes, *edits: tuple[int, bytes]) -> bytes:
    made = bytearray(data)
    for at, new in edits:
        made[at : at + len(new)] = new
    return bytes(made)


def with_method(number: int, flags: int = 0) -> bytes:
    data = archive(("x.npy", saved(GOOD)))
    directory = data.index(b"PK\x01\x02")
    method, bits = struct.pack("<H", number), bytes([flags])
    return edited(data, (6, bits), (8, method), (directory + 8, bits), (directory + 10, method))


HEADERS = {
    "not closed": "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), (",
    "an expression": "-" * 110 + "1",
    "nested": "(" * 116,
    "a size of 10^30": header(shape="(1" + "0" * 30 + ",)"),
    "a size of 10^12": header(shape="(1000000000000,)"),
    "a product beyond 64 bits": header(shape="(4294967296, 4294967296, 4)"),
    "names for sizes": header(shape="(True, False, None)"),
    "a negative size": header(shape="(-1, 3)"),
    "no shape": "{'descr': '<f4', 'fortran_order': False}",
    "an unknown type": header(descr="'<f99'"),
    "a record": header(descr="[('a', '<f4')]"),
    "a type of arrays": header(descr="('<f4', (2,))"),
    "wide texts": header(descr="'<U100000000'"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers(kind: str, tmp_path: Path) -> None:
    data = npy(HEADERS[kind])
    (tmp_path / "a.npy").write_bytes(data)
    (tmp_path / "a.npz").write_bytes(archive(("x.npy", data)))
    for read in (lambda: read_npy(tmp_path / "a.npy", "x"), lambda: read_npz(tmp_path / "a.npz")):
        with pytest.raises(FormatError) as found:
            read()  # type: ignore[no-untyped-call]
        assert found.value.file in (str(tmp_path / "a.npy"), str(tmp_path / "a.npz"))


DAMAGED: dict[str, bytes] = {
    "no archive": b"PK\x03\x04 and nothing else",
    "deflate data": edited(archive(("x.npy", saved(GOOD)), compression=zipfile.ZIP_DEFLATED), (45, b"\xff" * 4)),
    "an unknown method": with_method(99),
    "an encrypted member": with_method(0, 1),
    "no array": archive(("x.npy", b"text")),
    "version 9": archive(("x.npy", npy(header(), version=9))),
    "a checksum": archive(("x.npy", saved(GOOD))).replace(GOOD.tobytes(), (GOOD + 1).tobytes()),
    "too few bytes": archive(("x.npy", saved(GOOD)[:-4])),
    "characters that are none": archive(("x.npy", npy(header("'<U1'", "(2,)"), b"\xff" * 8))),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_archives(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(DAMAGED[kind])
    with pytest.raises(FormatError, match=r"a\.npz: "):
        read_npz(tmp_path / "a.npz")


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "f": GOOD, "columns": np.asfortranarray(GOOD), "scalar": np.float64(3), "empty": np.zeros((0, 3)),
        "text": np.array(["a", "bcé"]),
        "bytes": np.array([b"ab", b"c"]), "flags": np.array([True, False]), "big": GOOD.astype(">f4"), "no text": np.zeros(2, "U0"),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    found = read_npz(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype.isnative
    np.save(tmp_path / "a.npy", arrays["columns"])
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy", "x"), GOOD)


def test_what_an_input_does_not_take_is_not_read(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even where the archive holds it, in few bytes."""
    data = npy(header(shape="(5000, 5)"), bytes(100_000))
    Path("x.npz").write_bytes(archive(("x.npy", data), compression=zipfile.ZIP_DEFLATED))
    Path("x.npy").write_bytes(data)
    for arguments in (["--inputs", "x.npz"], ["--inputs", "x.npy"], ["--input", "x=x.npy"]):
        assert main(["run", "net.onnx", *arguments]) == 2
        assert "must be float[n,3], got float[5000,5]" in capsys.readouterr().err


def test_what_memory_does_not_hold_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.npz").write_bytes(archive(("x.npy", saved(np.zeros(1000)))))
    monkeypatch.setattr("ortconv.arrays.usable_memory", lambda: 7999)  # as in a container
    with pytest.raises(UsageError, match="takes 8000 bytes, and there are 7999"):
        read_npz(tmp_path / "a.npz")


def test_pickled_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(UnsafeInputError, match="pickled"):
        read_npz(tmp_path / "a.npz")


PIPES = """
run net.onnx --inputs f.npz
run net.onnx --inputs f.npy
run net.onnx --input x=f.npy
run net.onnx --input x=f.ppm
run net.onnx --input x=f.pb
run net.onnx --check f.npz
run f.onnx
run f.ort
verify f.ort
ops from f.ort
ops merge f.config
ops lint f.config --model f.ort
partition net.onnx --device f.toml
run net.onnx --backend nnapi --device f.toml
devices show f.toml
convert net.onnx -o m.ort --pipeline f.txt
convert net.onnx -o m.ort --validate-with f.npz
convert net.onnx -o m.ort --custom-op-library f.so
convert f.onnx -o m.ort
compare net.onnx f.ort
"""


@pytest.mark.skipif(os.name != "posix", reason="makes pipes")
@pytest.mark.parametrize("line", PIPES.split("\n")[1:-1])
def test_a_pipe_is_no_file(line: str, net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(word for word in line.replace("=", " ").split() if word.startswith("f."))
    os.mkfifo(name)
    if "lint" in line:
        os.mkfifo("f.ort")
    assert main(line.split()) in (2, 3)
    assert name in capsys.readouterr().err


PROFILES = {
    "nested": "a=" + "[" * 5000 + "]" * 5000,
    "digits": "feature_level=" + "9" * 5000,
    "a large number": "name='x'\n[cpu]\nbytes_per_second=" + "9" * 400,
    "a name that is a tree": "name" + ".a" * 2000 + "=1",
    "too large": "#" * 100_000,
    "no text": "\x00",
    "infinity": "name='x'\n[copies]\nseconds_per_partition=inf",
    "a table of numbers": "name='x'\n[performance]\ndefault=[1, 2]",
    "huge figures": "name='x'\n[performance]\ndefault={exec_time=" + "9" * 400 + ", power_usage=1}",
}


@pytest.mark.parametrize("kind", slow_except([*PROFILES][::3], PROFILES))
def test_profiles(kind: str, net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("d.toml").write_text(PROFILES[kind])
    for line in (
        "partition net.onnx --device d.toml",
        "run net.onnx --backend nnapi --device d.toml",
        "devices show d.toml",
    ):
        assert main(line.split()) in (2, 3)
        shown = capsys.readouterr().err
        assert shown.startswith("error: d.toml: ")
        assert len(shown) < 1000


CONFIGS = {
    "nested": "ai.onnx;7;Add" + '{"a":' * 5000,
    "a negative version": "ai.onnx;-7;Add",
    "a negative input": 'ai.onnx;7;Add{"inputs":{"-1":["float"]}}',
    "digits": f"ai.onnx;{'9' * 5000};Add",
    "other digits": "ai.onnx;٣;Add",
    "types that are no list": 'ai.onnx;7;Add{"inputs":{"0":"float"}}',
    "types that are no text": 'ai.onnx;7;Add{"inputs":{"0":[1]}}',
    "slots that are no object": 'ai.onnx;7;Add{"inputs":3}',
    "triples that are none": 'ai.onnx;7;OneHot{"custom":[1]}',
    "triples of numbers": 'ai.onnx;7;OneHot{"custom":[["float", 1]]}',
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_configs(kind: str, net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.config").write_text(CONFIGS[kind], encoding="utf-8")
    assert main(["ops", "merge", "c.config"]) == 3
    shown = capsys.readouterr().err
    assert shown.startswith("error: c.config: line 1: ")
    assert len(shown) < 500


@pytest.mark.slow
def test_long_lines_of_a_config_are_read_in_one_pass(net: Path) -> None:
    Path("c.config").write_text("ai.onnx;7;" + ",".join(f"Op{i}" for i in range(100_000)))
    assert main(["ops", "merge", "c.config", "-o", "o.config"]) == 0


IMAGES: dict[str, Callable[[], bytes]] = {
    "huge.ppm": lambda: b"P6 100000 100000 255\n" + bytes(100),
    "empty.pgm": lambda: b"P5 0 0 255\n",
    "long.ppm": lambda: b"P6 " + b"9" * 5000 + b" 3 255\n",
    "wide.bmp": lambda: b"BM" + bytes(12) + struct.pack("<IiiHHI", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0) + bytes(24),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(IMAGES[name]())
    assert main(["run", "net.onnx", "--input", f"x={name}"]) == 3
    assert name in capsys.readouterr().err
