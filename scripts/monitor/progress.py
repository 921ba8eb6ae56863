"""Curves, step times and state of a run from its records."""

import math

from . import run_status
from .curves import Curves
from .divergence import Losses

RECENT = 64  # number of step times that are kept


class Progress:
    def __init__(self, every=1):
        """`every`: steps per record (logging.every)."""
        self.curves, self.recent = Curves(every), []
        self._losses, self._judged = None, (None, 0)

    def add(self, numbers):
        """Adds the next record (records.numbers)."""
        self.curves.add(numbers)
        if "step_ms" in numbers:
            self.recent = [*self.recent[1 - RECENT :], numbers["step_ms"] / 1e3]

    @property
    def step(self):
        """The last logged step."""
        return int(self.curves.steps[-1]) if len(self.curves) else 0

    def status(self, folder, config):
        """(state, reason, step after which the run diverged, or None); see run_status.status."""
        steps = run_status.train_steps(config)
        ended = run_status.has_ended(folder) and not 0 < steps <= self.step
        diverged_after, sign = self._diverged(ended) or (None, "")
        early = self._stopped_early(run_status.patience(config)) if ended else ""
        found = run_status.status(folder, self.step, steps, self.recent, diverged=sign, early=early)
        return (*found, diverged_after)

    def _stopped_early(self, patience):
        """Why te-train ended the run before its last step, or empty: its last step validated, for the `patience`-th
        time without a new lowest loss."""
        column = self.curves.columns.get("valid_loss")
        if patience == 0 or column is None or not column.values or math.isnan(column.values[-1]):
            return ""
        losses = [loss for loss in column.values if not math.isnan(loss)]
        count = len(losses) - 1 - losses.index(min(losses))
        return f"stopped early: no lower validation loss in {count} validations" if count >= patience else ""

    def _diverged(self, ended):
        """Losses.diverged of the rows so far; reads all rows again if earlier ones may have changed."""
        generation, rows = self._judged
        if generation != self.curves.generation:
            self._losses, rows = Losses(), 0
        for step, loss, skipped in self.curves.rows(rows, "loss", "skipped"):
            self._losses.add(step, loss, skipped == 1)
        self._judged = self.curves.generation, len(self.curves)
        return self._losses.diverged(ended)
