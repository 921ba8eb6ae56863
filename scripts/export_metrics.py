#!/usr/bin/env python3
"""Sends runs to Weights & Biases or MLflow: metrics.jsonl (else loss.csv), and config and origin from run.json.

    scripts/export_metrics.py --to wandb --project gpt2 runs/bf16 runs/fp8            # afterwards
    scripts/export_metrics.py --to mlflow --tracking-uri http://host:5000 --follow runs/fp8    # while it trains
    scripts/export_metrics.py --to wandb --offline runs/fp8                           # for `wandb sync`, later

Called again it goes on where it stopped, as noted in the run's folder (export_wandb.json, export_mlflow.json). When a resume
has cut off steps that were sent, the run there is marked as superseded, and a new one begins with the steps that hold.
docs/how-to/monitor.md has the rest.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

from monitor import UserError, export, run_status, sinks
from terminal_text import guard_output


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="export_metrics.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run folders, or folders with runs in them")
    add("--to", required=True, choices=["wandb", "mlflow"])
    add("--follow", action="store_true", help="go on until the runs have ended")
    add("--every", type=float, default=5.0, metavar="SECONDS", help="between looks, with --follow (default 5)")
    add("--name", help="the run's name there (default: its folder's); for one run")
    add("--tag", action="append", default=[], metavar="TEXT", help="further tag; repeat")
    add("--project", default="te-train", help="project of Weights & Biases, experiment of MLflow (default %(default)s)")
    add("--offline", action="store_true", help="wandb: write files only; `wandb sync` sends them")
    add("--directory", default=".", metavar="DIR", help="wandb: where its files go (default: here)")
    add("--tracking-uri", metavar="URI", help="mlflow: a server, or such as sqlite:///mlflow.db (default: MLflow's)")
    options = parser.parse_args(arguments)
    if not options.every > 0:
        raise UserError(f"--every: {options.every} must be above 0")
    if options.offline and options.to != "wandb":
        raise UserError("--offline: is for wandb; with mlflow give --tracking-uri sqlite:///mlflow.db")
    if options.tracking_uri and options.to != "mlflow":
        raise UserError("--tracking-uri: is for mlflow; wandb takes WANDB_BASE_URL from the environment")
    return options


def find_runs(options):
    folders = []
    for text in options.runs:
        found = run_status.find_runs([Path(text)])
        if not found:
            raise UserError(f"{text}: holds no run; give a run's folder (logging.directory), or one with runs in it")
        folders += [f for f in found if f not in folders]
    if options.name and len(folders) > 1:
        raise UserError(f"--name: names one run, and there are {len(folders)}")
    return folders


def load(module):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name and error.name.split(".")[0] != module:  # a part of it
            raise UserError(f"{module} cannot be imported: {error}") from None
        raise sinks.missing(module, sys.executable) from None


def open_sink(options, folder):
    config = run_status.flat_config(run_status.read_json(folder / "run.json"))
    about = sinks.About(folder, run_status.read_json(folder / "run.json"), config, options.name, options.tag)
    if options.to == "wandb":
        return sinks.Wandb(load("wandb"), about, options.project, options.offline, options.directory)
    mlflow = load("mlflow")
    load("mlflow.tracking")
    return sinks.Mlflow(mlflow, about, options.project, options.tracking_uri)


def send(options):
    say = lambda text: print(text, flush=True)  # noqa: E731
    where = f"{options.to} {options.project} {options.tracking_uri or ''}{'offline' if options.offline else ''}".strip()
    exports = {}
    for folder in find_runs(options):
        # One after the other unless they are followed: Weights & Biases has one run at a time.
        made = export.Export(folder, open_sink(options, folder), f"export_{options.to}.json", where)
        if options.follow:
            exports[str(folder)] = made
            continue
        made.catch_up()
        state = export.state_of(folder)
        made.end(state)
        say(f"{folder}: {made.sent} records sent, up to step {made.step} ({state})")
    export.follow(exports, options.every, say)
    return 0


def main(arguments=None):
    try:
        options = parse_arguments(arguments)
        if options.follow and options.to == "wandb" and len(find_runs(options)) > 1:
            raise UserError("--follow: wandb follows one run a process; start one for each")
        os.environ.setdefault("WANDB_SILENT", "true")
        return send(options)
    except UserError as error:
        print(f"export_metrics.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    guard_output()
    sys.exit(main())
