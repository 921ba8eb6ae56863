"""A headless Chromium for tests, controlled by its debugging protocol over a WebSocket, with the standard library only.

    with Browser(width=1280) as browser:
        browser.open("http://127.0.0.1:8420/")
        browser.value("document.title")
"""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The browser's path, or None. TE_BROWSER overrides it."""
    return os.environ.get("TE_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, width=1280, height=900, seconds=60):
        self.seconds = seconds  # timeout of all operations
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
            f"--user-data-dir={self._profile.name}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen([find(), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._socket = self._connect(self._page_address())
        except BaseException:
            self.close()
            raise
        self._number, self._buffer = 0, b""
        self.errors = []  # exceptions of the page, and its console errors
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    # ---- What a test does ----------------------------------------------------------------------------------

    def resize(self, width, height, dark=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address):
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=address)

    def value(self, expression):
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression):
        """Waits until the expression is true; returns its value."""
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            if found := self.value(expression):
                return found
            time.sleep(0.1)
        raise AssertionError(f"{expression} did not come true within {self.seconds} s; errors: {self.errors}")

    def drag(self, x, y, to_x):
        """Drags with the left button from (x, y) to (to_x, y)."""
        for kind, at, buttons in (("mouseMoved", x, 0), ("mousePressed", x, 1), ("mouseMoved", to_x, 1), ("mouseReleased", to_x, 0)):
            button = {"button": "left" if kind != "mouseMoved" else "none", "buttons": buttons, "clickCount": 1}
            self.command("Input.dispatchMouseEvent", type=kind, x=at, y=y, **button)

    def move(self, x, y):
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file, whole=False):
        options = {"format": "png"}
        if whole:
            size = self.command("Page.getLayoutMetrics")["cssContentSize"]
            options |= {"captureBeyondViewport": True, "clip": {**size, "x": 0, "y": 0, "scale": 1}}
        Path(file).write_bytes(base64.b64decode(self.command("Page.captureScreenshot", **options)["data"]))

    # ---- Protocol ------------------------------------------------------------------------------------------

    def command(self, method, **parameters):
        self._number += 1
        self._send(json.dumps({"id": self._number, "method": method, "params": parameters}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"])
            if message.get("id") == self._number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]

    def _page_address(self):
        """The WebSocket address of the page; Chromium writes its port to a file of its profile."""
        file, end = Path(self._profile.name) / "DevToolsActivePort", time.monotonic() + self.seconds
        while time.monotonic() < end and self._process.poll() is None:
            if file.is_file() and (lines := file.read_text().split()):
                with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=self.seconds) as answer:
                    pages = [t for t in json.load(answer) if t["type"] == "page"]
                if pages:
                    return pages[0]["webSocketDebuggerUrl"]
            time.sleep(0.1)
        raise AssertionError(f"{find()} did not start (exit code {self._process.poll()})")

    def _connect(self, address):
        host, _, path = address.removeprefix("ws://").partition("/")
        name, _, port = host.rpartition(":")
        connection = socket.create_connection((name, int(port)), self.seconds)
        key = base64.b64encode(os.urandom(16)).decode()
        head = ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        connection.sendall("\r\n".join([f"GET /{path} HTTP/1.1", f"Host: {host}", *head, "", ""]).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(1)
        if b" 101 " not in answer.split(b"\r\n")[0]:
            raise AssertionError(answer.decode())
        return connection

    def _send(self, text):
        size = len(text)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, size)
        if size > 0xFFFF:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        self._socket.sendall(head + bytes(4) + text)  # masked with zeros, which does not change the data

    def _receive(self):
        """The next message: joins fragments, and ignores pings."""
        whole = b""
        while True:
            first, size = struct.unpack("!BB", self._take(2))
            size &= 0x7F
            if size >= 126:
                (size,) = struct.unpack("!H" if size == 126 else "!Q", self._take(2 if size == 126 else 8))
            part = self._take(size)
            if first & 0x0F in (0, 1, 2):
                whole += part
                if first & 0x80:
                    return whole

    def _take(self, count):
        while len(self._buffer) < count:
            more = self._socket.recv(1 << 16)
            if not more:
                raise AssertionError("the browser has closed the connection")
            self._buffer += more
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken
