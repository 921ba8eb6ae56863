"""Config and state of a run from its folder: whether it runs, has finished, failed, and so on."""

import json
import os
import socket
import statistics
import time

from .follow import open_regular

LOGS = ("metrics.jsonl", "loss.csv")
STALE_SECONDS = 120  # a running run writes at least so often, unless its steps are slow
STALE_STEPS = 20  # with slow steps at least once in so many steps
ENDED = ("finished", "failed", "diverged", "stopped")  # states of runs that write nothing more
# Order of differing keys: the most important first, then alphabetically.
FIRST_KEYS = ("precision.fp8", "precision.", "training.seed", "optimizer.", "training.", "parallel.", "model.", "data.")
# Keys that differ in every run.
OWN_KEYS = {"logging.directory", "checkpoint.directory", "checkpoint.resume", "training.device_index"}


def is_run(folder):
    return any(os.path.isfile(folder / name) for name in (*LOGS, "run.json"))  # False without permission


def find_runs(paths):
    """Run folders at the paths or up to two levels below (such as in an experiment's folder), in the given order."""
    found = {}
    for path in paths:
        below = _folders_in(path)
        for folder in [path, *below, *(deeper for folder in below for deeper in _folders_in(folder))]:
            if is_run(folder):
                found[folder.resolve()] = folder
    return list(found.values())


def _folders_in(path):
    """None if the path is not a readable folder."""
    try:
        return [path / name for name in sorted(os.listdir(path)) if os.path.isdir(path / name)]
    except OSError:
        return []


def log_of(folder):
    """metrics.jsonl, else loss.csv; metrics.jsonl if neither exists yet."""
    return next((folder / name for name in LOGS if os.path.isfile(folder / name)), folder / LOGS[0])


def read_json(path):
    """The content of a JSON file; {} if it is missing or incomplete."""
    try:
        with open_regular(path) as file:
            content = json.loads(file.read().decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def flat_config(record):
    """{"section.key": text} of a run.json."""
    config = record.get("config", {})
    return {str(k): str(v) for k, v in config.items()} if isinstance(config, dict) else {}


def train_steps(config):
    """The run's number of steps, 0 if unknown."""
    return _count(config, "training.train_steps")


def log_every(config):
    """Steps per record (logging.every), 1 if unknown."""
    return max(1, _count(config, "logging.every"))


def patience(config):
    """Validations without improvement after which the run ends, 0 if it does not."""
    return _count(config, "training.early_stopping_patience")


def _count(config, key):
    text = config.get(key, "")
    return int(text) if text.isdecimal() else 0


def order_of(key):
    """Sorts keys by FIRST_KEYS."""
    starts = (i for i, first in enumerate(FIRST_KEYS) if key == first or (first.endswith(".") and key.startswith(first)))
    return next(starts, len(FIRST_KEYS)), key


def differing_keys(configs):
    """{key: [text per run]} of the keys that differ between runs with a config, most important first."""
    known = [c for c in configs if c]
    keys = sorted(set().union(*known) - OWN_KEYS, key=order_of) if known else []
    return {
        key: [c.get(key, "-") if c else "?" for c in configs] for key in keys if len({c.get(key, "-") for c in known}) > 1
    }


def last_sign(folder):
    """Time of the run's last write, in seconds since 1970; 0 if there is none."""
    times = [0.0]
    for name in (*LOGS, "heartbeat", "console.log", "samples.jsonl"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def holder(folder):
    """Owner of run.lock: "alive", "dead" (a process of this host that has ended), "elsewhere" (another host), or None
    without a lock."""
    try:
        with open_regular(folder / "run.lock") as file:
            words = file.read().decode().split()
    except (OSError, ValueError):
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
        pass  # a process of another user
    return "alive"


def has_ended(folder):
    """Whether no process, of this or another host, writes to the folder."""
    return holder(folder) in (None, "dead")


def status(folder, step, steps, step_seconds, now=None, diverged="", early=""):
    """(state, reason). `step`: the last logged step; `steps`: the run's number of steps, 0 if unknown; `step_seconds`:
    recent times of steps; `diverged`: reason from the losses, or empty; `early`: why the run stopped early, or empty.
    States: waiting, running, stale, finished, stopped, diverged, failed."""
    now = now or time.time()
    lock, noted = holder(folder), read_json(folder / "state.json").get("state")
    quiet = now - last_sign(folder)
    allowed = max(STALE_SECONDS, STALE_STEPS * statistics.median(step_seconds or [0]))
    if lock == "dead":
        return "failed", "its process no longer exists: it was killed or has crashed"
    if lock and quiet > allowed:
        return "stale", f"nothing written for {quiet:.0f} s"
    if lock:
        return "running", diverged
    if diverged or noted == "diverged":
        return "diverged", diverged or "te-experiment noted it"
    if steps and step >= steps:
        return "finished", ""
    if noted == "failed":
        return "failed", "te-experiment noted it"
    if early:
        return "finished", early
    if step == 0 and quiet < allowed:
        return "waiting", "no step yet"
    if step == 0 and not steps:
        return "waiting", "no step yet"
    return "stopped", "ended before its last step"
