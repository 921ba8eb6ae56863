"""Reads runs from their logs. A run is a te-train run folder (loss.csv, metrics.jsonl, run.json, evaluate*.json), a CSV
file with the columns consumed_tokens and loss, or a log of another program (foreign.py)."""

import csv
import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
from monitor import run_status
from monitor.clock import Clock

from . import UserError


def _nothing():
    return np.array([], float)


@dataclasses.dataclass
class Run:
    label: str
    tokens: np.ndarray  # consumed tokens, strictly increasing
    loss: np.ndarray  # nats per token, finite
    valid_tokens: np.ndarray
    valid_loss: np.ndarray
    dropped: int = 0  # rows without a finite loss
    skipped: int = 0  # steps without an update
    grad_norm: np.ndarray = dataclasses.field(default_factory=_nothing)  # at `tokens`; NaN if unknown
    step_ms: np.ndarray = dataclasses.field(default_factory=_nothing)  # at `tokens`, time of one step
    seconds: np.ndarray = dataclasses.field(default_factory=_nothing)  # at `tokens`: wall clock of all steps so far
    steps: np.ndarray = dataclasses.field(default_factory=_nothing)  # at `tokens`; NaN if unknown
    bad_valid: np.ndarray = dataclasses.field(default_factory=_nothing)  # tokens of not finite validation losses
    bad_end: list = dataclasses.field(default_factory=list)  # steps (NaN if unknown) of the last records, if not finite
    diverged: bool = False
    seed: int | None = None
    folder: Path | None = None
    record: dict = dataclasses.field(default_factory=dict)  # run.json
    note: str = ""  # note for the reader of the report about the source

    @property
    def config(self):
        """{"section.key": text} of the effective config; empty if there is none."""
        return self.record.get("config", {})


def read_run(path, label=None, options=None):
    """`options` (foreign.Options): information that logs of other programs do not contain."""
    from . import foreign

    path = Path(path)
    if not path.is_dir():
        run = _read_file(path, options or foreign.Options())
        run.label = label or (default_label(path) if run.label == "" else run.label)
        run.seed = seed_in(default_label(path))
        run.diverged = _has_diverged(run)
        return run
    record = read_json(path / "run.json") if (path / "run.json").is_file() else {}
    record["config"] = run_status.flat_config(record)
    every = log_every(record)
    if (path / "loss.csv").is_file():
        run = read_csv(path / "loss.csv", every)
    elif (path / "metrics.jsonl").is_file():
        run = read_jsonl(path / "metrics.jsonl", every)
    elif any(path.glob("*tfevents*")):
        run = foreign.read_events(path, options or foreign.Options())
    else:
        raise UserError(
            f"{path / 'loss.csv'}: no such file; give a run folder with a loss.csv, metrics.jsonl or event files, "
            "or a log file"
        )
    run.label = label or path.resolve().name
    run.folder = path
    run.record = record
    seed = run.config.get("training.seed", "")
    run.seed = int(seed) if seed.isdigit() else seed_in(path.resolve().name)
    run.diverged = _has_diverged(run)
    return run


def log_every(record):
    """Steps per record of the run with this run.json."""
    return run_status.log_every(run_status.flat_config(record))


def _has_diverged(run):
    """Whether te-experiment says so, or the run ended early in records that are not finite. One or two such records at
    the planned end are skipped steps; after three, te-train says that the run has probably diverged."""
    state = run.folder / "state.json" if run.folder else None
    stage = read_json(state).get("state") if state and state.is_file() else None
    if stage in ("finished", "diverged"):
        return stage == "diverged"
    planned = run.config.get("training.train_steps", "")
    ended = planned.isdigit() and bool(run.bad_end) and run.bad_end[-1] >= int(planned) > 0
    return len(run.bad_end) >= (3 if ended else 1)


def seed_in(name):
    """The seed in a name of te-experiment, VARIANT_seedN; None if it has none."""
    found = re.search(r"_seed(\d+)$", name)
    return int(found.group(1)) if found else None


def _read_file(path, options):
    from . import foreign

    if not path.is_file():
        raise UserError(f"{path}: no such file; give a run folder with a loss.csv, or a CSV file")
    if "tfevents" in path.name:
        return foreign.read_events(path, options)
    if path.suffix == ".jsonl":
        return read_jsonl(path)
    if foreign.is_megatron_log(path):
        return foreign.read_megatron(path, options)
    return read_csv(path)


def default_label(file):
    return (file.resolve().parent.name or file.stem) if file.name == "loss.csv" else file.stem


def read_json(path):
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); correct or delete it") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not a JSON object; correct or delete it")
    return content


