#!/usr/bin/env python3
"""Downloads files over HTTP, with resume after interruptions, and checks sizes and optionally checksums. Needs no package.

    scripts/download.py --to data/fineweb-edu URL...
    scripts/download.py --to data/fineweb-edu --checksums SHA256SUMS URL...

A file gets its final name when it is complete; until then it is NAME.part, and NAME.part.json has the server's ETag. To
resume, run the same command again: complete files are kept (and their checksums verified), and partial files are continued
unless the file on the server has changed. --checksums takes output of sha256sum.
"""

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from script_files import run

CHUNK = 1 << 20


class Refused(Exception):
    """An error that another attempt would not fix."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_checksums(path):
    """{name: digest} from output of sha256sum; folders in names are ignored."""
    sums = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--checksums: {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9A-Fa-f]{64}) [ *](.+)", line)
        if not match and line.strip():
            raise Refused(f"--checksums: {path}:{number}: not a line of sha256sum")
        if match:
            sums[Path(match[2]).name] = match[1].lower()
    return sums


def name_of(url):
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading a wrong port raises ValueError
    except ValueError as error:
        raise Refused(f"{url}: not a valid URL: {error}") from error
    if re.search("[^!-~]", parts.path + parts.query):
        raise Refused(f"{url}: not a valid URL: replace blanks and characters other than ASCII by %XX")
    name = urllib.parse.unquote(parts.path).rsplit("/", 1)[-1]
    if parts.scheme not in ("http", "https") or not host or name in ("", ".", "..") or "\0" in name:
        raise Refused(f"{url}: not the URL of a file; give http://... or https://...")
    return name


class Download:
    """One file: `part` until it is complete, then `path`."""

    def __init__(self, url, path):
        self.url, self.path = url, path
        self.part, self.state = Path(f"{path}.part"), Path(f"{path}.part.json")
        self.shown = time.monotonic()

    def validator(self):
        """ETag or date of the file to which the part belongs; None: start from the beginning."""
        try:
            state = json.loads(self.state.read_text(encoding="utf-8"))
            return state["validator"] if state["url"] == self.url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def request(self):
        """(response, number of bytes already downloaded)"""
        have = self.part.stat().st_size if self.part.exists() else 0
        validator = self.validator()
        headers = {"User-Agent": "te-train download.py", "Accept-Encoding": "identity"}
        if have and validator:
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        response = urllib.request.urlopen(urllib.request.Request(self.url, headers=headers), timeout=60)
        if response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            return response, have
        if response.status == 206:
            response.close()
            self.part.unlink()
            raise http.client.HTTPException(f"the server sent a range other than bytes {have}-")
        # The date if the ETag is weak, because a weak ETag does not guarantee the same bytes.
        etag = response.headers.get("ETag") or ""
        validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
        self.state.write_text(json.dumps({"url": self.url, "validator": validator}), encoding="utf-8")
        return response, 0

    def attempt(self):
        try:
            response, have = self.request()
        except urllib.error.HTTPError as error:
            if error.code == 416 and self.part.exists():  # nothing follows the part: it is complete, or of another file
                total = (error.headers.get("Content-Range") or "").rsplit("/", 1)[-1]
                if total == str(self.part.stat().st_size):
                    return
                self.part.unlink()
            elif error.code < 500 and error.code not in (408, 429):
                raise Refused(f"{self.url}: HTTP {error.code} {error.reason}") from error
            raise
        except ValueError as error:  # of the encoding of the host's name, or of the target of a redirection
            raise Refused(f"{self.url}: not a valid URL: {error}") from error
        with response, open(self.part, "r+b" if have else "wb") as file:
            file.seek(have)
            # None if unknown: http.client does not rely on a Content-Length that is not a number.
            total = None if response.length is None else have + response.length
            while chunk := response.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                self.show(have, total)
        if total is not None and have != total:
            raise http.client.HTTPException(f"connection closed after {have} of {total} bytes")

    def show(self, have, total):
        if not sys.stderr.isatty() or time.monotonic() - self.shown < 0.5:
            return
        self.shown = time.monotonic()
        of = f" of {total / 1e6:.0f}" if total else ""
        print(f"\r{self.path.name}: {have / 1e6:.0f}{of} MB ", end="", file=sys.stderr, flush=True)

    def run(self, digest, retries, wait):
        if self.path.exists():
            if digest and sha256_of(self.path) != digest:
                raise Refused(f"{self.path}: SHA-256 is not {digest}; remove the file to download it again")
            print(f"{self.path}: complete")
            return
        for attempt in range(retries + 1):
            try:
                self.attempt()
                break
            except (OSError, http.client.HTTPException) as error:  # URLError and HTTPError are OSErrors
                if attempt == retries:
                    raise Refused(f"{self.url}: {error}; run the same command again to resume") from error
                print(f"download.py: warning: {self.url}: {error}; retrying", file=sys.stderr)
                time.sleep(wait * 2**attempt)
        if digest and (found := sha256_of(self.part)) != digest:
            self.part.unlink()
            raise Refused(f"{self.url}: SHA-256 is {found}, not {digest}; removed the file")
        size = self.part.stat().st_size
        os.replace(self.part, self.path)
        self.state.unlink(missing_ok=True)
        print(f"{self.path}: {size} bytes{', SHA-256 verified' if digest else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("urls", nargs="+", metavar="URL", help="files to download")
    parser.add_argument("--to", type=Path, default=Path("."), metavar="DIR", help="output folder; created if missing (default: current folder)")
    parser.add_argument("--checksums", type=Path, metavar="FILE", help="output of sha256sum with a line for each file")
    parser.add_argument("--retries", type=int, default=5, help="retries after a failed attempt (default: 5)")
    parser.add_argument("--wait", type=float, default=1, metavar="SECONDS", help="wait before the first retry, doubled for each further one (default: 1)")
    arguments = parser.parse_args()
    for option, value, most in (("--retries", arguments.retries, 1000), ("--wait", arguments.wait, 3600)):
        if not 0 <= value <= most:
            raise Refused(f"{option} {value}: must be from 0 to {most}")
    names = [name_of(url) for url in arguments.urls]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise Refused(f"several URLs have the file name {sorted(duplicates)[0]}; download them to separate folders")
    sums = read_checksums(arguments.checksums) if arguments.checksums else {}
    if missing := [name for name in names if arguments.checksums and name not in sums]:
        raise Refused(f"--checksums: {arguments.checksums} no line for {missing[0]}")
    arguments.to.mkdir(parents=True, exist_ok=True)
    try:
        for url, name in zip(arguments.urls, names):
            Download(url, arguments.to / name).run(sums.get(name), arguments.retries, arguments.wait)
    except KeyboardInterrupt:
        print("\ndownload.py: interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    run(main, Refused)
