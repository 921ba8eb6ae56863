"""The report behind compare_loss.py: what runs say about each other.

runs.py        a run as te-train's folder tells it; foreign.py: Megatron's console log, TensorBoard's event files
curves.py      alignment, smoothing, gaps of two runs, the noise band of seeds
statistics.py  intervals, tests, smallest gap that could have been seen
experiment.py  which runs make which arm; analysis.py: pairs, gaps and verdicts of arms
details.py     gradient norms, FP8 health, speed, differing config keys; tasks.py: evaluations, document by document
precision.py   FP8 statistics and the guard of runs that have them
table.py       the short table on the console; plots.py: its picture
pages.py       the report; sections.py and precision_sections.py: its parts, figures.py and precision_figures.py: its
               pictures, blocks.py: Markdown and HTML
cli.py         the command line
"""

import json
from pathlib import Path


class UserError(Exception):
    """A mistake that the user can correct; printed as one line, exit code 2."""


def write_json(path, content):
    try:
        Path(path).write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
