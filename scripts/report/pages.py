"""The report and the order of its sections. Numbers come from analysis.py and details.py, formatting from blocks.py."""

import dataclasses
import io
import math

from script_files import complete_file, write_text

from . import (
    UserError,
    analysis,
    details,
    figures,
    precision,
    precision_sections,
    sections,
    statistics,
    tasks,
    write_json,
)
from .blocks import Heading, Paragraph, Picture, Verdict, html_page, markdown
from .runs import seed_in
from .sections import CONFIDENCE, interval_text
from .words import VERDICT_TEXTS, nats, percent


class Report:
    def __init__(self, content):
        self.content = content
        self.comparisons = [analysis.compare_arms(content.base_of(arm), arm, content.tolerance) for arm in content.arms]
        self.health = {id(run): found for run in self.runs() if (found := details.fp8_health(run))}
        self.fp8_statistics = {id(run): found for run in self.runs() if (found := precision.fp8_statistics(run))}
        self.guards = {id(run): found for run in self.runs() if (found := precision.guard(run))}
        for comparison in self.comparisons:
            self._count_diverged(comparison)

    def arms(self):
        return [self.content.baseline, *self.content.arms]

    def runs(self):
        return [run for arm in self.arms() for run in arm.runs]

    def _count_diverged(self, comparison):
        """An arm that diverged where the baseline did not is outside the tolerance: what remains of it is biased."""
        if not (count := len(self._seeds(comparison.arm.name)[1])):
            return
        more = self._diverged_more(comparison.arm)
        comparison.verdict = analysis.OUTSIDE if more else comparison.verdict
        rest = "before that" if any(run.diverged for run in comparison.arm.runs) else "the others"
        for measure in comparison.measures:
            also = "" if more else ", as the baseline's did"
            measure.why = f"{count} of its runs diverged{also}; {rest}: {measure.why}"

    def _diverged_more(self, arm):
        """Whether runs of the arm diverged with seeds with which its baseline did not; more runs if no seeds match."""
        base = arm.baseline or self.content.baseline.name
        (all_own, own), (all_others, others) = self._seeds(arm.name), self._seeds(base)
        if None in own + others or not {*all_own} & {*all_others}:
            return len(own) > len(others)
        return not {*own} <= {*others}

    def _seeds(self, name):
        """(seeds of all runs of an arm, seeds of its diverged runs), including runs that are not compared."""
        found = [(run.seed, run.diverged) for arm in self.arms() if arm.name == name for run in arm.runs]
        found += [(seed_in(run), state == "diverged") for arm, run, state in self.content.unfinished if arm == name]
        return [seed for seed, _ in found], [seed for seed, diverged in found if diverged]

    def verdicts(self):
        """The verdicts of all arms, including lost arms."""
        found = [self.verdict(comparison) for comparison in self.comparisons]
        for arm, states, verdict in self.lost_arms():
            counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
            title = f"{arm.name}: {VERDICT_TEXTS[verdict]}"
            found.append(Verdict(verdict, title, [f"no run can be compared: {counts}."]))
        return found

    def lost_arms(self):
        """[(arm, states of its runs, verdict)] of arms without a run that can be compared."""
        found = []
        for arm in self.content.lost:
            states = [state for name, _, state in self.content.unfinished if name == arm.name]
            found.append((arm, states, analysis.OUTSIDE if self._diverged_more(arm) else analysis.INCONCLUSIVE))
        return found

    # ---- Texts ---------------------------------------------------------------------------------------------

    def verdict(self, comparison):
        title = f"{comparison.name}: {VERDICT_TEXTS[comparison.verdict]}"
        lines = [
            f"{m.name}: {nats(m.mean)} nats ({percent(m.mean / m.base)}), {interval(m)}: {m.why}."
            for m in comparison.measures
        ]
        return Verdict(comparison.verdict, title, lines)

    def console(self):
        lines = []
        for verdict in self.verdicts():
            lines += [verdict.title, *(f"  {line}" for line in verdict.lines)]
        methods = dict.fromkeys(m.method for c in self.comparisons for m in c.measures)
        lines += ["", f"tolerance: {tolerance_text(self.content)}"]
        lines += [f"method: {method}" for method in methods]
        lines += [f"not compared: {arm} {run}: {state}" for arm, run, state in self.content.unfinished]
        return "\n".join(lines)

    def blocks(self, pictures):
        return [
            Heading(self.content.title, 1),
            Paragraph(self._subtitle()),
            *self.verdicts(),
            *sections.gaps(self, pictures),
            *sections.curves(self, pictures),
            *sections.noise(self),
            *sections.speed(self, pictures),
            *sections.tasks(self),
            *sections.gradients(self, pictures),
            *sections.fp8(self, pictures),
            *precision_sections.fp8_statistics(self, pictures),
            *precision_sections.guard(self, pictures),
            *sections.settings(self),
            *sections.sources(self),
        ]

    def _subtitle(self):
        base = self.content.baseline
        seeds = ", ".join(
            f"{c.arm.name} ({len(c.arm.runs)}{f', with {c.baseline.name}' if c.arm.baseline else ''})"
            for c in self.comparisons
        )
        return (
            f"Baseline: **{base.name}** ({len(base.runs)} run{'s' * (len(base.runs) > 1)}). Compared with it: {seeds}. "
            f"A gap counts as equal if its whole {CONFIDENCE} interval lies within the tolerance: "
            f"{tolerance_text(self.content)}."
        )

    # ---- Files ---------------------------------------------------------------------------------------------

    def numbers(self):
        """The contents of report.json, for other programs. Lost arms have no measures."""
        lost = {"measures": [], "excess": None, "gap_by_tenths": None, "tasks": [], "fp8_health": None}
        return {
            "title": self.content.title,
            "baseline": self.content.baseline.name,
            "tolerance": dataclasses.asdict(self.content.tolerance),
            "confidence": statistics.CONFIDENCE,
            "arms": [
                {
                    "name": c.arm.name,
                    "baseline": c.baseline.name,
                    "verdict": c.verdict,
                    "measures": [numbers_of(m) for m in c.measures],
                    "excess": plain(c.excess) if c.excess else None,
                    "gap_by_tenths": None if c.groups else tenths_of(c.pairs),
                    "tasks": [task_numbers(row) for row in tasks.compare_tasks(c.pairs)],
                    "fp8_health": details.health_counts(
                        [self.health[id(run)] for run in c.arm.runs if id(run) in self.health]
                    ),
                }
                for c in self.comparisons
            ]
            + [
                {"name": arm.name, "baseline": arm.baseline or self.content.baseline.name, "verdict": verdict, **lost}
                for arm, _, verdict in self.lost_arms()
            ],
            "not_compared": [dict(zip(("arm", "run", "state"), run)) for run in self.content.unfinished],
        }

    def write(self, folder, pictures=True):
        def picture(name, alt, draw):
            figure = draw() if pictures else None
            if figure is None:
                return []
            buffer = io.BytesIO()
            figure.savefig(buffer, dpi=150, format="png")
            figures.pyplot().close(figure)
            return [Picture(name, alt, buffer.getvalue())]

        blocks = self.blocks(picture)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for block in blocks:
                if isinstance(block, Picture):
                    with complete_file(folder / block.name, "wb") as file:
                        file.write(block.png)
            write_text(folder / "report.md", markdown(blocks))
            write_text(folder / "report.html", html_page(self.content.title, blocks))
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
        write_json(folder / "report.json", self.numbers())


