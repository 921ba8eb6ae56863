"""What dashboard.py and export_metrics.py share: runs that are read while they are still being written.

follow.py      a log that grows, is cut by a resume, or is begun anew
records.py     a record of metrics.jsonl or loss.csv as named numbers
run_status.py  whether a run is running, finished, stopped, diverged, failed or stale; its config
divergence.py  whether its losses say that it has diverged
curves.py      a run's numbers, thinned as they come in, so that 100,000 steps are no more to send than 1,000
board.py       all runs, kept up to date in the background
server.py      the web server of dashboard.py; page.html, page.css, page.js: its page
export.py      the loop of export_metrics.py; sinks.py: Weights & Biases, MLflow

Standard library only, but for what sinks.py writes to."""


class UserError(Exception):
    """A mistake that the user can correct; printed as one line, exit code 2."""
