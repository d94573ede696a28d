"""Code that opens a tuned file in an app: session options, and the provider with its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ortconv.backends.onnxruntime_app import SAVED
from ortconv.errors import UsageError
from ortconv.tuning.result import Recommendation

NOT_THERE = {("kotlin", "coreml"): "Android has no CoreML", ("swift", "nnapi"): "iOS has no NNAPI"}
"""Languages of systems without a provider."""

FROM_BYTES = ("kotlin", "cpp")
"""Languages in which a session may use the bytes of a file while the app keeps them."""

COMMENTS = {"swift": "//", "python": "#"}
FROM_BYTES_ONLY = (
    "The direct initializers of this candidate are for C++ and Kotlin. Without them, opening needs more memory."
)

NNAPI_FLAG = "CPU_DISABLED"
"""NNAPI's own CPU kernels are slower than onnxruntime's, and the estimate does not include them."""


class Need(NamedTuple):
    """The parameters of a snippet: a file to open, threads, config entries, and a provider with options."""

    file: str
    threads: int
    entries: dict[str, str]
    direct: bool
    provider: str
    options: dict[str, str]


def check_snippet(language: str, provider: str) -> None:
    """UsageError for a language without such a provider."""
    reason = NOT_THERE.get((language, provider))
    if reason is not None:
        raise UsageError(
            f"no {language} snippet for {provider}: {reason}", hint="choose cpp or python, or another --target"
        )


def snippet(language: str, choice: Recommendation) -> str:
    """Code in one of SNIPPETS that opens the recommended file."""
    check_snippet(language, choice.provider)
    settings = replace(choice.settings, direct=choice.settings.direct and language in FROM_BYTES)
    entries = {key: value for key, value in settings.entries.items() if key != SAVED or choice.holds_fusions}
    need = Need(choice.file, settings.threads, entries, settings.direct, choice.provider, choice.provider_options)
    if settings != choice.settings:
        return f"{COMMENTS[language]} {FROM_BYTES_ONLY}\n" + "\n".join(WRITERS[language](need))
    return "\n".join(WRITERS[language](need))


def _kotlin(need: Need) -> Iterator[str]:
    yield "import ai.onnxruntime.OrtEnvironment"
    yield "import ai.onnxruntime.OrtSession"
    if need.provider == "nnapi":
        yield "import ai.onnxruntime.providers.NNAPIFlags"
    if need.direct:
        yield "import java.io.RandomAccessFile"
        yield "import java.nio.channels.FileChannel"
    if need.provider == "nnapi":
        yield "import java.util.EnumSet"
    yield ""
    yield "val environment = OrtEnvironment.getEnvironment()"
    yield "val options = OrtSession.SessionOptions().apply {"
    yield f"    setIntraOpNumThreads({need.threads})"
    yield from (f'    addConfigEntry("{key}", "{value}")' for key, value in need.entries.items())
    if need.provider == "nnapi":
        yield f"    addNnapi(EnumSet.of(NNAPIFlags.{NNAPI_FLAG}))"
    yield "}"
    if need.direct:
        yield "// The session reads its constants from these bytes: keep them as long as the session."
        yield f'val bytes = RandomAccessFile("{need.file}", "r").channel.use {{'
        yield "    it.map(FileChannel.MapMode.READ_ONLY, 0, it.size())"
        yield "}"
        yield "val session = environment.createSession(bytes, options)"
    else:
        yield f'val session = environment.createSession("{need.file}", options)'


def _swift(need: Need) -> Iterator[str]:
    yield "import onnxruntime_objc"
    yield ""
    yield "let environment = try ORTEnv(loggingLevel: .warning)"
    yield "let options = try ORTSessionOptions()"
    yield f"try options.setIntraOpNumThreads({need.threads})"
    yield from (
        f'try options.addConfigEntry(withKey: "{key}", value: "{value}")' for key, value in need.entries.items()
    )
    if need.provider == "coreml":
        given = ", ".join(f'"{key}": "{value}"' for key, value in need.options.items())
        yield f"try options.appendCoreMLExecutionProvider(withOptionsV2: [{given}])"
    yield f'let session = try ORTSession(env: environment, modelPath: "{need.file}", sessionOptions: options)'


def _cpp(need: Need) -> Iterator[str]:
    yield "#include <onnxruntime_cxx_api.h>"
    if need.provider == "nnapi":
        yield "#include <nnapi_provider_factory.h>"
    if need.direct:
        yield "#include <fstream>"
        yield "#include <iterator>"
        yield "#include <vector>"
    yield ""
    yield 'Ort::Env environment{ORT_LOGGING_LEVEL_WARNING, "app"};'
    yield "Ort::SessionOptions options;"
    yield f"options.SetIntraOpNumThreads({need.threads});"
    yield from (f'options.AddConfigEntry("{key}", "{value}");' for key, value in need.entries.items())
    if need.provider == "nnapi":
        yield f"Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_Nnapi(options, NNAPI_FLAG_{NNAPI_FLAG}));"
    if need.provider == "coreml":
        given = ", ".join(f'{{"{key}", "{value}"}}' for key, value in need.options.items())
        yield f'options.AppendExecutionProvider("CoreML", {{{given}}});'
    if need.direct:
        yield "// The session reads its constants from these bytes: keep them as long as the session. A mapped file is better."
        yield f'std::ifstream file{{"{need.file}", std::ios::binary}};'
        yield "const std::vector<char> bytes{std::istreambuf_iterator<char>{file}, {}};"
        yield "Ort::Session session{environment, bytes.data(), bytes.size(), options};"
    else:
        yield f'Ort::Session session{{environment, "{need.file}", options}};'


def _python(need: Need) -> Iterator[str]:
    yield "import onnxruntime"
    yield ""
    yield "options = onnxruntime.SessionOptions()"
    yield f"options.intra_op_num_threads = {need.threads}"
    yield from (f'options.add_session_config_entry("{key}", "{value}")' for key, value in need.entries.items())
    provider = '"CPUExecutionProvider"'
    if need.provider == "nnapi":
        provider = f'"NnapiExecutionProvider", {provider}'
    if need.provider == "coreml":
        provider = f'("CoreMLExecutionProvider", {need.options!r}), {provider}'.replace("'", '"')
    yield f'session = onnxruntime.InferenceSession("{need.file}", options, providers=[{provider}])'


WRITERS: dict[str, Callable[[Need], Iterator[str]]] = {
    "kotlin": _kotlin,
    "swift": _swift,
    "cpp": _cpp,
    "python": _python,
}
