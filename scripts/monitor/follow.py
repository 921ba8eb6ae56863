"""A log of one record per line that somebody else writes: what is new in it, and what no longer holds.

te-train appends to its logs. A run that is resumed cuts off the lines of steps after its checkpoint, in place, and may have
written past the old end by the time anybody looks again; a run that begins anew renames or removes the file. So every
line's end and check sum are kept (12 bytes a line), and the last line that is still there is found by bisection."""

import array
import dataclasses
import os
import zlib

BLOCK = 1 << 20  # bytes read at a time


@dataclasses.dataclass
class News:
    """`kept`: how many of the lines given so far still hold; `lines`: the new ones behind them, without newlines."""

    kept: int
    lines: list


class Follower:
    def __init__(self, path):
        self.path = path
        self._ends = array.array("q")  # of every line given
        self._sums = array.array("I")  # CRC-32 of each
        self._identity = None  # device and inode
        self.size = 0  # of the file when it was last looked at

    @property
    def position(self):
        return self._ends[-1] if self._ends else 0

    def read(self, limit=BLOCK):
        """What has happened since the last call, with at most about `limit` bytes of new lines. A line without its newline
        is still being written and waits. A file that is not there has no lines."""
        try:
            file = open(self.path, "rb")
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
        """Whether there was more than the last read() gave."""
        return self.position < self.size

    def _nothing(self):
        self._forget(0)
        self._identity, self.size = None, 0
        return News(0, [])

    def _forget(self, kept):
        del self._ends[kept:], self._sums[kept:]

    def _still_there(self, file):
        """The number of lines that are as they were. Lines are cut off from the end only, so the first that differs is
        found by bisection; mostly the last one is there and nothing is searched."""
        if not self._ends or self._holds(file, len(self._ends) - 1):
            return len(self._ends)
        low, high = 0, len(self._ends) - 1  # lines below `low` hold, line `high` does not
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
