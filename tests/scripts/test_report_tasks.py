#!/usr/bin/env python3
"""Tests of the report's tasks: means of arms, gaps of pairs, and documents, against numbers computed by hand."""

import json
import math
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

try:
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error.name} is missing (scripts/install_deps.sh)")
    sys.exit(77)

from folder_testing import InFolder
from report import UserError, analysis, blocks, experiment, pages, sections, tasks
from report.runs import read_run
from report_testing import write_evaluation, write_run


class Tasks(InFolder):
    def run_with(self, name, seed, results, items):
        """`results`: {"acc": (value, error)} of task t; `items`: [{"acc": 1.0}] of its documents."""
        folder = write_run(self.folder / name, seed=seed)
        table = {}
        for metric, (value, error) in results.items():
            table |= {f"{metric},none": value, f"{metric}_stderr,none": error}
        (folder / "evaluate.json").write_text(json.dumps({"results": {"t": table}}))
        lines = [json.dumps({"task": "t", "doc_id": i, **item}) + "\n" for i, item in enumerate(items)]
        (folder / "evaluate_items.jsonl").write_text("".join(lines))
        return read_run(folder)

    def accuracies(self, name, seed, right):
        share = sum(right) / len(right)
        return self.run_with(name, seed, {"acc": (share, 0.1)}, [{"acc": float(r)} for r in right])

    def test_means_of_arms_and_their_errors(self):
        bf16 = [self.accuracies(f"b{s}", s, [1] * n + [0] * (10 - n)) for s, n in ((1, 5), (2, 7), (3, 9))]
        fp8 = [self.accuracies("f1", 1, [1, 0, 0, 0, 0])]
        none = [read_run(write_run(self.folder / "n1", seed=1))]
        arms = [analysis.Arm("bf16", bf16), analysis.Arm("fp8", fp8), analysis.Arm("none", none)]
        ((mean, error, runs), single, missing) = tasks.arm_values(arms)["t", "acc"]
        # 0.5, 0.7, 0.9: standard deviation 0.2, divided by sqrt(3).
        self.assertAlmostEqual(mean, 0.7)
        self.assertAlmostEqual(error, 0.2 / math.sqrt(3))
        self.assertEqual(runs, 3)
        self.assertEqual(single, (0.2, 0.1, 1))  # for one run: the error over documents
        self.assertIsNone(missing)
        self.assertEqual(sections.value_text("acc", (mean, error, 3)), "70.00 ± 11.55%")
        self.assertEqual(sections.value_text("perplexity", (12.5, math.nan, 1)), "12.5000")
        self.assertEqual(sections.value_text("perplexity", (8.0261e8, 1.03e8, 2)), "8.026e+08 ± 1.03e+08")

    def test_accuracies_of_a_pair(self):
        first = self.accuracies("a", 1, [1, 1, 1, 1, 0, 0])
        second = self.accuracies("b", 1, [0, 0, 0, 1, 1, 0])
        (row,) = tasks.compare_tasks([analysis.make_pair(first, second)])
        self.assertAlmostEqual(row["gap"], -2 / 6)
        self.assertIsNone(row["estimate"])
        (item,) = row["items"]
        # 3 documents correct only in the first, 1 only in the second: 2 * (1 + 4) / 16.
        self.assertEqual((item.only_baseline, item.only_run, item.p, item.documents), (3, 1, 0.625, 6))
        self.assertAlmostEqual(item.difference, -2 / 6)
        self.assertLess(item.low, item.difference)
        self.assertEqual(sections.item_row("fp8", row, item)[3:6], ["seed 1", "6", "-33.33"])

    def test_averages_documents_over_pairs(self):
        pairs = []
        for seed, second in ((1, [1, 1, 0, 0]), (2, [1, 0, 0, 0])):
            runs = self.accuracies(f"a{seed}", seed, [0, 0, 0, 1]), self.accuracies(f"b{seed}", seed, second)
            pairs.append(analysis.make_pair(*runs))
        (row,) = tasks.compare_tasks(pairs)
        self.assertEqual([item.label for item in row["items"]], ["mean of 2 pairs", "seed 1", "seed 2"])
        # Differences of documents: 1, 1/2, 0, -1; over pairs: 1/4 and 0, mean 1/8, t with one degree of freedom.
        self.assertAlmostEqual(row["items"][0].difference, 0.125)
        self.assertAlmostEqual(row["estimate"].interval()[1], 0.125 + 12.7062 * 0.125, places=3)
        self.assertIsNone(row["items"][0].only_run)

    def test_log_probabilities(self):
        sides = []
        for name, sums in (("a", (-4.0, -20.0)), ("b", (-3.0, -25.0))):
            results = {"word_perplexity": (12.0, 0.5), "bits_per_byte": (1.0, 0.1)}
            items = [{"word_perplexity": [s, w], "bits_per_byte": [s, 9]} for s, w in zip(sums, (1, 9))]
            sides.append(self.run_with(name, 1, results, items))
        rows = {row["metric"]: row for row in tasks.compare_tasks([analysis.make_pair(*sides)])}
        (item,) = rows["word_perplexity"]["items"]
        # +1 for 1 word and -5 for 9 words: -4 / 10; residuals are 1.4 and -1.4, the error sqrt(2 * 2) * 1.4 / 10.
        self.assertAlmostEqual(item.difference, -0.4)
        self.assertAlmostEqual(item.high, -0.4 + 12.7062047362 * 0.28)
        self.assertAlmostEqual(item.low, -0.4 - 12.7062047362 * 0.28)
        self.assertIsNone(item.only_run)
        self.assertEqual(rows["bits_per_byte"]["items"], [])  # the same as byte_perplexity's
        row = sections.item_row("fp8", rows["word_perplexity"], item)
        self.assertEqual(row[:2], ["t", "log-probability per word"])

    def test_only_documents_of_both(self):
        first = self.accuracies("a", 1, [1, 1, 1, 1])
        second = self.accuracies("b", 1, [1, 0])
        (item,) = tasks.compare_tasks([analysis.make_pair(first, second)])[0]["items"]
        self.assertEqual((item.documents, item.only_baseline, item.only_run), (2, 1, 0))

    def test_in_the_report(self):
        runs = {name: [] for name in ("bf16", "fp8")}
        for seed in (1, 2):
            for name, flips in (("bf16", 0), ("fp8", seed)):
                folder = write_run(self.folder / f"{name}{seed}", seed=seed, fp8=name == "fp8")
                write_evaluation(folder, [i % 3 == 0 or i < flips for i in range(30)])
                runs[name].append(read_run(folder))
        report = pages.Report(experiment.of_arms(runs))
        text = blocks.markdown(report.blocks(lambda *_: []))
        self.assertIn("| task | metric | bf16 (2) | fp8 (2) |", text)
        self.assertIn("| hellaswag | acc | 33.33 ± 0.00% | 35.00 ± 1.67% |", text)
        self.assertIn("| hellaswag | acc | fp8 | seed 2 | 30 | +3.33 |", text)
        page = blocks.html_page("x", report.blocks(lambda *_: []))
        self.assertIn("<th class=\"n\">run only</th>", page)
        (row,) = report.numbers()["arms"][0]["tasks"]
        self.assertEqual([item["label"] for item in row["items"]], ["mean of 2 pairs", "seed 1", "seed 2"])
        self.assertEqual(row["items"][2]["only_run"], 1)
        json.dumps(report.numbers(), allow_nan=False)

    def test_groups_have_no_pairs(self):
        runs = {"bf16": [], "fp8": []}
        for name, seed in (("bf16", 1), ("bf16", 2), ("fp8", 7), ("fp8", 8), ("fp8", 9)):
            folder = write_run(self.folder / f"{name}{seed}", seed=seed)
            write_evaluation(folder, [i % 3 < seed % 2 for i in range(30)])
            runs[name].append(read_run(folder))
        report = pages.Report(experiment.of_arms(runs))
        text = blocks.markdown(report.blocks(lambda name, alt, draw: (draw(), [])[1]))
        self.assertIn("| hellaswag | acc | 16.67 ± 16.67% |", text)
        self.assertIn("No gaps for fp8: no seeds match the baseline's.", text)
        for claim in ("Gaps to bf16", "same seed", "McNemar", "times as fast"):
            self.assertNotIn(claim, text)
        self.assertEqual(report.numbers()["arms"][0]["tasks"], [])

    def test_scores_of_different_documents_have_no_gap(self):
        arms = {"bf16": [], "fp8": []}
        for name, right in (("bf16", [1] + [0] * 9), ("fp8", [1])):
            run = self.accuracies(f"{name}1", 1, right)
            file = run.folder / "evaluate.json"
            content = json.loads(file.read_text())
            file.write_text(json.dumps(content | {"n-samples": {"t": {"original": 20, "effective": len(right)}}}))
            arms[name].append(run)
        self.assertEqual(tasks.compare_tasks([analysis.make_pair(arms["bf16"][0], arms["fp8"][0])]), [])
        text = blocks.markdown(pages.Report(experiment.of_arms(arms)).blocks(lambda *_: []))
        self.assertIn("| t (10 documents) | acc | 10.00 ± 10.00% | - |", text)
        self.assertIn("| t (1 documents) | acc | - | 100.00 ± 10.00% |", text)

    def test_only_results_of_a_finished_evaluation(self):
        run = self.accuracies("a", 1, [1, 0])
        for state, expected in (("finished", {"t"}), ("failed", set()), ("waiting", set())):
            (run.folder / "state.json").write_text(json.dumps({"evaluation": {"state": state}}))
            self.assertEqual(tasks.evaluation(run).results.keys(), expected, state)
        (run.folder / "evaluate_own.json").write_text(json.dumps({"results": {"own": {"acc,none": 0.5}}}))
        self.assertEqual(tasks.evaluation(run).results.keys(), {"own"})

    def test_a_task_has_one_file(self):
        for name, text in (
            ("evaluate_try.json", json.dumps({"results": {"t": {"acc,none": 0.5}}})),
            ("evaluate_try.jsonl", '{"task": "t", "doc_id": 0, "acc": 1.0}\n'),
        ):
            run = self.accuracies(name, 1, [1, 0])
            (run.folder / name).write_text(text)
            with self.assertRaisesRegex(UserError, f"{name}: has t, as .*keep one of the files"):
                tasks.evaluation(run)

    def test_notes_match_the_table(self):
        share = ["t", "acc", "b", "seed 1", "9", "+1", "0 to 2", "1", "2", "0.5"]
        word = ["t", "log-probability per word", "b", "seed 1", "9", "+1", "0 to 2", "-", "-", "0.5"]
        for rows, there, absent in (
            ([share], ["McNemar", "run only"], ["the t test", "Perplexities"]),
            ([word], ["the t test", "Perplexities"], ["McNemar", "run only"]),
            ([share, word], ["McNemar", "in other rows, of the t test", "Perplexities"], []),
        ):
            text = sections.item_note(rows)
            for part in there:
                self.assertIn(part, text)
            for part in absent:
                self.assertNotIn(part, text)
        self.assertNotIn("±", sections.error_note({("t", "acc"): [(0.5, math.nan, 1), None]}))
        self.assertIn("over its documents", sections.error_note({("t", "acc"): [(0.5, 0.1, 1)]}))
        several = sections.error_note({("t", "acc"): [(0.5, 0.1, 3)]})
        self.assertIn("over runs", several)
        self.assertNotIn("documents", several)

    def test_mistakes(self):
        run = self.accuracies("a", 1, [1])
        for line, expected in (
            ('{"task": "x"}', "line 1: needs task and index"),
            ('{"task": "x", "doc_id": 0, "acc": "yes"}', "line 1: acc must be a number"),
            ('{"task": "x", "doc_id": 0, "word_perplexity": [1, 0]}', "line 1: word_perplexity must be"),
        ):
            (run.folder / "evaluate_items.jsonl").write_text(line + "\n")
            with self.assertRaisesRegex(UserError, f"evaluate_items.jsonl: {expected}"):
                tasks.evaluation(run)


if __name__ == "__main__":
    unittest.main()
