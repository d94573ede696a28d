"""Headless Chromium, driven through its DevTools protocol over a pair of pipes: no package of Python is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)


class Browser:
    """One tab. `problems` collects console messages, errors of scripts and violations of the policy; `requests` all URLs."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive, self.buffer = send, receive, b""
        self.count, self.session = 0, ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.loaded = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command. Events that come before it are noted."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self.count:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                answer: dict[str, Any] = found["result"]
                return answer
            self._note(found)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.receive, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif kind == "Runtime.consoleAPICalled":
            self.problems.append(f"console: {params['args'][0].get('value')}")
        elif kind == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {params['exceptionDetails']['exception'].get('description')}")
        elif kind == "Log.entryAdded":
            self.problems.append(f"log: {params['entry']['text']}")
        elif kind == "Page.loadEventFired":
            self.loaded += 1

    def open(self, page: Path, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Load a page in a window of this size, and wait for its first frame."""
        self.problems.clear()
        self.requests.clear()
        self.loaded = 0
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in features.items()])
        self.call("Page.navigate", url=page.as_uri())
        while not self.loaded:
            self._note(self._message())
        self.settle()

    def settle(self) -> None:
        """Wait for the next frame."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it resolves to."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, such as Enter or ArrowDown or a letter."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        code = codes.get(key, ord(key[0].upper()))
        typed = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = typed if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def picture(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own profile, ended behind the block."""
    assert CHROMIUM is not None
    out_read, out_write = os.pipe()
    in_read, in_write = os.pipe()

    def pipes() -> None:
        os.dup2(out_read, 13), os.dup2(in_write, 14)  # both may stand at 3 or 4 themselves
        os.dup2(13, 3), os.dup2(14, 4)

    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command, preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(out_read)
        os.close(in_write)
        try:
            yield Browser(out_write, in_read)
        finally:
            process.terminate()
            process.wait()
            os.close(out_write)
            os.close(in_read)
