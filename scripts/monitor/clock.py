"""Time that a run has spent in training steps, from the step times of its records."""

import array


class Clock:
    """`seconds[i]` is the time of all steps up to record i. With logging.every above 1, a record stands for all steps
    since the previous record. The first step after each start is slow (loading of libraries) and is always logged, so
    the time of a record between two multiples of `every` counts once."""

    def __init__(self, every=1):
        self.every = every
        self.steps, self.seconds = array.array("d"), array.array("d")
        self._usual = array.array("d")  # at each record, the time of a step that is not the first after a start

    def add(self, step, seconds):
        """Adds a record; `seconds`: time of its step alone."""
        steps = self.steps
        total, usual, between = 0.0, seconds, 0
        if steps:
            total, between = self.seconds[-1], max(1, step - steps[-1]) - 1
            usual = seconds if step % self.every == 0 else min(seconds, self._usual[-1])
        steps.append(step)
        self.seconds.append(total + seconds + between * usual)
        self._usual.append(usual)

    def cut(self, rows):
        """Keeps the first `rows` records."""
        del self.steps[rows:], self.seconds[rows:], self._usual[rows:]
