"""Makes text of logs and foreign files safe for a terminal: control characters are printed as \\x1b, \\u202e."""

import re
import sys

from script_files import open_streams

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text):
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


class _Stream:
    """A text stream whose write() escapes control characters."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        return self._stream.write(printable(text))

    def __getattr__(self, name):
        return getattr(self._stream, name)


def guard_output():
    """Call it at the start of a script: escapes control characters in everything it prints, including errors, and
    prints ? for characters that the locale's charset lacks."""
    open_streams()
    sys.stdout.reconfigure(errors="replace")  # Python itself prints escapes on standard error
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)
