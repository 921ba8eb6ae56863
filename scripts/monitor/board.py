"""All runs of a dashboard, updated by one thread, and the answers to requests of the page."""

import json
import os
import threading
import time
from pathlib import Path

from . import records, run_status
from .follow import Follower
from .progress import Progress

SAMPLES = 200  # number of newest lines of samples.jsonl that are kept


class Run:
    """One run's folder. One thread calls update(); all other calls hold the board's lock."""

    def __init__(self, number, name, folder):
        self.number, self.name, self.folder = number, name, folder
        self.config, self.start = {}, {}
        self.epoch = 0  # incremented when the curves start again
        self.fp8, self.fp8_step = [], 0
        self.samples = []
        self.trouble, self.damaged = "", False  # why the last update failed; whether to try again is useless
        self._record_time = None
        self._samples_log = Follower(folder / "samples.jsonl")
        self._open(run_status.log_of(folder))

    def _open(self, log):
        self.progress, self._rows = Progress(run_status.log_every(self.config)), []
        self.curves = self.progress.curves
        self._log, self._reader = Follower(log), records.Reader(log)
        self.epoch += 1

    def update(self):
        """Reads part of the new lines; True if there are more."""
        self._read_record()
        wanted = run_status.log_of(self.folder)
        if wanted != self._log.path and not self._log.position:
            self._open(wanted)
        news = self._log.read()
        if news.kept < len(self._rows):
            self._drop(news.kept)
        for line in news.lines:
            self._take(line)
        self._read_samples()
        return bool(news.lines) and self._log.behind()

    def _drop(self, kept):
        """Discards lines after the first `kept`. `_rows` has the number of steps up to each line."""
        if kept == 0:
            self._reader.restart()
        self.curves.cut(self._rows[kept - 1] if kept else 0)
        del self._rows[kept:]

    def _take(self, line):
        record = self._reader.record(line)
        if record is not None and records.is_number(record.get("step")):
            self.progress.add(records.numbers(record))
            if record.get(records.FP8):
                self.fp8, self.fp8_step = records.worst_operands(record), record["step"]
        self._rows.append(len(self.curves))

    def _read_record(self):
        path = self.folder / "run.json"
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return
        if changed != self._record_time:
            content = run_status.read_json(path)
            self.config = run_status.flat_config(content)
            self.curves.clock.every = run_status.log_every(self.config)
            starts = content.get("starts")
            self.start = starts[-1] if isinstance(starts, list) and starts and isinstance(starts[-1], dict) else {}
            self._record_time = changed

    def _read_samples(self):
        news = self._samples_log.read()
        if news.kept < len(self.samples):
            del self.samples[news.kept :]
        for line in news.lines:
            try:
                sample = json.loads(line, parse_constant=lambda _: None)  # no NaN
            except (ValueError, RecursionError):
                sample = None
            # One entry per line, so that truncation finds its place; only the newest samples are kept.
            self.samples.append(sample if isinstance(sample, dict) else None)
            if len(self.samples) > SAMPLES:
                self.samples[-SAMPLES - 1] = None

    # ---- For the page --------------------------------------------------------------------------------------

    @property
    def loading(self):
        """Fraction of the log that has been read."""
        return self._log.position / self._log.size if self._log.size else 1.0

    def summary(self):
        step, steps = self.progress.step, run_status.train_steps(self.config)
        state, why, diverged_after = self.progress.status(self.folder, self.config)
        paces = sorted(self.progress.recent)
        pace = paces[len(paces) // 2] if paces else None
        starts = {key: str(self.start[key]) for key in ("host", "device", "commit", "ranks") if key in self.start}
        return {
            "state": state,
            "why": self.trouble or why,
            "loading": round(self.loading, 3),
            "now_step": step,  # "step" is the curves' axis
            "steps": steps,
            "diverged_after": diverged_after,  # a step; later values do not set the scale of the charts
            "eta": (steps - step) * pace if pace and steps > step and state == "running" else None,
            "sign": run_status.last_sign(self.folder),
            "start": starts,
            "seed": self.config.get("training.seed", ""),
            "samples": len(self.samples),
            "fp8": {"step": self.fp8_step, "operands": self.fp8},
            "last": {name: self.curves.last(name) for name in ("loss", "valid_loss", "tokens_per_s", "grad_norm", "lr")},
        }

    def news(self, cursor):
        """Curves since a cursor "EPOCH.GENERATION.BUCKETS" of an earlier answer; complete curves if it is outdated."""
        curves = self.curves
        mark, start = f"{self.epoch}.{curves.generation}", 0
        if cursor.rsplit(".", 1)[0] == mark:
            start = max(0, int(cursor.rsplit(".", 1)[1]) - 1)  # the last bucket may have grown
        return {"cursor": f"{mark}.{curves.buckets()}", "from": start, **curves.picture(start)}


class Board:
    def __init__(self, paths, seconds=1.0):
        self.paths = [Path(p) for p in paths]
        self.seconds = seconds  # polling interval
        self.runs = []
        self.lock = threading.RLock()
        self._known = {}
        self._stop = threading.Event()
        self.find()

    def find(self):
        """Adds new runs; known runs keep their positions and thus their colors."""
        folders = run_status.find_runs(self.paths)
        with self.lock:
            for folder in folders:
                if folder.resolve() not in self._known:
                    run = Run(len(self.runs), self._name(folder), folder)
                    self._known[folder.resolve()] = run
                    self.runs.append(run)

    def _name(self, folder):
        """The folder's name, with as many of its parents' names as needed to be unique."""
        parts = folder.resolve().parts
        taken = {run.name for run in self.runs}
        names = (os.sep.join(parts[-count:]) for count in range(1, len(parts) + 1))
        return next((name for name in names if name not in taken), str(folder.resolve()))

    def update(self):
        """Reads part of every run's new lines; True if there are more."""
        more = False
        for run in list(self.runs):
            with self.lock:
                more = self._update(run) or more
        return more

    @staticmethod
    def _update(run):
        """An unreadable run must not stop the others."""
        if run.damaged:
            return False
        try:
            more, run.trouble = run.update(), ""
            return more
        except Exception as error:
            run.trouble = f"cannot be read further: {type(error).__name__}: {error}"
            run.damaged = not isinstance(error, OSError)  # a file system may become available again
            return False

    def keep_up(self):
        """Updates the runs until stop() is called; the body of the thread."""
        found = time.monotonic()
        while not self._stop.is_set():
            if not self.update():
                self._stop.wait(self.seconds)
            if time.monotonic() - found > 5:
                self.find()
                found = time.monotonic()

    def stop(self):
        self._stop.set()

    # ---- For the page --------------------------------------------------------------------------------------

    def answer(self, cursors):
        """`cursors`: {run's number: cursor}."""
        with self.lock:
            keys = run_status.differing_keys([run.config for run in self.runs])
            runs = [
                {
                    "id": run.number,
                    "name": run.name,
                    **run.summary(),
                    "config": {key: values[i] for key, values in keys.items()},
                    **run.news(cursors.get(run.number, "")),
                }
                for i, run in enumerate(self.runs)
            ]
        return {"now": time.time(), "paths": [str(p) for p in self.paths], "runs": runs}

    def part(self, axis, low, high):
        with self.lock:
            return {"runs": [{"id": run.number, **run.curves.part(axis, low, high)} for run in self.runs]}

    def samples(self, number):
        with self.lock:
            if not 0 <= number < len(self.runs):
                return None
            return {"samples": [s for s in self.runs[number].samples if s][-SAMPLES:]}
