"""Implementation of compare_loss.py: compares runs and writes reports.

runs.py        reads te-train's run folders; foreign.py: Megatron's console log, TensorBoard's event files
curves.py      alignment, smoothing, gaps of two runs, the noise band of seeds
statistics.py  intervals, tests, minimum detectable gap
experiment.py  groups runs to arms; analysis.py: pairs, gaps and verdicts of arms
details.py     gradient norms, FP8 statistics, speed, differing config keys; tasks.py: evaluations, per document
precision.py   FP8 statistics and guard of runs that have them
table.py       the short table on the console; plots.py: its figure
pages.py       the report; sections.py and precision_sections.py: its sections, figures.py and precision_figures.py: its
               figures, blocks.py: Markdown and HTML
cli.py         the command line
"""

import json

from script_files import write_text


class UserError(Exception):
    """A mistake that the user can correct; printed as one line, exit code 2."""


def write_json(path, content):
    try:
        write_text(path, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
