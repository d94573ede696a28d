"""ortconv.toml: what it means, and what is wrong with it, line by line."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ortconv
from ortconv.checking.check import DEFAULT_GATES
from ortconv.cli import command_of, main
from ortconv.errors import OrtconvError, UsageError
from ortconv.files import write_bytes
from ortconv.pipeline.arguments import arguments
from ortconv.project.project import KEYS, find_project, line_of, read_project


def project(folder: Path, text: str) -> Path:
    path = folder / "ortconv.toml"
    path.write_text(text)
    return path


MODEL = '[models.m]\nsource = "m.onnx"\n'


def test_later_tables_take_precedence(tmp_path: Path) -> None:
    found = read_project(
        project(
            tmp_path,
            """
output-dir = "out"
[options]
optimization-level = "basic"
min-nodes = 2
[targets.android]
use-nnapi = true
min-nodes = 3
[targets.ios]
use-coreml = true
[models.a]
source = "models/a.onnx"
min-nodes = 4
[models.b]
source = "b.onnx"
targets = ["ios"]
optimization-level = "all"
[gates]
fail-on = "size>+5%"
[gates.b]
baselines = "others"
fail-on = ["nodes>+0", "latency>1.1x"]
measure = false
""",
        )
    )
    assert found.output_dir == tmp_path / "out"
    assert [(a.label, a.output, arguments(a.options)) for a in found.artifacts] == [
        ("a for android", "android/a.basic.ort", ["--optimization-level=basic", "--use-nnapi", "--min-nodes=4"]),
        ("a for ios", "ios/a.basic.ort", ["--optimization-level=basic", "--use-coreml", "--min-nodes=4"]),
        ("b for ios", "ios/b.ort", ["--use-coreml", "--min-nodes=2"]),
    ]
    gates = [a.gates for a in found.artifacts if a.gates is not None]
    assert [(g.baseline, g.fail_on, g.measure) for g in gates] == [
        (tmp_path / "baselines/android/a.json", ("size>+5%",), True),
        (tmp_path / "baselines/ios/a.json", ("size>+5%",), True),
        (tmp_path / "others/ios/b.json", ("nodes>+0", "latency>1.1x"), False),
    ]
    assert all(a.options.manifest for a in found.artifacts)
    assert [a.label for a in found.chosen(["a"], ["ios"])] == ["a for ios"]
    for models, targets in ((["c"], []), ([], ["desktop"])):
        with pytest.raises(UsageError, match=r"there is no (model 'c'|target 'desktop')"):
            found.chosen(models, targets)


def test_options_are_those_of_the_command_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", x=np.zeros(3, np.float32))
    (tmp_path / "device.toml").write_text('refused_ops = ["Softmax"]\n')
    write_bytes(tmp_path / "lib.so", b"\x7fELF")
    text = """
