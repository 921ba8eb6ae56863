"""Words of verdicts, and formatting of numbers."""

import math

WITHIN, OUTSIDE, INCONCLUSIVE = "within", "outside", "inconclusive"  # values in report.json
VERDICT_TEXTS = {WITHIN: "within tolerance", OUTSIDE: "outside tolerance", INCONCLUSIVE: "inconclusive"}


def percent(value):
    return "-" if not math.isfinite(value) else f"{100 * value:+.3f}%"


def unsigned_percent(value):
    return f"{100 * value:.3f}%"


def loss_text(value):
    return "-" if not math.isfinite(value) else f"{value:.4f}"


def nats(value):
    return "-" if not math.isfinite(value) else f"{value:+.4f}"


def p_text(value):
    if not math.isfinite(value):
        return "-"
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def bytes_text(value):
    return "-" if not value else f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def seconds_text(value):
    if not math.isfinite(value):
        return "-"
    if value < 100:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 6000 else f"{value / 3600:.2f} h"


def tokens_unit(tokens):
    """(divisor, name) of the unit for an axis or a text with this number of tokens."""
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if tokens >= size:
            return size, name
    return 1.0, ""


def tokens_text(tokens):
    size, name = tokens_unit(tokens)
    return f"{tokens / size:.4g} {name}".strip()
