"""The loop of export_metrics.py: sends a run's log to a tracker, once or until the run ends.

Records that were sent to a tracker cannot be removed. If a resumed run discards steps that were sent, a new tracker run
therefore starts with all valid steps, and the old one is marked as superseded. A file in the run's folder notes what has
been sent, so that the next call continues and sends nothing twice. It also names the folder, so that a copy gets a
tracker run of its own."""

import contextlib
import json
import os
import time
import zlib

from script_files import write_text

from . import UserError, records, run_status
from .clock import Clock
from .follow import Follower
from .progress import Progress

CHUNK = 1000  # records per request
JUDGED = ("step", "step_ms", "loss", "valid_loss", "skipped")  # numbers that the run's state depends on


class Export:
    def __init__(self, folder, sink, note, where):
        """`note`: name of the file in the run's folder; `where`: the destination; notes of other destinations are ignored."""
        self.folder, self.sink, self.where = folder, sink, where
        self.note_path = folder / note
        self.sent = 0  # records sent in this call
        found = run_status.read_json(self.note_path)
        continues = found.get("where") == where and not _is_of_another(found, folder)
        # `lines` lines of the log are sent; the last of them has the checksum `sum` and belongs to `step`.
        self._state = {"run_id": None, "lines": 0, "sum": 0, "step": 0, **(found if continues else {})}
        self._state |= {"where": where, **_identity(folder)}
        self._write_note(found)
        self._enter(sink.begin, self._state["run_id"])

    @property
    def step(self):
        """The last step that was sent."""
        return self._state["step"]

    def catch_up(self):
        """Sends all new records; True if there were any."""
        before = self.sent
        while not self._read_all():
            self._supersede()
        return self.sent > before

    def status(self):
        """(state, reason) as in the dashboard, from the records read so far. States: running, finished, failed, ..."""
        return self._progress.status(self.folder, self._config())[:2]

    def end(self, state, reason):
        self._ask(self.sink.end, state, reason)

    def _config(self):
        return run_status.flat_config(run_status.read_json(self.folder / "run.json"))

    def _read_from_start(self):
        log = run_status.log_of(self.folder)
        self._follower, self._reader = Follower(log), records.Reader(log)
        every = run_status.log_every(self._config())
        self._lines, self._progress = 0, Progress(every)
        self._clock = Clock(every)  # also counts steps that a rollback repeats

    def _read_all(self):
        """Sends new records. False if the log no longer contains the records that were sent."""
        if not self._lines:
            self._read_from_start()  # metrics.jsonl may exist now
        while True:
            news = self._follower.read()
            if news.kept < self._lines:  # truncated: read again to find out whether the sent lines still exist
                self._read_from_start()
                continue
            rows = []
            for line in news.lines:
                self._lines += 1
                row = self._row(line)
                if self._lines > self._state["lines"]:
                    rows.append((row, line))
                elif self._lines == self._state["lines"] and zlib.crc32(line.encode()) != self._state["sum"]:
                    return False
            for first in range(0, len(rows), CHUNK):
                self._send(rows[first : first + CHUNK])
            if not news.lines or not self._follower.behind():
                return self._lines >= self._state["lines"]

    def _row(self, line):
        """(step, numbers) of a line; None if it is not a record."""
        record = self._reader.record(line)
        if record is None or not records.is_number(record.get("step")):
            return None
        numbers = records.numbers(record, "/")  # a dot may belong to the name of a dataset
        self._progress.add({name: numbers[name] for name in JUDGED if name in numbers})
        step = int(numbers.pop("step"))
        self._clock.add(step, numbers.get("step_ms", 0.0) / 1e3)
        return step, {**numbers, "seconds": self._clock.seconds[-1]}

    def _send(self, rows):
        found = [row for row, _ in rows if row]
        if found:
            self._ask(self.sink.log, found)
            self._state["step"] = found[-1][0]
        self.sent += len(found)
        self._state["lines"] += len(rows)
        self._state["sum"] = zlib.crc32(rows[-1][1].encode())
        self._write_note(self._state)

    def _supersede(self):
        """Starts a new tracker run and marks the old one as superseded."""
        self._write_note(self._state)
        self._state |= {"lines": 0, "sum": 0, "step": 0}
        self._enter(self.sink.replace)

    def _enter(self, call, *arguments):
        """Starts or continues a tracker run, and notes it. Callers first write the old note again: if that fails, no
        tracker run may start, since it would not be noted and each later call would start one more."""
        known = self._state["run_id"]
        self._state["run_id"] = self._ask(call, *arguments)
        self._read_from_start()
        try:
            self._write_note(self._state)
        except UserError as error:
            if self._state["run_id"] != known:
                with contextlib.suppress(UserError):  # the first error has the cause
                    self.end("superseded", str(error))
            raise

    def _ask(self, call, *arguments):
        """Calls a tracker and converts its exceptions (no key, no network, refused requests) to UserError."""
        try:
            return call(*arguments)
        except Exception as error:
            text = " ".join(str(error).split())
            raise UserError(f"{self.where}: {type(error).__name__}: {text[:400]}") from None

    def _write_note(self, content):
        try:
            write_text(self.note_path, json.dumps(content) + "\n")
        except OSError as error:
            remedy = "the next call continues from this file, so the run folder must be writable"
            raise UserError(f"{self.note_path}: {error.strerror}; {remedy}") from None


def _identity(folder):
    found = os.stat(folder)
    return {"folder": os.path.realpath(folder), "device": found.st_dev, "inode": found.st_ino}


def _is_of_another(note, folder):
    """Whether the note was copied with its folder: the folder that it names still exists and is not this one. A folder
    that was moved or renamed is the same, also if another one has its old name. Notes of earlier versions name none."""
    noted, here = note.get("folder"), os.stat(folder)
    if not isinstance(noted, str) or (note.get("device"), note.get("inode")) == (here.st_dev, here.st_ino):
        return False
    try:
        return not os.path.samestat(os.stat(noted), here)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:  # such as a parent folder that may not be read
        return True


def follow(exports, seconds, say, sleep=time.sleep):
    """Sends records until all runs have ended. A stale run may continue, so it does not count as ended."""
    waiting = dict(exports)
    while waiting:
        for name, export in list(waiting.items()):
            ended = run_status.has_ended(export.folder)  # before reading the log, so that all records are read
            if export.catch_up():
                say(f"{name}: step {export.step}")
            state, reason = export.status()
            if ended and state in run_status.ENDED:
                export.end(state, reason)
                say(f"{name}: {state} at step {export.step}")
                del waiting[name]
        if waiting:
            sleep(seconds)
