"""The command line of compare_loss.py."""

import argparse
import math
import sys
from pathlib import Path

from . import UserError, curves, foreign, plots, table, write_json
from .runs import read_run


def parse_arguments(arguments, description):
    parser = argparse.ArgumentParser(
        prog="compare_loss.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="runs, the first of which is the baseline; or one folder of te-experiment")
    add(
        "--arm",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "RUN"),
        help="a group of runs; the first arm is the baseline; may be repeated",
    )
    add(
        "--band",
        "--baseline-seeds",
        nargs="+",
        default=[],
        metavar="RUN",
        help="baseline runs with other seeds, for the noise band",
    )
    add(
        "--band-kind",
        choices=["sigma", "minmax"],
        default="sigma",
        help="sigma: mean ± --sigmas standard deviations (default); minmax: minimum to maximum",
    )
    add("--sigmas", type=float, default=2.0, metavar="S", help="half width of the band in standard deviations (default 2)")
    add("--output", default="compare_loss.png", metavar="PNG", help="figure to write (default %(default)s)")
    add("--no-plot", action="store_true", help="write no figures")
    add("--json", metavar="FILE", help="write all numbers to FILE")
    add("--smooth", type=int, metavar="N", help="points of the moving average (default: 3%% of the run)")
    add("--title", help="title of the figure and the report")
    add("--labels", nargs="+", metavar="TEXT", help="names of the runs, in order")
    add("--epochs-at", nargs="+", type=float, default=[], metavar="TOKENS", help="tokens at which the training data repeats: dotted lines")
    report = parser.add_argument_group("report")
    add = report.add_argument
    add("--report", metavar="FOLDER", help="write report.md, report.html, report.json and figures")
    add("--baseline", metavar="NAME", help="variant of an experiment to use as the baseline")
    add("--tolerance-nats", type=float, metavar="X", help="tolerance: the largest gap that counts as equal, in nats (default 0.01) ...")
    add(
        "--tolerance-percent",
        type=float,
        metavar="X",
        help="... and in %% of the baseline's loss (default 0.25); both limits must hold",
    )
    logs = parser.add_argument_group("logs of other programs")
    add = logs.add_argument
    add("--seq-length", type=int, metavar="N", help="tokens per sample")
    add("--tokens-per-step", type=int, metavar="N", help="tokens per step")
    add("--loss-tag", metavar="TAG", help="tag of the training loss in an event file")
    add("--valid-tag", metavar="TAG", help="tag of the validation loss in an event file")
    options = parser.parse_args(arguments)
    check(options)
    return options


def check(options):
    experiment = len(options.runs) == 1 and (Path(options.runs[0]) / "summary.json").is_file()
    options.experiment = Path(options.runs[0]) if experiment else None
    if options.arm:
        check_arms(options)
    elif not experiment and len(options.runs) < 2:
        if options.runs and not Path(options.runs[0]).exists():
            raise UserError(f"{options.runs[0]}: no such file or folder; give runs, or a folder of te-experiment")
        raise UserError("runs: nothing to compare; give the baseline and at least one other run")
    if options.labels and len(options.labels) != len(options.runs):
        raise UserError(f"--labels: {len(options.labels)} labels for {len(options.runs)} runs; give one for each")
    if options.smooth is not None and options.smooth < 1:
        raise UserError(f"--smooth: {options.smooth} must be at least 1")
    for name in ("sigmas", "tolerance_nats", "tolerance_percent", "seq_length", "tokens_per_step"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')}: {value} must be a finite number above 0")


def check_arms(options):
    if options.runs or options.band:
        raise UserError("--arm: all runs must belong to arms; remove other runs and --band")
    if len(options.arm) < 2:
        raise UserError("--arm: nothing to compare; give the baseline and at least one other arm")
    for arm in options.arm:
        if len(arm) < 2:
            raise UserError(f"--arm {arm[0]}: has no runs; give a name and at least one run")
    names = [arm[0] for arm in options.arm]
    if len(set(names)) < len(names):
        raise UserError(f"--arm: names must differ, found {', '.join(names)}")


def check_seeds(runs, paths):
    """Refuses repeated runs of the noise band, which would narrow it."""
    known = {}
    for run, path in zip(runs, paths):
        key = Path(path).resolve() if run.seed is None else run.seed
        if key in known:
            raise UserError(f"--band: {known[key]} and {path} have the same seed; give runs of different seeds")
        known[key] = path


def foreign_options(options):
    return foreign.Options(options.seq_length, options.tokens_per_step, options.loss_tag, options.valid_tag)


def compare_runs(options):
    """The short comparison: single runs against one baseline."""
    labels = options.labels or [None] * len(options.runs)
    logs = foreign_options(options)
    baseline, *runs = [read_run(path, label, logs) for path, label in zip(options.runs, labels)]
    seeds = [read_run(path, None, logs) for path in options.band]
    check_seeds([baseline, *seeds], [options.runs[0], *options.band])
    # One window for all runs, so that all lines of the figure are equally smooth.
    window = options.smooth or max(curves.default_window(len(curves.align(baseline, run)[0])) for run in runs)
    results = [curves.compare(baseline, run, window) for run in runs]
    band = dict(window=window, kind=options.band_kind, sigmas=options.sigmas)
    bands = [curves.noise_band(baseline, seeds, end=r["tokens"], **band) for r in results] if seeds else None
    try:
        if options.json:
            write_json(options.json, table.json_report(baseline, results, bands))
        if not options.no_plot:
            whole = curves.noise_band(baseline, seeds, **band) if seeds else None
            title = options.title or "Training loss"
            plots.draw(options.output, title, baseline, runs, results, whole, options.epochs_at)
    finally:  # the files do not depend on standard output, which may be full, nor the table on the files
        print("\n".join([table.table(baseline, results) + "\n", *table.notes(baseline, results, bands)]))
    if not options.no_plot:
        print(f"figure: {options.output}")


def make_report(options):
    """Writes the report of arms. Its modules are imported here, since the short comparison needs no scipy."""
    try:
        from . import experiment, pages
    except ImportError as error:
        raise UserError(f"{error.name} is missing; apt install python3-scipy (or pip install scipy)") from None
    logs = foreign_options(options)
    if options.experiment:
        content = experiment.read(options.experiment, options.baseline, logs)
    elif options.arm:
        content = experiment.of_arms({name: [read_run(p, None, logs) for p in paths] for name, *paths in options.arm})
    else:
        labels = options.labels or [None] * len(options.runs)
        runs = [read_run(path, label, logs) for path, label in zip(options.runs, labels)]
        content = experiment.of_runs(runs, [read_run(path, None, logs) for path in options.band])
    if options.tolerance_nats:
        content.tolerance.nats, content.tolerance_sources["nats"] = options.tolerance_nats, "--tolerance-nats"
    if options.tolerance_percent:
        content.tolerance.share, content.tolerance_sources["percent"] = options.tolerance_percent / 100, "--tolerance-percent"
    content.title = options.title or content.title
    content.epochs = options.epochs_at
    report = pages.Report(content)
    try:
        if options.json:
            write_json(options.json, report.numbers())
        if options.report:
            report.write(Path(options.report), pictures=not options.no_plot)
    finally:  # as in compare_runs()
        print(report.console())
    if options.report:
        print(f"report: {Path(options.report) / 'report.html'}, report.md, report.json")


def main(arguments=None, description=None):
    try:
        options = parse_arguments(arguments, description)
        if options.report or options.arm or options.experiment:
            make_report(options)
        else:
            compare_runs(options)
    except UserError as error:
        print(f"compare_loss.py: error: {error}", file=sys.stderr)
        return 2
    return 0
