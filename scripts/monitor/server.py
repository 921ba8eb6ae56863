"""The web server of dashboard.py: one page and three JSON endpoints. Paths of requests never name files."""

import gzip
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).resolve().parent
# The page is self-contained: the policy forbids loading from other servers, whatever a run's texts contain.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CURSOR = re.compile(r"(\d{1,6}):(\d{1,9}\.\d{1,9}\.\d{1,9})")
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")


def page():
    """page.html with its style sheet and script embedded."""
    text = (HERE / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js"):
        text = text.replace(f"/*{name}*/", (HERE / name).read_text(encoding="utf-8"))
    return text.encode()


class Refused(Exception):
    """A request that is refused: (status code, message)."""


class Handler(BaseHTTPRequestHandler):
    server_version = "te-train-dashboard"
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self):
        try:
            kind, body = self._answer()
        except Refused as refused:
            self._send(refused.args[0], "text/plain; charset=utf-8", refused.args[1].encode() + b"\n")
            return
        self._send(200, kind, body)

    do_HEAD = do_GET

    def _answer(self):
        self._check_host()
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        board = self.server.board
        if address.path == "/":
            return "text/html; charset=utf-8", self.server.page
        if address.path == "/api/runs":
            cursors = {int(n): cursor for n, cursor in _CURSOR.findall(query.get("have", ""))}
            return as_json(board.answer(cursors))
        if address.path == "/api/part":
            axis = query.get("axis")
            if axis not in ("step", "tokens", "seconds"):
                raise Refused(400, "axis must be step, tokens or seconds")
            return as_json(board.part(axis, number(query, "low"), number(query, "high")))
        if address.path == "/api/samples":
            found = board.samples(int(number(query, "run")))
            if found is not None:
                return as_json(found)
        raise Refused(404, "unknown path")

    def _check_host(self):
        """Refuses other host names (DNS rebinding): a foreign page whose name resolves to this machine must not read data."""
        name = self.headers.get("Host", "").rsplit(":", 1)[0] if self.headers.get("Host") else ""
        if self.server.server_address[0] in ("127.0.0.1", "::1") and name not in _LOCAL:
            raise Refused(403, "use localhost or 127.0.0.1 in the address, or start dashboard.py with --host")

    def _send(self, code, kind, body):
        packed = len(body) > 2000 and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed:
            body = gzip.compress(body, 3)
        try:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has closed the page

    def log_message(self, *_):
        pass  # do not log the polls


def as_json(content):
    return "application/json", json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def number(query, name):
    try:
        value = float(query.get(name, ""))
    except ValueError:
        raise Refused(400, f"{name} must be a number") from None
    if value != value or abs(value) == float("inf"):
        raise Refused(400, f"{name} must be a number")
    return value


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address, board):
        super().__init__(address, Handler)
        self.board, self.page = board, page()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)
