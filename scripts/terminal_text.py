"""Text of logs and other programs' files on a terminal: what a terminal would obey is shown as \\x1b, \\u202e."""

import re
import sys

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text):
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


class _Stream:
    """A text stream whose write() makes text printable."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        return self._stream.write(printable(text))

    def __getattr__(self, name):
        return getattr(self._stream, name)


def guard_output():
    """For a script's beginning: whatever it prints from now on, errors too, is printable."""
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)
