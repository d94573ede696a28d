"""Code that opens a tuned file in an app: session options, and the provider with its flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

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
    given = choice.settings
    settings = replace(
        given, direct=given.direct and language in FROM_BYTES, saved=given.saved and choice.holds_fusions
    )
    file = json.dumps(choice.file, ensure_ascii=False)
    file = file.replace("$", r"\$") if language == "kotlin" else file
    lines = WRITERS[language](replace(choice, settings=settings, file=file))
    note = [f"{COMMENTS[language]} {FROM_BYTES_ONLY}"] if settings.direct != given.direct else []
    return "\n".join([*note, *lines])


def _kotlin(choice: Recommendation) -> Iterator[str]:
    yield "import ai.onnxruntime.OrtEnvironment"
    yield "import ai.onnxruntime.OrtSession"
    if choice.provider == "nnapi":
        yield "import ai.onnxruntime.providers.NNAPIFlags"
    if choice.settings.direct:
        yield "import java.io.RandomAccessFile"
        yield "import java.nio.channels.FileChannel"
    if choice.provider == "nnapi":
        yield "import java.util.EnumSet"
    yield ""
    yield "val environment = OrtEnvironment.getEnvironment()"
    yield "val options = OrtSession.SessionOptions().apply {"
    yield f"    setIntraOpNumThreads({choice.settings.threads})"
    yield from (f'    addConfigEntry("{key}", "{value}")' for key, value in choice.settings.entries.items())
    if choice.provider == "nnapi":
        yield f"    addNnapi(EnumSet.of(NNAPIFlags.{NNAPI_FLAG}))"
    yield "}"
    if choice.settings.direct:
        yield "// The session reads its constants from these bytes: keep them as long as the session."
        yield f'val bytes = RandomAccessFile({choice.file}, "r").channel.use {{'
        yield "    it.map(FileChannel.MapMode.READ_ONLY, 0, it.size())"
        yield "}"
        yield "val session = environment.createSession(bytes, options)"
    else:
        yield f"val session = environment.createSession({choice.file}, options)"


def _swift(choice: Recommendation) -> Iterator[str]:
    yield "import onnxruntime_objc"
    yield ""
    yield "let environment = try ORTEnv(loggingLevel: .warning)"
    yield "let options = try ORTSessionOptions()"
    yield f"try options.setIntraOpNumThreads({choice.settings.threads})"
    yield from (
        f'try options.addConfigEntry(withKey: "{key}", value: "{value}")'
        for key, value in choice.settings.entries.items()
    )
    if choice.provider == "coreml":
        given = ", ".join(f'"{key}": "{value}"' for key, value in choice.provider_options.items())
        yield f"try options.appendCoreMLExecutionProvider(withOptionsV2: [{given}])"
    yield f"let session = try ORTSession(env: environment, modelPath: {choice.file}, sessionOptions: options)"


def _cpp(choice: Recommendation) -> Iterator[str]:
    yield "#include <onnxruntime_cxx_api.h>"
    if choice.provider == "nnapi":
        yield "#include <nnapi_provider_factory.h>"
    if choice.settings.direct:
        yield "#include <fstream>"
        yield "#include <iterator>"
        yield "#include <vector>"
    yield ""
    yield 'Ort::Env environment{ORT_LOGGING_LEVEL_WARNING, "app"};'
    yield "Ort::SessionOptions options;"
    yield f"options.SetIntraOpNumThreads({choice.settings.threads});"
    yield from (f'options.AddConfigEntry("{key}", "{value}");' for key, value in choice.settings.entries.items())
    if choice.provider == "nnapi":
        yield f"Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_Nnapi(options, NNAPI_FLAG_{NNAPI_FLAG}));"
    if choice.provider == "coreml":
        given = ", ".join(f'{{"{key}", "{value}"}}' for key, value in choice.provider_options.items())
        yield f'options.AppendExecutionProvider("CoreML", {{{given}}});'
    if choice.settings.direct:
        yield "// The session reads its constants from these bytes: keep them as long as the session. A mapped file is better."
        yield f"std::ifstream file{{{choice.file}, std::ios::binary}};"
        yield "const std::vector<char> bytes{std::istreambuf_iterator<char>{file}, {}};"
        yield "Ort::Session session{environment, bytes.data(), bytes.size(), options};"
    else:
        yield f"Ort::Session session{{environment, {choice.file}, options}};"


def _python(choice: Recommendation) -> Iterator[str]:
    yield "import onnxruntime"
    yield ""
    yield "options = onnxruntime.SessionOptions()"
    yield f"options.intra_op_num_threads = {choice.settings.threads}"
    yield from (
        f'options.add_session_config_entry("{key}", "{value}")' for key, value in choice.settings.entries.items()
    )
    provider = '"CPUExecutionProvider"'
    if choice.provider == "nnapi":
        provider = f'"NnapiExecutionProvider", {provider}'
    if choice.provider == "coreml":
        provider = f'("CoreMLExecutionProvider", {choice.provider_options!r}), {provider}'.replace("'", '"')
    yield f"session = onnxruntime.InferenceSession({choice.file}, options, providers=[{provider}])"


WRITERS: dict[str, Callable[[Recommendation], Iterator[str]]] = {
    "kotlin": _kotlin,
    "swift": _swift,
    "cpp": _cpp,
    "python": _python,
}
"""Each writes the code for a recommendation whose `file` is a literal of the language."""
