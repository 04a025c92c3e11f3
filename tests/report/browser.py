"""A real Chromium without a window, for the tests of pages: spoken to over a pair of pipes in its DevTools protocol, ends with the test that started it."""

import base64
import json
import os
import select
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

START_S = 60.0  # a busy machine
ANSWER_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root it refuses to start with one; it opens our own pages only
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "Home": 36,
    "End": 35,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    " ": 32,
    "+": 187,
    "-": 189,
    "0": 48,
}


class Chromium:
    """One browser with one page. `console`: its errors and warnings; `requests`: addresses of everything that it asked for."""

    def __init__(self) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        self._session: str | None = None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # the program expects its commands at 3 and answers at 4, which may be taken here
        ends = [os.dup(end) if end <= 4 else end for end in (theirs_in, theirs_out)]
        moves = [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
        nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        profile = f"--user-data-dir={self._folder.name}"
        arguments = ["chromium", *FLAGS, profile, "about:blank"]
        environment = {**os.environ, "HOME": self._folder.name, "XDG_RUNTIME_DIR": self._folder.name}
        self._pid = os.posix_spawnp("chromium", arguments, environment, file_actions=[*nowhere, *moves], setpgroup=0)
        for end in {*ends, theirs_in, theirs_out}:
            os.close(end)
        try:
            self._open_page()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def _open_page(self) -> None:
        target = self.call("Target.createTarget", url="about:blank", within_s=START_S)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, *, within_s: float = ANSWER_S, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; events that come before it are noted. Raises AssertionError on an error, TimeoutError."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + within_s
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self, deadline: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"Chromium gave no answer to {awaited}")
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium has ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, said: dict[str, Any]) -> None:
        if event == "Runtime.consoleAPICalled" and said["type"] in {"error", "warning", "assert"}:
            self.console.append(" ".join(str(argument.get("value", argument)) for argument in said["args"]))
        elif event == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] in {"error", "warning"}:
            self.console.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def evaluate(self, expression: str, *, within_s: float = ANSWER_S) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise. Raises AssertionError with what it threw."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, within_s=within_s
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"].get("exception", {}).get("description")
        return answer["result"].get("value")

    def wait(self, expression: str, *, within_s: float = ANSWER_S) -> Any:
        """Asks until the expression is true, and gives its value. Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        while not (value := self.evaluate(expression, within_s=max(deadline - time.monotonic(), 1.0))):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)
        return value

    def shape(self, width: int, height: int, *, dark: bool = False, printed: bool = False) -> None:
        """The window's inner size in pixels, the colours that the reader's system asks for, and screen or paper."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="print" if printed else "screen", features=[scheme])

    def open(
        self, page: Path, ready: str = "document.readyState === 'complete'", *, within_s: float = ANSWER_S
    ) -> float:
        """Opens a file and waits until the expression is true: seconds from the start of the navigation, as the page itself counts them."""
        self.console.clear()
        self.requests.clear()
        self.call("Page.navigate", url=page.resolve().as_uri(), within_s=within_s)
        self.wait(ready, within_s=within_s)
        return float(self.evaluate("performance.now()")) / 1000

    def point(self, x: float, y: float) -> None:
        """Moves the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Presses and lets go of the left button there."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        """One key, by its DOM name."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        answer = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole=whole)
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, *, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
