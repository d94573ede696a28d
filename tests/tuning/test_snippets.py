"""Code for apps: what is set, and in which language."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from ortconv.backends.onnxruntime_app import DIRECT, SAVED, SessionSettings
from ortconv.choices import SNIPPETS
from ortconv.errors import UsageError
from ortconv.tuning.result import Recommendation
from ortconv.tuning.snippets import snippet

COREML = {"ModelFormat": "MLProgram"}


def choice(provider: str = "cpu", fusions: bool = False, **settings: Any) -> Recommendation:
    options = COREML if provider == "coreml" else {}
    return Recommendation("all", "", "m.ort", SessionSettings(**settings), fusions, provider, options, "")


@pytest.mark.parametrize("language", SNIPPETS)
def test_threads_and_file(language: str) -> None:
    text = snippet(language, choice(threads=3))
    assert "3" in text
    assert '"m.ort"' in text
    assert not any(key in text for key in (SAVED, *DIRECT))


@pytest.mark.parametrize("language", SNIPPETS)
def test_saved_fusions_are_asked_for_where_the_file_holds_some(language: str) -> None:
    assert SAVED in snippet(language, choice(fusions=True))
    assert SAVED not in snippet(language, choice(fusions=True, saved=False))


PROVIDERS = [
    ("kotlin", "nnapi", "addNnapi(EnumSet.of(NNAPIFlags.CPU_DISABLED))"),
    ("cpp", "nnapi", "OrtSessionOptionsAppendExecutionProvider_Nnapi(options, NNAPI_FLAG_CPU_DISABLED)"),
    ("cpp", "coreml", 'options.AppendExecutionProvider("CoreML", {{"ModelFormat", "MLProgram"}});'),
    ("swift", "coreml", 'appendCoreMLExecutionProvider(withOptionsV2: ["ModelFormat": "MLProgram"])'),
    ("python", "nnapi", '"NnapiExecutionProvider", "CPUExecutionProvider"'),
    ("python", "coreml", '("CoreMLExecutionProvider", {"ModelFormat": "MLProgram"})'),
]


@pytest.mark.parametrize(("language", "provider", "text"), PROVIDERS)
def test_providers(language: str, provider: str, text: str) -> None:
    assert text in snippet(language, choice(provider))


@pytest.mark.parametrize("language", SNIPPETS)
def test_no_provider_unless_it_is_chosen(language: str) -> None:
    assert not any(name in snippet(language, choice()).lower() for name in ("nnapi", "coreml"))


@pytest.mark.parametrize("language", ["kotlin", "cpp"])
def test_direct_initializers_keep_the_bytes(language: str) -> None:
    text = snippet(language, choice(direct=True))
    assert all(key in text for key in DIRECT)
    assert "keep them as long as the session" in text


@pytest.mark.parametrize("language", ["swift", "python"])
def test_where_bytes_cannot_be_kept_there_are_no_direct_initializers(language: str) -> None:
    text = snippet(language, choice(direct=True, fusions=True))
    assert not any(key in text for key in DIRECT)
    assert "direct initializers of this candidate are for C++ and Kotlin" in text
    assert SAVED in text


@pytest.mark.parametrize(("language", "provider"), [("kotlin", "coreml"), ("swift", "nnapi")])
def test_systems_without_the_provider(language: str, provider: str) -> None:
    with pytest.raises(UsageError, match=f"no {language} snippet for {provider}"):
        snippet(language, choice(provider))


@pytest.mark.parametrize("provider", ["cpu", "nnapi", "coreml"])
def test_python_is_python(provider: str) -> None:
    ast.parse(snippet("python", choice(provider, fusions=True, direct=True)))


@pytest.mark.parametrize("language", SNIPPETS)
def test_the_name_of_the_file_is_a_literal(language: str) -> None:
    text = snippet(language, replace(choice(), file='a"$b\\.ort'))
    dollar = r"\$" if language == "kotlin" else "$"
    assert rf'"a\"{dollar}b\\.ort"' in text
    if language == "python":
        ast.parse(text)