use-nnapi = true
nnapi-partitioning-stop-ops = ["Resize", "Where"]
fix-dim = ["batch=1", "n=m=2"]
fold-limit = "1kB"
disable-pass = "ConvAddFusion"
validate = false
validate-with = "feeds.npz"
device = "device.toml"
custom-op-library = "lib.so"
float16 = true
error-budget = 0.1
fail-on = ["size>2x"]
stamp = true
"""
    options = read_project(project(tmp_path, MODEL + text)).artifacts[0].options
    given = [
        text for text in arguments(options) if not text.startswith(("--device=", "--validate-with=", "--custom-op"))
    ]
    assert given == [
        "--use-nnapi", "--nnapi-partitioning-stop-ops=Resize,Where", "--fix-dim=batch=1", "--fix-dim=n=m=2", "--fold-limit=1000",
        "--disable-pass=ConvAddFusion", "--float16", "--error-budget=0.1", "--no-validate", "--fail-on=size>2x",
    ]  # fmt: skip
    assert options.device is not None
    assert options.device.refused_ops == ("Softmax",)
    assert options.custom_op_library == tmp_path / "lib.so"
    assert options.stamp
    again = read_project(project(tmp_path, f"{MODEL}use-nnapi = true\nfix-dim = {{batch = 1}}\n")).artifacts[0].options
    assert again.fix_dims == {"batch": 1}


def test_every_key_is_a_flag_of_convert() -> None:
    flags = {flag.lstrip("-") for param in command_of("convert").params for flag in param.opts}
    assert KEYS.keys() <= flags
    own = {"o", "output", "output-dir", "allow-conversion-failures", "cluster", "github", "jobs", "memory", "resume", "summary",
           "timeout", "json", "q", "quiet", "v", "verbose", "manifest", "model", "stop-ops", "html", "markdown"}  # fmt: skip
    assert flags - KEYS.keys() == own


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "there is no model in it", "[models.NAME]"),
        ("[modles.m]\n", "line 1: there is no key 'modles'", "did you mean models?"),
        ("output-dir = 3\n" + MODEL, "output-dir is 3: it must be a text", ""),
        (MODEL + "use-nnap = true\n", "line 3: [models.m] has no key 'use-nnap'", "did you mean use-nnapi?"),
        (MODEL + "use_nnapi = true\n", "line 3: [models.m] has no key 'use_nnapi'", "did you mean use-nnapi?"),
        ("[options]\n\nmanifest = true\n" + MODEL, "line 3: [options] has no key 'manifest'", ""),
        (MODEL + "[targets.a]\nlevel = 1\n", "line 4: [targets.a] has no key 'level'", ""),
        ("[models.m]\nuse-nnapi = true\n", "line 1: a model needs source = FILE", ""),
        ('models = "m"\n', "line 1: models must be a table: write [models]", ""),
        (MODEL + 'targets = ["ios"]\n', "line 3: there is no target 'ios'", "choose from none"),
        (MODEL + 'targets = "ios"\n', "line 3: targets is 'ios': it must be a list", ""),
        (MODEL + 'use-nnapi = "yes"\n', "[models.m]: use_nnapi is 'yes': it must be True or False", ""),
        (MODEL + 'fix-dim = ["batch"]\n', "[models.m]: fix-dim is ['batch']", ""),
        (MODEL + 'optimization-level = "most"\n', "[models.m]: optimization level 'most' is not one of", ""),
        (MODEL + 'disable-pass = "ConvAdFusion"\n', "ConvAdFusion", ""),
        (MODEL + 'validate-with = "none.npz"\n', "cannot read", ""),
        (MODEL + '[gates]\nfail-on = ["sice>5%"]\n', "line 4: --fail-on knows no metric 'sice'", "did you mean size"),
        (MODEL + "[gates]\nfail-on = [3]\n", "line 4: fail-on is [3]: it must be a list of conditions", ""),
        (MODEL + '[gates]\n[gates.m]\nfail-on = "size>5"\n[gates.n]\n', "line 6: [gates] has no key 'n'", ""),
        (MODEL + '[gates.m]\nmesure = false\n', "line 4: [gates.m] has no key 'mesure'", "did you mean measure?"),
        (MODEL + '[models."../m"]\nsource = "x"\n', "line 3: '../m' is not a file name", ""),
        (MODEL + '[models."\\u0000"]\nsource = "x"\n', "is not a file name", ""),
        (MODEL + '[models.n]\nsource = "\\u0000"\n', "source is '\\x00': no path has such a character", ""),
        (MODEL + "pipeline = true\n", "pipeline is True: it must be the path of a file", ""),
        (MODEL + 'custom-op-library = "\\u0000"\n', "custom-op-library is '\\x00': it must be the path of a file", ""),
        ('[models.a]\nsource = "a"\noptimization-level = "all"\n[models."a.basic"]\nsource="b"\n[models.a2]\nsource = 3\n',
         "source is 3: it must be a text", ""),
        ('[models.a]\nsource = "a"\noptimization-level = "basic"\n[models."a.basic"]\nsource="b"\n',
         "line 4: a and a.basic would both become a.basic.ort", ""),
        ("a = \n", "not a TOML file", ""),
    ],
)  # fmt: skip
def test_errors_name_line_and_nearest(text: str, message: str, hint: str, tmp_path: Path) -> None:
    path = project(tmp_path, text)
    with pytest.raises(OrtconvError) as caught:
        read_project(path)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert str(tmp_path) in str(caught.value)


def test_lines_of_keys() -> None:
    text = '# [x]\na = 1\n[x]\n"b" = 1\n\n[ x.y ] # c = 2\nc = 2\n[z]\nc = 3\n'
    assert [line_of(text, *where) for where in (("", "a"), ("x", "b"), ("x.y", "c"), ("z", "c"), ("x", "none"), ("w", "c"))] == [
        2, 4, 7, 9, 3, None,
    ]  # fmt: skip


def test_the_file_is_found_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project(tmp_path, MODEL)
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert find_project(Path()).resolve() == path.resolve()
    monkeypatch.chdir(tmp_path)
    assert str(find_project(Path())) == "ortconv.toml"
    path.unlink()
    with pytest.raises(UsageError, match=r"there is no ortconv\.toml here or above"):
        find_project(Path("a/b"))


# -------------------------------------------------------------------------------------------------------------------- init


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have only names of Unicode")
def test_init_refuses_a_name_that_toml_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "bad\udcff.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match="not valid UTF-8"):
        ortconv.init(tmp_path)
    assert not (tmp_path / "ortconv.toml").exists()


def test_init_names_every_model(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = 'odd "näme".onnx' if os.name == "posix" else "odd 'näme'.onnx"
    for place in ("m.onnx", "a/m.onnx", "b/m.onnx", odd):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(samples / "bert_tiny.onnx", tmp_path / place)
    assert main(["init", str(tmp_path)]) == 0
    assert "ortconv build --update" in capsys.readouterr().out
    text = (tmp_path / "ortconv.toml").read_text("utf-8")
    found = tomllib.loads(text)
    assert sorted(table["source"] for table in found["models"].values()) == sorted(
        ["m.onnx", "a/m.onnx", "b/m.onnx", odd]
    )
    assert "# fix-dim = [" in text
    assert {a.model for a in read_project(tmp_path / "ortconv.toml").artifacts} == found["models"].keys()
    assert main(["init", str(tmp_path)]) == 2
    assert "it exists already" in capsys.readouterr().err


def test_init_writes_the_gates_of_a_check(samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "mnist.onnx", tmp_path)
    gates = read_project(ortconv.init(tmp_path)).artifacts[0].gates
    assert gates is not None
    assert gates.fail_on == DEFAULT_GATES


def test_what_init_comments_out_is_right(samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "mnist.onnx", tmp_path)
    text = ortconv.init(tmp_path).read_text("utf-8")
    lines = [
        line.removeprefix("# ") if " = " in line or line.startswith(("# [targets", "# app")) else line
        for line in text.splitlines()
    ]
    found = read_project(project(tmp_path, "\n".join(lines)))
    assert [a.output for a in found.artifacts] == ["android/mnist.ort", "ios/mnist.ort"]
    assert found.artifacts[0].gates is not None
    assert found.artifacts[0].gates.app_config == tmp_path / "oldest_app.config"


def test_init_offers_to_freeze_inputs_with_a_default_value(tmp_path: Path) -> None:
    text = "<ir_version: {}, opset_import: ['': 17]> g (float[2] x, float[2] w = {{1, 2}}) => (float[2] y) {{ y = Add(x, w) }}"
    for version in (3, 8):
        onnx.save(onnx.parser.parse_model(text.format(version).replace("'", '"')), tmp_path / f"ir{version}.onnx")
    lines = ortconv.init(tmp_path).read_text("utf-8").splitlines()
    offers = [i for i, line in enumerate(lines) if line.startswith("# freeze-initializers = true   # 1 input")]
    assert [lines[i - 1] for i in offers] == ['source = "ir8.onnx"']


def test_init_without_gates_or_models(samples: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no \.onnx file"):
        ortconv.init(tmp_path)
    (tmp_path / "damaged.onnx").write_bytes(b"no model")
    ortconv.init(tmp_path, gates=False)
    assert "# cannot be read:" in (tmp_path / "ortconv.toml").read_text()
    assert read_project(tmp_path / "ortconv.toml").artifacts[0].gates is None


@pytest.mark.parametrize(
    ("option", "then"),
    [("--gates", "Next: ortconv build --update, and commit the baselines."), ("--no-gates", "Next: ortconv build.")],
)
def test_init_names_the_next_command(
    option: str, then: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(samples / "mnist.onnx", tmp_path)
    assert main(["init", str(tmp_path), option]) == 0
    assert capsys.readouterr().out.endswith(f"is written. {then}\n")
