#!/usr/bin/env python3
"""Compares the loss curves of runs: a table, a verdict, figures, and a report with confidence intervals over seeds.

    scripts/compare_loss.py runs/gpt2_bf16 runs/gpt2_fp8 --band runs/gpt2_bf16_seed2 runs/gpt2_bf16_seed3
    scripts/compare_loss.py --arm bf16 runs/bf16_seed{1,2,3} --arm fp8 runs/fp8_seed{1,2,3} --report report
    scripts/compare_loss.py runs/my_experiment --report report          # a folder of te-experiment

A RUN is a run folder (its loss.csv is read), a CSV file with the columns consumed_tokens and loss (and optionally
valid_loss), a console log of Megatron-LM, or a TensorBoard event file or folder. The first run is the baseline; gaps are
(run - baseline) / baseline at equal consumed tokens. Single steps are noisy, so use the gap over the last 10% of the
tokens. --band names further baseline runs with other seeds: together with the baseline they give the seed noise. --arm
names a group of runs that differ only in the seed; the first arm is the baseline, and runs of equal seed are compared
in pairs. docs/explanation/statistics.md explains the numbers.
"""

import subprocess
import sys

SYSTEM_PYTHON = "/usr/bin/python3"  # for which scripts/install_deps.sh installs the needed modules


def remedy():
    """The message if this Python has no numpy: names another Python that has it, or how to install it."""
    text = f"{sys.executable} has no numpy; "
    probe = [SYSTEM_PYTHON, "-c", "import numpy, matplotlib"]
    try:
        other = sys.executable != SYSTEM_PYTHON and subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        other = False
    if other:
        return text + f"run {SYSTEM_PYTHON} {sys.argv[0]} ..., which has it"
    return text + f"{sys.executable} -m pip install numpy scipy matplotlib (or scripts/install_deps.sh)"


try:
    import numpy  # noqa: F401
except ImportError:
    print(f"compare_loss.py: error: {remedy()}", file=sys.stderr)
    sys.exit(2)
from report.cli import main
from script_files import run
from terminal_text import guard_output

if __name__ == "__main__":
    guard_output()
    run(lambda: main(description=__doc__))