class RunBuilder:
    """Collects the records of a log. A later record of the same tokens replaces the earlier one, because a resumed run
    repeats steps."""

    COLUMNS = ("loss", "valid_loss", "grad_norm", "step_ms", "step", "skipped")

    def __init__(self):
        self.records = {}

    def add(self, tokens, **values):
        record = self.records.setdefault(float(tokens), {})
        record.update({name: value for name, value in values.items() if value is not None})

    def build(self, source, label="", note="", every=1):
        """`every`: logging.every of the run."""
        ordered = sorted(self.records)
        column = {
            name: np.array([self.records[t].get(name, math.nan) for t in ordered], float) for name in self.COLUMNS
        }
        tokens = np.array(ordered, float)
        trained = np.isfinite(column["loss"])
        if not trained.any():
            raise UserError(f"{source}: has no row with a finite loss; wait for the run's first step")
        valid = np.isfinite(column["valid_loss"])
        return Run(
            label,
            tokens[trained],
            column["loss"][trained],
            tokens[valid],
            column["valid_loss"][valid],
            sum(self._is_dropped(record) for record in self.records.values()),
            sum(self._is_skipped(record) for record in self.records.values()),
            column["grad_norm"][trained],
            column["step_ms"][trained],
            wall_clock(column["step"], column["step_ms"], every)[trained],
            steps=column["step"][trained],
            bad_valid=tokens[["valid_loss" in self.records[t] for t in ordered] & ~valid],
            bad_end=self._bad_end(ordered),
            note=note,
        )

    @staticmethod
    def _is_dropped(record):
        """A record may have only a validation loss."""
        return "loss" in record and not math.isfinite(record["loss"])

    def _is_skipped(self, record):
        """If the log does not say so, a step without a loss is a skipped one."""
        skipped = record.get("skipped", math.nan)
        return self._is_dropped(record) if math.isnan(skipped) else skipped == 1

    def _bad_end(self, ordered):
        """Run.bad_end. An update skipped because of a loss spike is finite."""
        losses = [self.records[t] for t in ordered if "loss" in self.records[t]]
        bad = list(itertools.takewhile(self._is_bad, reversed(losses)))
        return [record.get("step", math.nan) for record in reversed(bad)]

    def _is_bad(self, record):
        skipped = record.get("skipped") == 1
        return self._is_dropped(record) or (skipped and not math.isfinite(record.get("grad_norm", math.nan)))


def wall_clock(steps, step_ms, every=1, start=0):
    """Seconds of all steps after `start` (monitor.clock). `every`: steps per record. NaN if unknown, or if the log does
    not begin there, as the log of a branch does not begin at step 0."""
    if not len(step_ms):
        return _nothing()
    known = np.isfinite(step_ms)
    if not known.any() or not _has_the_start(steps - start):
        return np.full(len(step_ms), math.nan)
    filled = np.interp(np.arange(len(step_ms)), np.flatnonzero(known), step_ms[known])
    clock = Clock(every)
    for step, milliseconds in zip(steps if np.isfinite(steps).all() else itertools.count(), filled):
        clock.add(step, milliseconds / 1e3)
    return np.array(clock.seconds)


def _has_the_start(steps):
    """Whether the first record is of step 1, or of as many steps as later ones. True if steps are unknown."""
    return not np.isfinite(steps).all() or steps[0] <= np.diff(steps).max(initial=1.0)


def read_csv(file, every=1):
    with open(file, newline="", encoding="utf-8-sig", errors="replace") as stream:
        try:
            rows = list(csv.reader(stream))
        except csv.Error as error:
            raise UserError(f"{file}: is not a CSV file ({error}); give te-train's loss.csv") from None
    if not rows:
        raise UserError(f"{file}: is empty; wait for the run's first step")
    header = [name.strip() for name in rows[0]]
    for column in ("consumed_tokens", "loss"):
        if column not in header:
            raise UserError(
                f"{file}: column {column} is missing (found: {', '.join(header)}); give te-train's loss.csv"
            )
    builder = RunBuilder()
    for number, row in enumerate(rows[1:], start=2):
        if not row or (number == len(rows) and len(row) < len(header)):
            continue  # an empty line, or the incomplete last line of a running run
        if len(row) != len(header):
            raise UserError(
                f"{file}: line {number}: {len(row)} fields where the header has {len(header)}; correct the line"
            )
        fields = dict(zip(header, row))
        values = {
            name: parse_number(file, number, name, fields.get(name, ""))
            for name in ("consumed_tokens", *RunBuilder.COLUMNS)
        }
        tokens = tokens_of(file, number, values.pop("consumed_tokens"))
        if not fields.get("valid_loss", "").strip():
            del values["valid_loss"]
        builder.add(tokens, **values)
    return builder.build(file, every=every)


def tokens_of(file, line, number):
    """A record's consumed_tokens, which it must have."""
    if not math.isfinite(number):
        raise UserError(f"{file}: line {line}: consumed_tokens is empty; correct the line")
    return number


def parse_number(file, line, column, value):
    """The number in a field of a CSV file, or of a value of JSON; NaN for an empty field or null."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{file}: line {line}: {column} is {value!r}, must be a number; correct the line") from None


def json_lines(file):
    """(line number, object) of each line; the last one may be incomplete."""
    with open(file, encoding="utf-8-sig", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                record = json.loads(line)
            except ValueError:
                if line.endswith("\n") and line.strip():
                    raise UserError(f"{file}: line {number}: not valid JSON; correct or delete the line") from None
                continue
            if isinstance(record, dict):
                yield number, record


def read_jsonl(file, every=1):
    """te-train's metrics.jsonl."""
    builder = RunBuilder()
    for number, record in json_lines(file):
        if "consumed_tokens" not in record or "loss" not in record:
            raise UserError(f"{file}: line {number}: consumed_tokens or loss is missing; give te-train's metrics.jsonl")
        values = {
            name: parse_number(file, number, name, record[name])
            for name in ("consumed_tokens", *RunBuilder.COLUMNS)
            if name in record
        }
        builder.add(tokens_of(file, number, values.pop("consumed_tokens")), **values)
    return builder.build(file, every=every)
