"""Whether a run has diverged, as its log alone says: its last steps were skipped, or its loss has left its course."""

import collections
import math
import statistics

WINDOW = 10  # records whose median is the level of the loss
LEAST_RISE = 1.0  # nats per token above the lowest level; less may be other data
LOST = 0.5  # share of what the run had gained that is gone again


class Losses:
    """Is told every record of a run, in their order."""

    def __init__(self):
        self._recent = collections.deque(maxlen=WINDOW)  # (step, loss)
        self._first = self._lowest = self._level = None
        self._lowest_step = 0
        self._skipped = 0  # records in a row
        self._skipped_from = 0

    def add(self, step, loss, skipped):
        """`loss`: NaN where there is none."""
        if not skipped:
            self._skipped = 0
        else:
            self._skipped_from = self._skipped_from if self._skipped else step
            self._skipped += 1
        if not math.isfinite(loss):
            return
        self._recent.append((step, loss))
        if len(self._recent) < WINDOW:
            return
        self._level = statistics.median(loss for _, loss in self._recent)
        if self._first is None:
            self._first = self._level
        if self._lowest is None or self._level <= self._lowest:
            self._lowest, self._lowest_step = self._level, self._recent[WINDOW // 2][0]

    def diverged(self, ended):
        """(the step after which it did, why) or None. `ended`: no step will follow, though some were to."""
        if ended and self._skipped:
            records = "its last step was" if self._skipped == 1 else f"its last {self._skipped} logged steps were"
            return self._skipped_from - 1, f"{records} skipped"
        if self._level is None:
            return None
        rise = self._level - self._lowest
        if rise < max(LEAST_RISE, LOST * (self._first - self._lowest)):
            return None
        return self._lowest_step, f"its loss is {rise:.2f} above its lowest"
