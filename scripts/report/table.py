"""The short comparison on the console: a baseline, single runs, and the noise band of further seeds."""

import math

from .curves import compare, verdicts
from .words import loss_text, percent, tokens_text, unsigned_percent


def band_text(band):
    width = "min to max" if band["kind"] == "minmax" else f"mean ± {band['sigmas']:g} σ"
    return f"{width} of {band['runs']} seeds"


def table(baseline, results):
    head = [
        "run",
        "final loss",
        "valid loss",
        "mean gap",
        "mean |gap|",
        "max |gap|",
        "max |smoothed|",
        "last 10%",
    ]
    own = compare(baseline, baseline, results[0]["smooth"])
    rows = [
        [
            baseline.label,
            loss_text(own["final_loss"]),
            loss_text(baseline.valid_loss[-1] if len(baseline.valid_loss) else math.nan),
        ]
        + ["baseline"]
        + [""] * 4
    ]
    for r in results:
        rows.append(
            [
                r["label"],
                loss_text(r["final_loss"]),
                loss_text(r["valid_loss"]),
                percent(r["mean_gap"]),
                unsigned_percent(r["mean_abs_gap"]),
                unsigned_percent(r["max_abs_gap"]),
                unsigned_percent(r["max_abs_smoothed_gap"]),
                percent(r["last_tenth_gap"]),
            ]
        )
    widths = [max(len(row[i]) for row in [head] + rows) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in [head] + rows
    ]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(lines)


def notes(baseline, results, bands):
    """`bands`: one per result, over the tokens of the result; or None."""
    for r, band in zip(results, bands or [None] * len(results)):
        ending = "" if r["exact_alignment"] else "; interpolated, because the runs log at different token counts"
        count = r["skipped_steps"]
        skipped = f"; {count} skipped step{'s' * (count > 1)}" if count else ""
        early = r["valid_tokens"] < 0.9 * r["tokens"]
        valid = f"; last common validation at {tokens_text(r['valid_tokens'])} tokens" if early else ""
        yield (
            f"{r['label']}: {r['points']} points up to {tokens_text(r['tokens'])} tokens, smoothed over {r['smooth']}; "
            f"baseline loss at its end {loss_text(r['baseline_final_loss'])}{ending}{skipped}{valid}"
        )
        if not band:
            continue
        for key, inside in verdicts(r, band).items():
            low, high = band[key]
            what = "last 10%" if key == "last_tenth" else f"validation loss at {tokens_text(r['valid_tokens'])} tokens"
            gap = r["last_tenth_gap"] if key == "last_tenth" else r["valid_gap"]
            found = f"gap {percent(gap)} is {'within' if inside else 'outside'}"
            if r["diverged"]:
                found = f"the run diverged (gap {percent(gap)} before that), so it is outside"
            yield f"{r['label']}: {what}: {found} the noise band [{percent(low)}, {percent(high)}] ({band_text(band)})"


def json_report(baseline, results, bands):
    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k != "curves"}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    whole = max(bands, key=lambda band: band["tokens"]) if bands else None
    report = {"baseline": baseline.label, "runs": plain(results), "band": plain(whole)}
    for entry, result, band in zip(report["runs"], results, bands or [None] * len(results)):
        entry["inside_band"] = verdicts(result, band) if band else None
        entry["band"] = {key: band[key] for key in ("last_tenth", "valid") if key in band} if band else None
    return report
