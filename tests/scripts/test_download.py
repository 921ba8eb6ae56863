"""Tests of scripts/download.py, with an HTTP server in this process."""

import hashlib
import http.server
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from folder_testing import InFolder

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "download.py"
CONTENT = bytes(range(256)) * 4096


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one file under any name. `server.cut`: lengths of the next bodies; `server.status`: the next status codes;
    `server.length`: the Content-Length, if not the right one."""

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        if server.status:
            self.send_error(server.status.pop(0))
            return
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked and server.has_ranges and self.headers.get("If-Range") == server.etag:
            start = int(asked[1])
        if start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.end_headers()
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", server.length or str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        self.wfile.write(body[: server.cut.pop(0)] if server.cut else body)

    def log_message(self, *_):
        pass


class Download(InFolder):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.content, self.server.etag, self.server.has_ranges = CONTENT, '"one"', True
        self.server.cut, self.server.status, self.server.ranges, self.server.length = [], [], [], None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}/folder/a%20b.bin?download=true"
        self.path = self.folder / "to" / "a b.bin"

    def run_script(self, *arguments, url=None):
        command = [sys.executable, SCRIPT, "--to", self.folder / "to", "--wait", "0", *arguments, url or self.url]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True)

    def expect_file(self, result, content=CONTENT):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.path.read_bytes(), content)
        self.assertEqual([path.name for path in self.path.parent.iterdir()], ["a b.bin"])

    def expect_refused(self, result, text):
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("error: "), 1, result.stderr)
        self.assertIn(text, result.stderr)

    def test_downloads_a_file_once(self):
        self.expect_file(self.run_script())
        self.expect_file(self.run_script())
        self.assertEqual(self.server.ranges, [None])

    def test_resumes_after_a_closed_connection(self):
        self.server.cut = [1000, 5000]
        result = self.run_script()
        self.expect_file(result)
        self.assertEqual(self.server.ranges, [None, "bytes=1000-", "bytes=6000-"])
        self.assertIn(f"connection closed after 1000 of {len(CONTENT)} bytes; retrying", result.stderr)

    def test_resumes_in_another_run(self):
        self.server.cut = [1000]
        self.expect_refused(self.run_script("--retries", "0"), "run the same command again to resume")
        self.assertFalse(self.path.exists())
        self.expect_file(self.run_script())
        self.assertEqual(self.server.ranges, [None, "bytes=1000-"])

    def test_accepts_a_complete_part(self):
        self.path.parent.mkdir()
        self.write("to/a b.bin.part", CONTENT)
        self.write("to/a b.bin.part.json", {"url": self.url, "validator": '"one"'})
        self.expect_file(self.run_script())

    def test_discards_a_part_of_another_file(self):
        for state in ({"url": self.url, "validator": '"old"'}, {"url": "http://x/y", "validator": '"one"'}, [1], "{"):
            self.write("to/a b.bin.part", b"old")
            self.write("to/a b.bin.part.json", state)
            self.expect_file(self.run_script())
            self.path.unlink()
        self.write("to/a b.bin.part", CONTENT + b"longer")
        self.write("to/a b.bin.part.json", {"url": self.url, "validator": '"one"'})
        self.expect_file(self.run_script())

    def test_servers_without_ranges_or_etag(self):
        self.server.cut, self.server.has_ranges = [1000], False
        self.expect_file(self.run_script())
        self.path.unlink()
        self.server.cut, self.server.etag = [1000], None
        self.expect_file(self.run_script())
        self.assertEqual(self.server.ranges, [None, "bytes=1000-", None, None])

    def test_servers_with_an_invalid_length(self):
        for self.server.length in ("many", "-1", "1.5", "1, 1"):
            self.expect_file(self.run_script("--retries", "0"))
            self.path.unlink()

    def test_server_errors(self):
        self.server.status = [503, 429]
        self.expect_file(self.run_script())
        self.path.unlink()
        self.server.status = [404]
        self.expect_refused(self.run_script(), "HTTP 404")
        self.assertEqual(len(self.server.ranges), 4)

    def test_checksums(self):
        digest = hashlib.sha256(CONTENT).hexdigest()
        sums = self.write("sums", f"{'0' * 64}  other.bin\n{digest} *x/a b.bin\n")
        result = self.run_script("--checksums", sums)
        self.expect_file(result)
        self.assertIn("SHA-256 verified", result.stdout)
        self.path.write_bytes(b"damaged")
        self.expect_refused(self.run_script("--checksums", sums), "remove the file")
        self.path.unlink()
        self.server.content = CONTENT[:-1] + b"x"
        self.expect_refused(self.run_script("--checksums", sums), "removed the file")
        self.assertFalse(self.path.with_name("a b.bin.part").exists())
        self.expect_refused(self.run_script("--checksums", self.write("no", f"{digest}  b.bin\n")), "no line for a b.bin")
        self.expect_refused(self.run_script("--checksums", self.write("bad", "abc  a b.bin\n")), "bad:1: not a line")

    def test_wrong_arguments(self):
        for url in ("ftp://x/y", "data/file", "http://x/", "http://x/.."):
            self.expect_refused(self.run_script(url=url), "not the URL of a file")
        for url in ("[bad/x", "x:port/y", "x:99999/y", "/y", "x/ä", "x/a?ä", "x/a%00b", "x/a b"):
            url = f"http://{url}"
            result = self.run_script(url=url)
            self.expect_refused(result, f"{url}: not ")
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for option, value in [("--retries", x) for x in (-1, 1001)] + [("--wait", x) for x in (-1.0, "nan", "inf")]:
            self.expect_refused(self.run_script(option, value), f"{option} {value}: must be from 0 to ")
        self.expect_refused(self.run_script("http://x/a%20b.bin"), "several URLs have the file name a b.bin")
        self.assertFalse(self.path.parent.exists())
        self.expect_refused(self.run_script(url=f"http://{'a' * 64}/x"), "not a valid URL: ")


if __name__ == "__main__":
    unittest.main()
