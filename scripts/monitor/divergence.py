"""Detects from the log whether a run has diverged: its last steps were skipped, or its loss has risen permanently."""

import collections
import math
import statistics

WINDOW = 10  # records whose median is the level of the loss
MIN_RISE = 1.0  # nats per token above the lowest level; a smaller rise may come from other data
LOST = 0.5  # fraction of the run's improvement that is lost again


class Losses:
    """Receives all records of a run in order."""

    def __init__(self):
        self._recent = collections.deque(maxlen=WINDOW)  # (step, loss)
        self._first = self._lowest = self._level = None
        self._lowest_step = 0
        self._skipped = 0  # consecutive records
        self._skipped_from = 0

    def add(self, step, loss, skipped):
        """`loss`: NaN if the record has none."""
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
        """(step after which the run diverged, reason) or None. `ended`: the run ended before its last step."""
        if ended and self._skipped:
            records = "its last step was" if self._skipped == 1 else f"its last {self._skipped} logged steps were"
            return self._skipped_from - 1, f"{records} skipped"
        if self._level is None:
            return None
        rise = self._level - self._lowest
        if rise < max(MIN_RISE, LOST * (self._first - self._lowest)):
            return None
        return self._lowest_step, f"its loss is {rise:.2f} above its lowest"
