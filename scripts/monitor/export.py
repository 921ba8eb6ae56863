"""The loop of export_metrics.py: a run's log to a tracker, once or for as long as the run goes on.

A tracker only takes more: what it has been given cannot be taken back. So when a resume cuts off steps that were sent, a new
run is begun there with all that still holds, and the old one is marked as superseded. What has been sent is noted in the
run's folder, so that the next call goes on and sends nothing twice."""

import json
import os
import time
import zlib

from . import UserError, records, run_status
from .follow import Follower

CHUNK = 1000  # records sent at a time


class Export:
    def __init__(self, folder, sink, note, where):
        """`note`: a file name in the folder; `where`: what the sink writes to, so that notes of another are not used."""
        self.folder, self.sink, self.where = folder, sink, where
        self.note_path = folder / note
        self.sent = 0  # records so far, in this call
        found = run_status.read_json(self.note_path)
        old = found if found.get("where") == where else {}
        # `lines` of the log are sent, the last of them has the check sum `sum` and is of `step`.
        self._state = {"where": where, "run_id": None, "lines": 0, "sum": 0, "step": 0, **old}
        self._state["run_id"] = self._ask(sink.begin, self._state["run_id"])
        self._read_from_start()
        self._write_note()

    @property
    def step(self):
        """The last one that was sent."""
        return self._state["step"]

    def catch_up(self):
        """Sends all that is new; True when there was anything."""
        before = self.sent
        while not self._read_all():
            self._supersede()
        return self.sent > before

    def end(self, state):
        self._ask(self.sink.end, state)

    def _read_from_start(self):
        log = run_status.log_of(self.folder)
        self._follower, self._reader = Follower(log), records.Reader(log)
        self._lines, self._seconds, self._last_step = 0, 0.0, 0

    def _read_all(self):
        """Sends what is new. False when the log no longer holds what was sent."""
        if not self._lines:
            self._read_from_start()  # metrics.jsonl may have come in the meantime
        while True:
            news = self._follower.read()
            if news.kept < self._lines:  # cut off: read again to see whether what was sent is still there
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
        """(step, numbers) of a line; None for one that is no record."""
        record = self._reader.record(line)
        if record is None or not records.is_number(record.get("step")):
            return None
        numbers = records.numbers(record)
        step = int(numbers.pop("step"))
        # A thinned log stands for the steps left out; the first step is slow and stands for itself.
        count = max(1, step - self._last_step) if self._last_step else 1
        self._seconds += numbers.get("step_ms", 0.0) / 1e3 * count
        self._last_step = step
        named = {name.replace(".", "/"): value for name, value in numbers.items()}
        return step, {**named, "seconds": self._seconds}

    def _send(self, rows):
        found = [row for row, _ in rows if row]
        if found:
            self._ask(self.sink.log, found)
            self._state["step"] = found[-1][0]
        self.sent += len(found)
        self._state["lines"] += len(rows)
        self._state["sum"] = zlib.crc32(rows[-1][1].encode())
        self._write_note()

    def _supersede(self):
        """Begins anew: the old run there is marked and left."""
        self._state |= {"run_id": self._ask(self.sink.replace), "lines": 0, "sum": 0, "step": 0}
        self._read_from_start()
        self._write_note()

    def _ask(self, call, *arguments):
        """Trackers raise exceptions of many kinds: no key, no network, a server's refusal."""
        try:
            return call(*arguments)
        except Exception as error:
            text = " ".join(str(error).split())
            raise UserError(f"{self.where}: {type(error).__name__}: {text[:400]}") from None

    def _write_note(self):
        part = self.note_path.with_suffix(".tmp")
        try:
            part.write_text(json.dumps(self._state) + "\n")
            os.replace(part, self.note_path)
        except OSError as error:
            raise UserError(f"{self.note_path}: {error.strerror}; the next call needs it to go on") from None


def state_of(folder):
    """running, finished, failed, stopped, ... as the dashboard says."""
    config = run_status.flat_config(run_status.read_json(folder / "run.json"))
    return run_status.status(folder, _last_step(folder), run_status.train_steps(config), [])[0]


def _last_step(folder):
    """Of the log's last whole record."""
    log = run_status.log_of(folder)
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - (1 << 20)))
            lines = file.read().decode("utf-8", "replace").splitlines()
            file.seek(0)
            header = file.readline().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return 0
    reader = records.Reader(log)
    reader.record(header)
    for line in reversed(lines):
        record = reader.record(line)
        if record and records.is_number(record.get("step")):
            return int(record["step"])
    return 0


def follow(exports, seconds, say, sleep=time.sleep):
    """Until every run has ended. A stale run may come back, so it is waited for."""
    waiting = dict(exports)
    while waiting:
        for name, export in list(waiting.items()):
            state = state_of(export.folder)  # before reading: what is written until then is read
            if export.catch_up():
                say(f"{name}: step {export.step}")
            if state in run_status.ENDED:
                export.end(state)
                say(f"{name}: {state} at step {export.step}")
                del waiting[name]
        if waiting:
            sleep(seconds)
