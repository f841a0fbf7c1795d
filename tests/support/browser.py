"""Chromium without a window, by its DevTools protocol over two pipes: pages as a reader's browser shows them."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ANSWERS_WITHIN_S = 60.0
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
ON_3_AND_4 = """
import os, sys
read, write = (os.dup(os.dup(os.dup(int(word)))) for word in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The pipes as DevTools has them. Copies of copies are neither 3 nor 4."""
HEARD = {
    "Runtime.consoleAPICalled": "said on the console",
    "Runtime.exceptionThrown": "raised",
    "Log.entryAdded": "logged",
    "Audits.issueAdded": "an issue",
}


class Browser:
    """One process with one tab. `complaints` and `requests` are of the page that is open."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._orders = os.pipe()
        self._answers, to_write = os.pipe()
        words = [str(to_read), str(to_write), CHROMIUM, *OPTIONS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", ON_3_AND_4, *words],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._is_loaded = False

    def __enter__(self) -> "Browser":
        targets = self._call("Target.getTargets")["targetInfos"]
        (tab,) = (target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._orders)
        self._process.terminate()
        self._process.wait(ANSWERS_WITHIN_S)
        os.close(self._answers)
        self._folder.cleanup()

    def open(self, path: Path, *, width: int, theme: str = "light", scripts: bool = True) -> None:
        """Waits until the page has loaded. `theme`: light or dark, as its reader prefers."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.complaints, self.requests, self._is_loaded = [], [], False
        self._call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while not self._is_loaded:
            assert time.monotonic() < deadline, f"{path} was not loaded in {ANSWERS_WITHIN_S} s"
            self._hear()

    def ask(self, script: str) -> Any:
        """The value of a script that runs in the page, also where scripts of pages are off."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path, *, top: int = 0, height: int | None = None) -> None:
        """The whole page, or a part of it, as a PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        order = {"id": self._number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            answer = self._hear()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has gone"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        method, params = message.get("method", ""), message.get("params", {})
        if method in HEARD:
            self.complaints.append(f"{HEARD[method]}: {json.dumps(params)}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._is_loaded = True
        return message
