"""Follows a log with one record per line that another process writes: new lines, and lines that were discarded.

te-train appends to its logs. A resumed run truncates the lines of steps after its checkpoint in place, and may have
written past the old end before the next read; a run that starts again renames or removes the file. The end and checksum
of every line are therefore kept (12 bytes per line), and the last line that still exists is found by bisection."""

import array
import dataclasses
import os
import stat
import zlib

BLOCK = 1 << 20  # bytes per read


def open_regular(path):
    """Opens a regular file for reading bytes. Another user may have put a pipe in its place, whose opening or reading
    would never end: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path}: not a regular file")
    return os.fdopen(descriptor, "rb")


@dataclasses.dataclass
class News:
    """`kept`: how many of the lines returned so far still exist; `lines`: new lines after them, without newlines."""

    kept: int
    lines: list


class Follower:
    def __init__(self, path):
        self.path = path
        self._ends = array.array("q")  # of every line that was returned
        self._sums = array.array("I")  # CRC-32 of each
        self._identity = None  # device and inode
        self.size = 0  # of the file at the last read

    @property
    def position(self):
        return self._ends[-1] if self._ends else 0

    def read(self, limit=BLOCK):
        """The changes since the last call, with at most about `limit` bytes of new lines. A line without a newline is still
        being written and is not returned yet. A missing file has no lines."""
        try:
            file = open_regular(self.path)
        except OSError:
            return self._nothing()
        with file:
            status = os.fstat(file.fileno())
            self.size = status.st_size
            if self._identity != (status.st_dev, status.st_ino):
                self._forget(0)
                self._identity = (status.st_dev, status.st_ino)
            self._forget(self._still_there(file))
            return News(len(self._ends), self._take(file, limit))

    def behind(self):
        """Whether the file has more lines than the last read() returned."""
        return self.position < self.size

    def _nothing(self):
        self._forget(0)
        self._identity, self.size = None, 0
        return News(0, [])

    def _forget(self, kept):
        del self._ends[kept:], self._sums[kept:]

    def _still_there(self, file):
        """The number of unchanged lines. Lines are only removed from the end, so the first changed line is found by
        bisection. Usually the last line still exists, and no search is needed."""
        if not self._ends or self._holds(file, len(self._ends) - 1):
            return len(self._ends)
        low, high = 0, len(self._ends) - 1  # lines below `low` are unchanged, line `high` is not
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._holds(file, middle) else (low, middle)
        return low

    def _holds(self, file, index):
        start = self._ends[index - 1] if index else 0
        file.seek(start)
        return zlib.crc32(file.read(self._ends[index] - start)) == self._sums[index]

    def _take(self, file, limit):
        file.seek(self.position)
        text = file.read(limit)
        while text and b"\n" not in text:  # one long line
            more = file.read(limit)
            if not more:
                return []
            text += more
        lines, start = [], 0
        position = self.position
        while (end := text.find(b"\n", start) + 1) > 0:
            line = text[start:end]
            self._ends.append(position + end)
            self._sums.append(zlib.crc32(line))
            lines.append(line[:-1].decode("utf-8", "replace"))
            start = end
        return lines