def tolerance_text(content):
    """Both limits with their sources."""
    tolerance, sources = content.tolerance, content.tolerance_sources
    limits = {"nats": f"±{tolerance.nats:g} nats", "percent": f"±{100 * tolerance.share:g}%"}
    if len(set(sources.values())) == 1:
        return f"{limits['nats']} and {limits['percent']} ({sources['nats']})"
    return " and ".join(f"{text} ({sources[limit]})" for limit, text in limits.items())


def interval(measure):
    """The interval of a measure as text in a sentence."""
    if not math.isfinite(measure.low):
        return "no interval"
    what = f"{CONFIDENCE} interval" if measure.estimate else "within the pair"
    return f"{what} {interval_text(measure)}"


def plain(values):
    return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in values.items()}


def tenths_of(pairs):
    found = analysis.gap_by_tenths(pairs)
    return {which: [float(v) if math.isfinite(v) else None for v in values] for which, values in found.items()}


def task_numbers(row):
    low, high = row["estimate"].interval() if row["estimate"] else (math.nan, math.nan)
    own = {name: row[name] for name in ("task", "metric", "baseline", "run", "gap")}
    items = [plain(dataclasses.asdict(item)) for item in row["items"]]
    return plain({**own, "low": low, "high": high, "items": items})


def numbers_of(measure):
    e = measure.estimate
    tests = {
        "p_difference": e.difference_p() if e else None,
        "p_equivalence": e.equivalence_p(measure.tolerance) if e else None,
        "smallest_gap": e.smallest_gap() if e else None,
        "degrees_of_freedom": e.df if e else None,
    }
    own = {name: getattr(measure, name) for name in ("name", "low", "high", "tolerance", "method", "verdict", "why")}
    gap = {
        "baseline": measure.base,
        "gap": measure.mean,
        "gap_share": measure.mean / measure.base,
        "pairs": measure.gaps,
    }
    return plain({**own, **gap, **tests})
