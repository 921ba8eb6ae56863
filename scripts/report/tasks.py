"""Evaluation tasks: results in the runs' folders, means of arms, and comparisons of two models per document.

Reads evaluate*.json (the format of lm-eval: results, task, "acc,none", "acc_stderr,none") and evaluate*.jsonl (one
document per line) of te-generate evaluate and te-experiment."""

import dataclasses
import math

import numpy as np

from . import UserError, runs, statistics

# Metrics of a document, and their names in files. A value is a number or [sum, weight].
_ITEM_KEYS = {
    "acc": ("correct", "acc"),
    "acc_norm": ("correct_norm", "acc_norm"),
    "exact_match": ("exact_match",),
    "perplexity": ("perplexity",),
    "word_perplexity": ("word_perplexity",),
    "byte_perplexity": ("byte_perplexity",),
}
# The value of a document for a perplexity is its log-probability; the unit over which the mean is taken.
UNITS = {
    "perplexity": "log-probability per document",
    "word_perplexity": "log-probability per word",
    "byte_perplexity": "log-probability per byte",
}


def is_share(metric):
    """Whether the metric is a fraction of correct answers: 0 or 1 per document."""
    return metric.startswith(("acc", "exact_match"))


@dataclasses.dataclass
class Evaluation:
    results: dict  # {task: {metric: (value, standard error over documents or NaN)}}
    items: dict  # {(task, metric): {document: (sum, weight)}}
    documents: dict = dataclasses.field(default_factory=dict)  # {task: number of documents}, if the file has it


@dataclasses.dataclass
class ItemComparison:
    """Comparison of two models on the same documents; differences are run minus baseline."""

    label: str  # the pair, or all pairs
    documents: int
    difference: float
    low: float  # interval over documents, see statistics.paired_documents
    high: float
    p: float  # McNemar's test for fractions, else Student's t; NaN for the mean of several pairs of a fraction
    only_baseline: int | None = None  # documents that only the baseline answers correctly; None for other metrics
    only_run: int | None = None


# ---- Files -------------------------------------------------------------------------------------------------


# Files that te-experiment writes; they count only if its state.json calls the evaluation finished.
_OF_EXPERIMENTS = ("evaluate.json", "evaluate_items.jsonl")


def evaluation(run):
    found, skipped = Evaluation({}, {}), _skipped(run)
    for pattern, read in (("evaluate*.json", _read_results), ("evaluate*.jsonl", _read_items)):
        files = {}  # {task: its file}
        for file in sorted(run.folder.rglob(pattern)) if run.folder else []:
            for task in read(file, found) if file not in skipped else ():
                if (other := files.setdefault(task, file)) != file:
                    raise UserError(f"{file}: has {task}, as {other} has; keep one of the files in the run's folder")
    return found


def _skipped(run):
    state = run.folder / "state.json" if run.folder else None
    record = runs.read_json(state).get("evaluation") if state and state.is_file() else None
    finished = not isinstance(record, dict) or record.get("state") == "finished"
    return () if finished else tuple(run.folder / name for name in _OF_EXPERIMENTS)


def _read_results(file, found):
    """Adds the file's results; returns its tasks."""
    content = runs.read_json(file)
    tables = {**content.get("results", {}), **content.get("groups", {})}
    for task, metrics in tables.items():
        table = found.results.setdefault(task, {})
        for key, value in metrics.items():
            name, _, rest = key.partition(",")
            if not name.endswith("_stderr") and isinstance(value, (int, float)) and rest:
                error = metrics.get(f"{name}_stderr,{rest}")
                table[name] = (float(value), float(error) if isinstance(error, (int, float)) else math.nan)
        counted = content.get("n-samples", {}).get(task, {}).get("effective", metrics.get("sample_len"))
        if counted is not None:
            found.documents[task] = counted
    return tables.keys()


def _read_items(file, found):
    """Adds the file's documents; returns their tasks."""
    tasks = {}
    for number, item in runs.json_lines(file):
        index = item.get("index", item.get("doc_id"))
        if "task" not in item or index is None:
            raise UserError(f"{file}: line {number}: needs task and index (or doc_id); give the items of an evaluation")
        tasks[item["task"]] = None
        for metric, keys in _ITEM_KEYS.items():
            value = next((item[key] for key in keys if item.get(key) is not None), None)
            if value is not None:
                found.items.setdefault((item["task"], metric), {})[index] = _sum_and_weight(file, number, metric, value)
    return tasks.keys()


def _sum_and_weight(file, number, metric, value):
    try:
        total, weight = (float(v) for v in value) if isinstance(value, list) else (float(value), 1.0)
        if math.isfinite(total) and weight > 0:
            return total, weight
    except (TypeError, ValueError):
        pass
    raise UserError(f"{file}: line {number}: {metric} must be a number, or a sum and its weight; evaluate again")


