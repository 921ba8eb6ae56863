"""A record of metrics.jsonl or loss.csv as named numbers."""

import json
import math

# FP8 statistics are a list of operands; the number of a step is the worst of them.
WORST = {"saturated": max, "flushed": max, "sqnr": min, "sqnr_db": min}
FP8 = "fp8"
DEPTH = 16  # nested maps whose numbers are read; te-train writes fewer


class Reader:
    """Converts lines of one log to records; the first line of loss.csv names the columns."""

    def __init__(self, path):
        self._columns = None
        self._csv = str(path).endswith(".csv")

    def restart(self):
        self._columns = None

    def record(self, line):
        """{"step": 3, "loss": 2.5, ..., "fp8": [operands]}, or None if the line is not a record."""
        if not self._csv:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                return None
            return record if isinstance(record, dict) and "step" in record else None
        fields = line.split(",")
        if self._columns is None or fields[0] == "step":
            self._columns = fields
            return None
        if len(fields) != len(self._columns):
            return None
        record = {name: number for name, text in zip(self._columns, fields) if (number := _number(text)) is not None}
        return record if "step" in record else None


def _number(text):
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def numbers(record, separator="."):
    """{"loss": 2.5, "valid.books.loss": 3.1, "fp8.saturated": 1e-5}: all finite numbers, also of nested maps and with
    unknown names; for the FP8 operands the worst values."""
    found = {}
    _flatten("", record, separator, found, DEPTH)
    operands = record.get(FP8)
    if isinstance(operands, list):
        for name, worst in WORST.items():
            values = [x[name] for x in operands if isinstance(x, dict) and is_number(x.get(name))]
            if values:
                found[f"{FP8}{separator}{name}"] = float(worst(values))
    return found


def _flatten(prefix, record, separator, found, depth):
    for name, value in record.items():
        kind = type(value)
        if kind is float or kind is int or kind is bool:
            if _is_finite(value):
                found[prefix + name] = float(value)
        elif kind is dict and depth:
            _flatten(f"{prefix}{name}{separator}", value, separator, found, depth - 1)


def _is_finite(value):
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond FP64
        return False


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)


def worst_operands(record, count=8):
    """[{"operand", "format", "amax", "scale", "saturated", "flushed"}] of a record, most saturated first."""
    operands = [x for x in record.get(FP8, []) if isinstance(x, dict)]
    operands.sort(key=lambda x: (x.get("saturated") or 0, x.get("flushed") or 0), reverse=True)
    return [
        {
            "operand": f"{x.get('linear', '?')} {x.get('role', '?')}",
            "format": str(x.get("format", "?")),
            **{name: x[name] for name in ("amax", "scale", "saturated", "flushed") if is_number(x.get(name))},
        }
        for x in operands[:count]
    ]
