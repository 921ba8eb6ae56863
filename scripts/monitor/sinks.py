"""Destinations of export_metrics.py. A sink has

    begin(run_id)   starts a new run, or resumes the run with this id; returns the id
    log(rows)       sends [(step, {name: number})] with increasing steps
    replace()       marks the run as superseded and starts another; returns its id
    end(state, reason)   finished, failed, diverged or stopped; an empty reason if there is nothing to explain

and raises the exceptions of its library."""

import re
import time
import zlib
from datetime import datetime

from . import UserError

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}


def missing(module, python):
    return UserError(f"{module} is missing; {python} -m pip install {PACKAGES[module]}")


class Wandb:
    """Weights & Biases; offline it writes to `directory`/wandb, for `wandb sync`."""

    def __init__(self, wandb, about, project, offline, directory):
        self.wandb, self.about, self.project = wandb, about, project
        self.mode, self.directory = ("offline" if offline else None), directory
        self.run = None

    def begin(self, run_id=None):
        about = self.about
        self.run = self.wandb.init(
            project=self.project, name=about.name, id=run_id, resume="allow" if run_id else None, group=about.group,
            config=about.config, notes=about.text(), tags=about.tags, mode=self.mode, dir=self.directory,
            settings=self.wandb.Settings(console="off", save_code=False, disable_git=True),
        )  # fmt: skip
        # W&B's own steps must increase; ours may have gaps, and a rollback repeats steps.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        return self.run.id

    def log(self, rows):
        for step, numbers in rows:
            self.run.log({"step": step, **numbers})

    def replace(self):
        self.run.tags = (*(self.run.tags or ()), "superseded")
        self.end("superseded")
        return self.begin()

    def end(self, state, reason=""):
        self.run.summary["state"], self.run.summary["reason"] = state, reason
        self.run.finish(exit_code=1 if state in ("failed", "diverged") else 0)


def metric_name(name, limit=250):
    """The name as MLflow accepts it. Datasets' names are paths: refused characters, and slashes and dots that a path
    does not need, become _ and their hexadecimal code, so that names stay apart. A checksum replaces the end of a
    long name."""

    def code(found):
        return "".join(f"_{ord(character):x}" for character in found[0])

    starts_part = r"(?<![^/])"
    name = re.sub(rf"[^/\w.\- :]|{starts_part}(?:/|\.{{1,2}}(?![^/]))|/$", code, name)
    return name if len(name) <= limit else f"{name[: limit - 9]}_{zlib.crc32(name.encode()):08x}"


class Mlflow:
    BATCH = 1000  # maximum number of metrics per request
    PARAMETERS = 100

    def __init__(self, mlflow, about, experiment, uri):
        self.about = about
        self.mlflow, self.name, self.uri = mlflow, experiment, uri
        self.client = self.run_id = None

    def begin(self, run_id=None):
        if self.client is None:
            self.client = self.mlflow.tracking.MlflowClient(tracking_uri=self.uri)
        if run_id:
            self.client.update_run(run_id, status="RUNNING")
            self.run_id = run_id
            return run_id
        tags = {f"te_train.{i}": tag for i, tag in enumerate(self.about.tags)} | self.about.notes
        found = self.client.get_experiment_by_name(self.name)
        experiment = found.experiment_id if found else self.client.create_experiment(self.name)
        run = self.client.create_run(
            experiment, start_time=int(1e3 * self.about.started), run_name=self.about.name, tags=tags
        )
        self.run_id = run.info.run_id
        texts = [self.mlflow.entities.Param(key, text[:6000]) for key, text in sorted(self.about.config.items())]
        for first in range(0, len(texts), self.PARAMETERS):
            self.client.log_batch(self.run_id, params=texts[first : first + self.PARAMETERS])
        return self.run_id

    def log(self, rows):
        metrics = []
        for step, numbers in rows:
            now = int(1e3 * (self.about.started + numbers.get("seconds", 0.0)))
            metrics += [self.mlflow.entities.Metric(metric_name(name), x, now, step) for name, x in numbers.items()]
        for first in range(0, len(metrics), self.BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[first : first + self.BATCH])

    def replace(self):
        old = self.run_id
        self.end("superseded")
        new = self.begin()
        self.client.set_tag(old, "superseded_by", new)
        return new

    def end(self, state, reason=""):
        self.client.set_tag(self.run_id, "state", state)
        self.client.set_tag(self.run_id, "reason", reason)  # also an empty one, which replaces an earlier call's
        if state in ("running", "stale", "waiting"):
            return  # the tracker's run stays open
        status = {"finished": "FINISHED", "failed": "FAILED", "diverged": "FAILED"}.get(state, "KILLED")
        self.client.set_terminated(self.run_id, status=status, end_time=int(1e3 * time.time()))


class About:
    """The run's name, group, tags and notes in the tracker, from run.json."""

    def __init__(self, folder, record, config, name=None, tags=()):
        starts = record.get("starts")
        starts = [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
        first, last = (starts[0], starts[-1]) if starts else ({}, {})
        self.name = name or folder.resolve().name
        self.group = folder.resolve().parent.name or "te-train"
        self.config = config
        keys = ("version", "commit", "host", "device", "ranks")
        self.notes = {key: str(last[key]) for key in keys if last.get(key) not in (None, "")}
        self.notes["folder"] = str(folder.resolve())
        dtype = config.get("precision.dtype", "bf16")
        precision = {"off": dtype, "": ""}.get(config.get("precision.fp8", ""), "fp8")
        self.tags = [tag for tag in (config.get("model.family", ""), precision, *tags) if tag]
        self.started = _seconds(first.get("time")) or time.time()

    def text(self):
        return ", ".join(f"{key} {value}" for key, value in self.notes.items())


def _seconds(text):
    """Seconds since 1970 of 2026-01-01T12:00:00Z; None if the text has another format."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (AttributeError, ValueError):
        return None
