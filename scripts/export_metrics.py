#!/usr/bin/env python3
"""Sends runs to Weights & Biases or MLflow: metrics.jsonl (else loss.csv), and the config and environment of run.json.

    scripts/export_metrics.py --to wandb --project gpt2 runs/bf16 runs/fp8            # afterwards
    scripts/export_metrics.py --to mlflow --tracking-uri http://host:5000 --follow runs/fp8    # while it trains
    scripts/export_metrics.py --to wandb --offline runs/fp8                           # for `wandb sync`, later

Run it again to continue where it stopped; its state is in the run folder (export_wandb.json, export_mlflow.json), which
must be writable. A copy of the folder starts a tracker run of its own. If a resumed run has discarded steps that were
sent, the tracker's run is marked as superseded, and a new one starts with the valid steps. See docs/how-to/monitor.md.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

from monitor import UserError, export, run_status, sinks
from script_files import run
from terminal_text import guard_output


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="export_metrics.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run folders, or folders that contain runs")
    add("--to", required=True, choices=["wandb", "mlflow"])
    add("--follow", action="store_true", help="keep sending until the runs have ended")
    add("--every", type=float, metavar="SECONDS", help="polling interval with --follow (default 5)")
    add("--name", help="name of the run in the tracker (default: name of its folder); for one run only")
    add("--tag", action="append", default=[], metavar="TEXT", help="additional tag; may be repeated")
    add("--project", default="te-train", help="project in Weights & Biases, experiment in MLflow (default %(default)s)")
    add("--offline", action="store_true", help="wandb: write files only, for `wandb sync`")
    add("--directory", metavar="DIR", help="wandb: folder for its files (default: current folder)")
    add("--tracking-uri", metavar="URI", help="mlflow: server or database, for example sqlite:///mlflow.db (default: MLflow's)")
    options = parser.parse_args(arguments)
    if options.every is not None and not options.follow:
        raise UserError("--every needs --follow")
    if options.every is not None and not options.every > 0:
        raise UserError(f"--every: {options.every} must be above 0")
    if options.offline and options.to != "wandb":
        raise UserError("--offline needs --to wandb; with mlflow use --tracking-uri sqlite:///mlflow.db")
    if options.directory and options.to != "wandb":
        raise UserError("--directory needs --to wandb; with mlflow use --tracking-uri")
    if options.tracking_uri and options.to != "mlflow":
        raise UserError("--tracking-uri needs --to mlflow; for wandb set the environment variable WANDB_BASE_URL")
    return options


def find_runs(options):
    folders = []
    for text in options.runs:
        found = run_status.find_runs([Path(text)])
        if not found:
            raise UserError(f"{text}: contains no run; give a run folder (logging.directory), or a folder that contains runs")
        folders += [f for f in found if f not in folders]
    if options.name and len(folders) > 1:
        raise UserError(f"--name: needs exactly one run, not {len(folders)}")
    return folders


def load(module):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name and error.name.split(".")[0] != module:  # a dependency of the module
            raise UserError(f"{module} cannot be imported: {error}") from None
        raise sinks.missing(module, sys.executable) from None


def open_sink(options, folder):
    config = run_status.flat_config(run_status.read_json(folder / "run.json"))
    about = sinks.About(folder, run_status.read_json(folder / "run.json"), config, options.name, options.tag)
    if options.to == "wandb":
        return sinks.Wandb(load("wandb"), about, options.project, options.offline, options.directory or ".")
    mlflow = load("mlflow")
    load("mlflow.tracking")
    return sinks.Mlflow(mlflow, about, options.project, options.tracking_uri)


def send(options):
    say = lambda text: print(text, flush=True)  # noqa: E731
    where = f"{options.to} {options.project} {options.tracking_uri or ''}{'offline' if options.offline else ''}".strip()
    exports = {}
    for folder in find_runs(options):
        # Runs are sent one after the other unless they are followed: Weights & Biases supports one active run per
        # process.
        made = export.Export(folder, open_sink(options, folder), f"export_{options.to}.json", where)
        if options.follow:
            exports[str(folder)] = made
            continue
        made.catch_up()
        state, reason = made.status()
        made.end(state, reason)
        say(f"{folder}: {made.sent} records sent, up to step {made.step} ({state})")
    export.follow(exports, options.every or 5.0, say)
    return 0


def main(arguments=None):
    try:
        options = parse_arguments(arguments)
        if options.follow and options.to == "wandb" and len(find_runs(options)) > 1:
            raise UserError("--follow: wandb supports one run per process; start one process for each run")
        os.environ.setdefault("WANDB_SILENT", "true")
        return send(options)
    except UserError as error:
        print(f"export_metrics.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command to continue", file=sys.stderr)
        return 130


if __name__ == "__main__":
    guard_output()
    run(main)
