"""What a run's folder says of the run besides its numbers: its config, and whether it is still at work."""

import json
import os
import socket
import statistics
import time
from pathlib import Path

LOGS = ("metrics.jsonl", "loss.csv")
STALE_SECONDS = 120  # a running run says something at least so often, unless its steps are slow
STALE_STEPS = 20  # then at least once in so many steps
ENDED = ("finished", "failed", "diverged", "stopped")  # states after which nothing more is written
# Of keys that differ, those that a reader asks for first; then by the alphabet.
FIRST_KEYS = ("precision.fp8", "precision.", "training.seed", "optimizer.", "training.", "parallel.", "model.", "data.")
# What every run has for itself.
OWN_KEYS = {"logging.directory", "checkpoint.directory", "checkpoint.resume", "training.device_index"}


def is_run(folder):
    return any((folder / name).is_file() for name in (*LOGS, "run.json"))


def find_runs(paths):
    """Run folders at or up to two levels below the paths, which may be an experiment's folder; in the order given."""
    found = {}
    for path in paths:
        for folder in [path, *sorted(path.glob("*/")), *sorted(path.glob("*/*/"))] if path.is_dir() else []:
            if is_run(folder):
                found[folder.resolve()] = folder
    return list(found.values())


def log_of(folder):
    """metrics.jsonl, else loss.csv; metrics.jsonl before there is any."""
    return next((folder / name for name in LOGS if (folder / name).is_file()), folder / LOGS[0])


def read_json(path):
    """{} for a file that is not there or is just being written."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def flat_config(record):
    """{"section.key": text} of a run.json."""
    config = record.get("config", {})
    return {str(k): str(v) for k, v in config.items()} if isinstance(config, dict) else {}


def train_steps(config):
    text = config.get("training.train_steps", "")
    return int(text) if text.isdigit() else 0


def order_of(key):
    """Sorts keys by FIRST_KEYS."""
    starts = (i for i, first in enumerate(FIRST_KEYS) if key == first or (first.endswith(".") and key.startswith(first)))
    return next(starts, len(FIRST_KEYS)), key


def differing_keys(configs):
    """{key: [a text a run]} of what is not the same in all runs that left a config, the most telling first."""
    known = [c for c in configs if c]
    keys = sorted(set().union(*known) - OWN_KEYS, key=order_of) if known else []
    return {
        key: [c.get(key, "-") if c else "?" for c in configs] for key in keys if len({c.get(key, "-") for c in known}) > 1
    }


def last_sign(folder):
    """When anything was last written by the run, in seconds since 1970; 0 when nothing was."""
    times = [0.0]
    for name in (*LOGS, "heartbeat", "console.log", "samples.jsonl"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def holder(folder):
    """Of run.lock: "alive", "dead" (this host's process is gone), "elsewhere" (another host's), None without a lock."""
    try:
        words = (folder / "run.lock").read_text().split()
    except OSError:
        return None
    if len(words) < 4 or not words[3].isdigit():
        return "elsewhere"
    if words[1] != socket.gethostname():
        return "elsewhere"
    try:
        os.kill(int(words[3]), 0)
    except ProcessLookupError:
        return "dead"
    except OSError:
        pass  # another user's
    return "alive"


def has_ended(folder):
    """No process of this host or another writes it."""
    return holder(folder) in (None, "dead")


def status(folder, step, steps, step_seconds, now=None, diverged=""):
    """(state, why). `step`: the last logged one; `steps`: of the whole run, 0 where unknown; `step_seconds`: of recent
    steps; `diverged`: why its losses say so. States: waiting, running, stale, finished, stopped, diverged, failed."""
    now = now or time.time()
    lock, noted = holder(folder), read_json(folder / "state.json").get("state")
    quiet = now - last_sign(folder)
    patience = max(STALE_SECONDS, STALE_STEPS * statistics.median(step_seconds or [0]))
    if lock == "dead":
        return "failed", "its process is gone; it was killed or has crashed"
    if lock and quiet > patience:
        return "stale", f"nothing written for {quiet:.0f} s"
    if lock:
        return "running", diverged
    if diverged or noted == "diverged":
        return "diverged", diverged
    if steps and step >= steps:
        return "finished", ""
    if noted == "failed":
        return "failed", noted
    if step == 0 and quiet < patience:
        return "waiting", "no step yet"
    if step == 0 and not steps:
        return "waiting", "no step yet"
    return "stopped", "ended before its last step"
