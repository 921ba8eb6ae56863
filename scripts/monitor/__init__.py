"""Common code of dashboard.py and export_metrics.py: reads runs while they are written.

follow.py      a log that grows, is truncated by a resumed run, or is replaced
records.py     a record of metrics.jsonl or loss.csv as named numbers
run_status.py  whether a run is running, finished, stopped, diverged, failed or stale; its config
divergence.py  whether a run has diverged, from its losses
curves.py      a run's numbers, downsampled, so that the amount of data to send does not grow with the steps
clock.py       the time spent in steps, also for scripts/report
progress.py    a run's curves, step times and state
board.py       all runs, kept up to date in the background
server.py      the web server of dashboard.py; page.html, page.css, page.js: its page
export.py      the loop of export_metrics.py; sinks.py: Weights & Biases, MLflow

Only sinks.py needs more than the standard library."""


class UserError(Exception):
    """A mistake that the user can correct; printed as one line, exit code 2."""
