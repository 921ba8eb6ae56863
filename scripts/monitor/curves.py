"""A run's numbers by step, kept completely in memory and downsampled for charts.

Rows are steps. For charts, 2^level neighboring rows form a bucket, so that there are at most MAX_BUCKETS buckets. Mean,
minimum and maximum of each bucket are shown. Buckets are computed on request, and full buckets are cached. If there are
too many buckets, their size is doubled. The amount of data to send therefore does not grow with the number of steps, and
spikes of one step remain visible in the maximum."""

import array
import bisect
import math

from .clock import Clock

MAX_BUCKETS = 1024  # at least half as many if there are enough rows
NAN = math.nan
NOTHING = (None, None, None)
AXES = ("step", "consumed_tokens", "consumed_samples")  # no curves of their own


class Column:
    """The values of one number in all rows (4 bytes per row; NaN if a record has none), and its full buckets."""

    def __init__(self, rows):
        self.values = array.array("f", [NAN]) * rows
        self.gaps = rows > 0  # values may contain NaN
        self.full = []  # (mean, low, high) as they are sent

    def buckets(self, start, level):
        """Buckets from `start` on; the last one may not be full."""
        size, values = 1 << level, self.values
        for first in range(len(self.full) * size, len(values) - size + 1, size):
            self.full.append(bucket_of(values[first : first + size], self.gaps))
        rest = values[len(self.full) * size :]
        return self.full[start:] + ([bucket_of(rest, self.gaps)] if rest and start <= len(self.full) else [])

    def cut(self, rows, level):
        del self.values[rows:], self.full[rows >> level :]


def bucket_of(values, gaps):
    """(mean, minimum, maximum) with six digits; None if there is no number."""
    if gaps:
        values = [v for v in values if v == v]
    if not values:
        return NOTHING
    if len(values) == 1:
        return (short(values[0]),) * 3
    return short(sum(values) / len(values)), short(min(values)), short(max(values))


class Curves:
    def __init__(self, every=1):
        self.generation = 0  # incremented when data that was sent becomes outdated
        self.level = 0
        self.clock = Clock(every)
        self.steps, self.seconds = self.clock.steps, self.clock.seconds
        self.tokens = array.array("d")
        self.columns = {}

    def __len__(self):
        return len(self.steps)

    def buckets(self):
        return -(-len(self) // (1 << self.level))

    def add(self, numbers):
        """Adds `numbers` of the next step (records.numbers). If the step exists, because a run repeats it after a resume or
        a rollback, it replaces this and all later steps."""
        step, steps = numbers["step"], self.steps
        if steps and step <= steps[-1]:
            self.cut(bisect.bisect_left(steps, step))
        row = len(steps)
        self.clock.add(step, numbers.get("step_ms", 0.0) / 1e3)
        self.tokens.append(numbers.get("consumed_tokens", NAN))
        columns = self.columns
        for name, value in numbers.items():
            if name in columns:
                columns[name].values.append(value)
            elif name not in AXES:
                columns[name] = Column(row)
                columns[name].values.append(value)
                self.generation += 1
        for column in columns.values():
            if len(column.values) == row:  # this record does not have the number
                column.values.append(NAN)
                column.gaps = True
        if row >= MAX_BUCKETS << self.level:
            self.level += 1
            self.generation += 1
            for column in columns.values():
                column.full.clear()

    def cut(self, rows):
        """Keeps the first `rows` rows."""
        if rows >= len(self):
            return
        self.clock.cut(rows)
        del self.tokens[rows:]
        for column in self.columns.values():
            column.cut(rows, self.level)
        self.generation += 1

    def rows(self, start, *names):
        """(step, one value per name) of each row from `start` on; NaN for missing values."""
        columns = [self.columns[name].values if name in self.columns else None for name in names]
        for row in range(start, len(self)):
            yield (self.steps[row], *(NAN if values is None else values[row] for values in columns))

    def last(self, name):
        """The newest value, or None."""
        values = self.columns[name].values if name in self.columns else ()
        found = next((v for v in reversed(values) if v == v), None)
        return None if found is None else short(found)

    def picture(self, start=0):
        """Buckets from `start` on: {"step", "tokens", "seconds": of each bucket's middle row, "series": {name: {"mean",
        "low", "high"}}}; numbers with six digits, None for a bucket without values."""
        size = 1 << self.level
        rows = [min(i * size + size // 2, len(self) - 1) for i in range(start, self.buckets())]
        return self._shown(rows, size > 1, lambda column: column.buckets(start, self.level))

    def part(self, axis, low, high, most=MAX_BUCKETS):
        """As picture(), for rows whose `axis` (step, tokens or seconds) is from `low` to `high`, at the finest resolution
        that fits."""
        values = {"step": self.steps, "tokens": self.tokens, "seconds": self.seconds}[axis]
        first, end = bisect.bisect_left(values, low), bisect.bisect_right(values, high)
        first, end = max(0, first - 1), min(len(self), end + 1)  # one row more on both sides, so that lines reach the edges
        size = max(1, -(-(end - first) // most))
        starts = range(first, end, size)

        def buckets(column):
            return [bucket_of(column.values[i : min(i + size, end)], column.gaps) for i in starts]

        return self._shown([min(i + size // 2, end - 1) for i in starts], size > 1, buckets)

    def _shown(self, rows, joined, buckets_of):
        axes = {"step": self.steps, "tokens": self.tokens, "seconds": self.seconds}
        content = {name: [rounded(values[r]) for r in rows] for name, values in axes.items()}
        content["series"] = {}
        for name, column in self.columns.items():
            buckets = buckets_of(column)
            lines = {"mean": [b[0] for b in buckets]}
            if joined and any(line is not None for line in lines["mean"]):  # otherwise all three are the same
                lines |= {"low": [b[1] for b in buckets], "high": [b[2] for b in buckets]}
            content["series"][name] = lines
        return content


def short(value):
    return float(f"{value:.6g}") if math.isfinite(value) else None


def rounded(value):
    return round(value, 3) if math.isfinite(value) else None
