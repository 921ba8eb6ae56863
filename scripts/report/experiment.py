"""The contents of a report: arms, the tolerance, and unfinished runs, from a folder of te-experiment (its
summary.json) or from runs named on the command line."""

import dataclasses
import json
import math

from . import UserError
from .analysis import Arm, Tolerance
from .runs import read_json, read_run


@dataclasses.dataclass
class Content:
    title: str
    baseline: Arm
    arms: list  # of Arm, without the baseline
    tolerance: Tolerance = dataclasses.field(default_factory=Tolerance)
    unfinished: list = dataclasses.field(default_factory=list)  # (arm, run, state) of runs that are not compared
    lost: list = dataclasses.field(default_factory=list)  # of Arm without runs: none of theirs can be compared
    # The source of each limit of the tolerance.
    tolerance_sources: dict = dataclasses.field(default_factory=lambda: dict.fromkeys(("nats", "percent"), "default"))
    epochs: list = dataclasses.field(default_factory=list)  # token counts at which the training data repeats

    def base_of(self, arm):
        """The baseline of `arm`."""
        return next((other for other in self.arms if other.name == arm.baseline), self.baseline)


def of_arms(arms):
    baseline, *others = [Arm(name, runs) for name, runs in arms.items()]
    return Content("Comparison of runs", baseline, others)


def of_runs(runs, seeds):
    """Single runs compared with the first; `seeds`: further runs of the baseline."""
    labels = [run.label for run in runs]
    if len(set(labels)) < len(labels):
        raise UserError(f"runs: two have the name {max(labels, key=labels.count)}; give different names with --labels")
    return Content(
        "Comparison of runs", Arm(runs[0].label, [runs[0], *seeds]), [Arm(run.label, [run]) for run in runs[1:]]
    )


def read_tolerance(folder, summary):
    """(Tolerance, sources of its limits). A summary of an earlier te-experiment calls it "bar", or does not record what
    its file sets."""
    limits = summary.get("tolerance") or summary["bar"]
    for limit in ("nats", "percent"):
        if not isinstance(limits[limit], (int, float)) or not 0 < limits[limit] < math.inf:
            raise UserError(
                f"{folder / 'summary.json'}: the tolerance in {limit} is {json.dumps(limits[limit])}; set a finite "
                "number above 0 in the experiment's file and run te-experiment again"
            )
    given, known = limits.get("given", []), "given" in limits
    sources = {
        limit: "set in the experiment's file" if limit in given else "default" if known else "from summary.json"
        for limit in ("nats", "percent")
    }
    return Tolerance(limits["nats"], limits["percent"] / 100), sources


def read(folder, baseline=None, logs=None):
    summary = read_json(folder / "summary.json")
    try:
        variants = {v["name"]: v["runs"] for v in summary["variants"]}
        # A baseline of the command line applies to all variants.
        own = {} if baseline else {v["name"]: v["baseline"] for v in summary["variants"] if "baseline" in v}
        baseline = baseline or summary["baseline"]
        tolerance, sources = read_tolerance(folder, summary)
        title = summary["name"]
        arms, unfinished = {}, []
        for name, runs in variants.items():
            done = [run for run in runs if run["state"] == "finished"]
            unfinished += [(name, run["folder"], run["state"]) for run in runs if run["state"] != "finished"]
            arms[name] = [read_run(folder / run["folder"], None, logs) for run in done]
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / 'summary.json'}: {error} is missing; run te-experiment again") from None
    if baseline not in arms:
        raise UserError(f"--baseline: {baseline} is not a variant; the variants are {', '.join(arms)}")
    arms = {name: runs for name, runs in arms.items() if runs}
    if baseline not in arms:
        raise UserError(f"{folder}: no run of the baseline {baseline} has finished, so there is nothing to compare with")
    while alone := next((name for name in arms if own.get(name, baseline) not in arms), None):
        unfinished += [(alone, run.label, f"finished, but no run of {own[alone]}") for run in arms.pop(alone)]
    if len(arms) < 2:
        raise UserError(f"{folder}: only runs of the baseline have finished; run te-experiment again")
    others = [Arm(name, runs, own.get(name)) for name, runs in arms.items() if name != baseline]
    lost = [Arm(name, [], own.get(name)) for name in variants if name not in arms]
    return Content(title, Arm(baseline, arms[baseline]), others, tolerance, unfinished, lost, sources)