def _separate_numbers_of_documents(evaluations):
    """Makes a task of several numbers of documents several tasks, as its scores are not comparable."""
    counts = {}
    for e in evaluations:
        for task in e.results:
            counts.setdefault(task, set()).add(e.documents.get(task))
    for e in evaluations:
        names = {
            task: f"{task} ({e.documents.get(task, 'unknown')} documents)"
            for task in e.results
            if len(counts[task]) > 1
        }
        e.results = {names.get(task, task): metrics for task, metrics in e.results.items()}
        e.items = {(names.get(task, task), metric): found for (task, metric), found in e.items.items()}


# ---- Arms --------------------------------------------------------------------------------------------------


def arm_values(arms):
    """{(task, metric): [(mean, standard error, runs)]} with one entry per arm, None if no run of it was evaluated. The error
    is that of the mean over seeds; for a single run, that over its documents."""
    found = [[evaluation(run) for run in arm.runs] for arm in arms]
    _separate_numbers_of_documents([e for arm in found for e in arm])
    found = [[e.results for e in arm if e.results] for arm in found]
    keys = sorted({(task, metric) for arm in found for run in arm for task in run for metric in run[task]})
    table = {}
    for task, metric in keys:
        table[task, metric] = [
            _mean_and_error([run[task][metric] for run in arm if metric in run.get(task, {})]) for arm in found
        ]
    return table


def _mean_and_error(values):
    if not values:
        return None
    if len(values) == 1:
        return (*values[0], 1)
    numbers = np.array([value for value, _ in values])
    return float(numbers.mean()), float(numbers.std(ddof=1)) / math.sqrt(len(numbers)), len(numbers)


# ---- Pairs -------------------------------------------------------------------------------------------------


def compare_tasks(pairs):
    """One row per task and metric: {"task", "metric", "baseline", "run": means, "gap", "estimate": over pairs or None,
    "items": [ItemComparison], starting with the mean of all pairs if there are several}."""
    sides = [(pair, evaluation(pair.baseline), evaluation(pair.run)) for pair in pairs]
    _separate_numbers_of_documents([e for _, a, b in sides for e in (a, b)])
    sides = [(p, a, b) for p, a, b in sides if a.results and b.results]
    keys = {(t, m) for _, a, b in sides for t in a.results.keys() & b.results.keys() for m in a.results[t]}
    return [row for key in sorted(keys) if (row := _compare_task(*key, sides))]


def _compare_task(task, metric, sides):
    having = [(p, a, b) for p, a, b in sides if all(metric in e.results.get(task, {}) for e in (a, b))]
    if not having:
        return None
    values = [(a.results[task][metric][0], b.results[task][metric][0]) for _, a, b in having]
    gaps = [b - a for a, b in values]
    items = [
        (p.label, a.items[task, metric], b.items[task, metric])
        for p, a, b in having
        if (task, metric) in a.items and (task, metric) in b.items
    ]
    return {
        "task": task,
        "metric": metric,
        "baseline": float(np.mean([a for a, _ in values])),
        "run": float(np.mean([b for _, b in values])),
        "gap": float(np.mean(gaps)),
        "estimate": statistics.paired(gaps) if len(gaps) > 1 else None,
        "items": compare_items(items, is_share(metric)),
    }


def compare_items(pairs, share):
    """`pairs`: [(label, the baseline's {document: (sum, weight)}, the run's)]; compares the documents that both have."""
    found = [c for label, first, second in pairs if (c := _compare_pair(label, first, second, share))]
    if len(found) > 1:
        found.insert(0, _all_pairs(pairs, share))
    return found


def _compare_pair(label, first, second, share):
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    differences = np.array([second[i][0] - first[i][0] for i in common])
    mean, low, high, p = statistics.paired_documents(differences, [first[i][1] for i in common])
    result = ItemComparison(label, len(common), mean, low, high, p)
    if share:
        result.only_baseline, result.only_run = int(np.sum(differences < 0)), int(np.sum(differences > 0))
        result.p = statistics.mcnemar(result.only_baseline, result.only_run)
    return result


def _all_pairs(pairs, share):
    """Averages the differences of a document over the pairs before comparing documents: models of several seeds answer the
    same documents, so their answers are not independent, and McNemar's test of the sums would be overconfident."""
    common = sorted(set.intersection(*(first.keys() & second.keys() for _, first, second in pairs)))
    if not common:
        return ItemComparison(f"mean of {len(pairs)} pairs", 0, math.nan, math.nan, math.nan, math.nan)
    averages = [np.mean([second[i][0] - first[i][0] for _, first, second in pairs]) for i in common]
    mean, low, high, p = statistics.paired_documents(averages, [pairs[0][1][i][1] for i in common])
    return ItemComparison(f"mean of {len(pairs)} pairs", len(common), mean, low, high, p)
