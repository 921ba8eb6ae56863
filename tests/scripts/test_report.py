"""Tests of the report: pairs, verdicts, pages, and the program from folders to files."""

import contextlib
import html.parser
import io
import json
import math
import subprocess
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "scripts")]
try:
    import matplotlib  # noqa: F401
    import numpy as np
    import scipy  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import compare_loss
from folder_testing import InFolder
from report import UserError, analysis, blocks, figures
from report.analysis import Arm, Tolerance, compare_arms
from report.runs import Run
from report_testing import write_evaluation, write_run, write_summary


def run_of(loss, seed=None, valid=None, label="r", tokens=None):
    tokens = np.arange(1.0, len(loss) + 1) if tokens is None else np.array(tokens, float)
    at = tokens[-1:] if valid is not None else tokens[:0]
    return Run(label, tokens, np.array(loss, float), at, np.array([] if valid is None else [valid]), seed=seed)


def arms(base, other, steps=40):
    """Constant curves: `base` and `other` map a seed to a loss."""
    make = [
        Arm(name, [run_of([loss] * steps, seed) for seed, loss in losses.items()])
        for name, losses in (("base", base), ("x", other))
    ]
    return compare_arms(*make, Tolerance(nats=0.01, share=1.0))


class Verdicts(unittest.TestCase):
    def test_pairs_remove_seed_noise(self):
        # Seeds differ by 1 nat, pairs by 0.001 ± 0.001: t(0.975, 2) * 0.001 / sqrt(3) = 0.00248.
        found = arms({1: 3.0, 2: 4.0, 3: 5.0}, {3: 5.002, 2: 4.001, 1: 3.0})
        (m,) = found.measures
        self.assertEqual((found.verdict, m.verdict, len(found.pairs)), (analysis.WITHIN, analysis.WITHIN, 3))
        self.assertAlmostEqual(m.mean, 0.001)
        self.assertAlmostEqual(m.high, 0.001 + 0.0024841, places=6)
        self.assertAlmostEqual(m.base, 4.0)
        self.assertIn("3 pairs of equal seed, 2 degrees of freedom", m.method)

    def test_outside_and_better(self):
        worse = arms({1: 3.0, 2: 4.0, 3: 5.0}, {1: 3.03, 2: 4.031, 3: 5.029})
        self.assertEqual(worse.verdict, analysis.OUTSIDE)
        self.assertIn("above the tolerance", worse.measures[0].why)
        better = arms({1: 3.0, 2: 4.0, 3: 5.0}, {1: 2.97, 2: 3.969, 3: 4.971})
        self.assertEqual(better.verdict, analysis.OUTSIDE)
        self.assertIn("below (better)", better.measures[0].why)

    def test_not_enough_runs(self):
        # Mean 0.001, spread 0.00707. Within 0.009 of the mean: t(0.975, 3) = 3.182 gives 0.01125 with four pairs,
        # t(0.975, 4) = 2.776 gives 0.00878 with five.
        found = arms({1: 3.0, 2: 4.0}, {1: 3.006, 2: 3.996})
        self.assertEqual(found.verdict, analysis.INCONCLUSIVE)
        self.assertIn("about 5 pairs would give a verdict", found.measures[0].why)
        for shift, side in ((0.03, "above the tolerance"), (0.0, "within")):  # two pairs that agree
            two = arms({1: 3.0, 2: 4.0}, {1: 3.0 + shift, 2: 4.0001 + shift})
            self.assertEqual((two.verdict, two.measures[0].verdict), (analysis.INCONCLUSIVE, analysis.INCONCLUSIVE))
            self.assertIn(side, two.measures[0].why)
            self.assertIn("two pairs may agree by chance", two.measures[0].why)
        wide = arms({1: 3.0, 2: 4.0, 3: 5.0}, {1: 3.02, 2: 4.0, 3: 5.02})
        self.assertIn("the mean is not within the tolerance", wide.measures[0].why)

    def test_figures_show_complete_intervals_of_three_pairs(self):
        wide = arms({1: 3.0, 2: 4.0, 3: 5.0}, {1: 3.08, 2: 3.93, 3: 4.93})
        (axes,) = figures.gaps_with_intervals([wide]).axes
        self.assertLess(axes.get_xlim()[0], wide.measures[0].low)
        two = arms({1: 3.0, 2: 4.0}, {1: 3.08, 2: 3.93})
        (axes,) = figures.gaps_with_intervals([two]).axes
        self.assertGreater(axes.get_xlim()[0], two.measures[0].low)

    def test_fewer_than_three_pairs_have_no_interval_in_the_figure(self):
        for losses, interval in (({1: 3.01, 2: 4.0}, False), ({1: 3.01, 2: 4.0, 3: 5.01}, True)):
            figure = figures.gaps_with_intervals([arms({1: 3.0, 2: 4.0, 3: 5.0}, losses)], "a title")
            (axes,) = figure.axes
            intervals = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_ydata()[0] == line.get_ydata()[1] == 0]
            self.assertEqual(bool(intervals) and intervals[0].get_marker() == "None", interval)
            texts = [text.get_text() for text in figure.texts]
            self.assertEqual(any("no interval for fewer than three pairs" in text for text in texts), not interval)
            self.assertIn("a title", texts)

    def test_many_arms_are_sorted_and_intervals_without_zero_are_marked(self):
        names = [f"arm{k}" for k in range(8)]
        base = Arm("b", [run_of([3.0 + seed] * 40, seed) for seed in (1, 2, 3)])
        shifts = {name: 0.002 * k for k, name in enumerate(names)}
        found = [
            compare_arms(base, Arm(n, [run_of([3.0 + s + shifts[n] + 1e-3 * s] * 40, s) for s in (1, 2, 3)]), Tolerance()) for n in names
        ]
        figure = figures.gaps_with_intervals(found)
        (axes,) = figure.axes
        self.assertEqual([text.get_text() for text in axes.get_yticklabels()], names[::-1])
        diamonds = [line.get_color() for line in axes.lines if line.get_marker() == "D"]
        self.assertEqual((diamonds[0], diamonds[-1]), (figures.COLORS[1], figures.COLORS[0]))

    def test_values_outside_the_axis_are_marked_and_epochs_drawn(self):
        steps = 200
        gap = np.zeros(steps)
        gap[3:5] = 5.0  # less than 3% of the curve, so the axis does not reach it
        content = types.SimpleNamespace(
            baseline=Arm("base", [run_of(np.full(steps, 4.0), 1)]), arms=[], tolerance=Tolerance(), title="GPT", epochs=[50.0, 100.0]
        )
        arm = Arm("x", [run_of(4.0 + gap, 1)])
        content.arms = [arm]
        figure = figures.gap_by_tokens(content, [compare_arms(content.baseline, arm, Tolerance())])
        (axes,) = figure.axes
        self.assertIn("triangles: outside the axis", axes.get_ylabel())
        self.assertTrue(any(line.get_marker() == "^" and len(line.get_xdata()) for line in axes.lines))
        self.assertEqual([text.get_text().strip() for text in axes.texts], ["epoch 2", "epoch 3"])
        self.assertIn("GPT, 200 tokens", [text.get_text() for text in figure.texts])

    def test_reports_a_significant_small_gap(self):
        found = arms({s: 3.0 + s for s in range(5)}, {s: 3.004 + s + 1e-4 * (s % 2) for s in range(5)})
        self.assertEqual(found.verdict, analysis.WITHIN)
        self.assertIn("the gap is significant", found.measures[0].why)

    def test_one_pair_has_no_verdict(self):
        rng = np.random.default_rng(0)
        base = 3 + 0.01 * rng.normal(size=400)
        noise = 0.002 * rng.normal(size=400)
        found = compare_arms(Arm("b", [run_of(base, 1)]), Arm("x", [run_of(base + 0.001 + noise, 1)]), Tolerance())
        (m,) = found.measures
        self.assertEqual(found.verdict, analysis.INCONCLUSIVE)
        self.assertIn("one pair", m.why)
        self.assertIn("circular block bootstrap of one pair's 40 logged steps", m.method)
        self.assertTrue(m.low < m.mean < m.high)
        self.assertIsNone(m.estimate)

    def test_the_stricter_limit_counts(self):
        self.assertEqual(Tolerance().of(4.0), 0.01)
        self.assertAlmostEqual(Tolerance().of(2.0), 0.005)

    def test_arms_without_common_seeds_are_groups(self):
        found = arms({1: 3.0, 2: 3.002, 3: 3.004}, {7: 3.0, 8: 3.002})
        self.assertTrue(found.groups)
        self.assertIsNone(found.excess)
        self.assertIn("Welch's t interval (95%) of two groups of 3 and 2 runs", found.measures[0].method)
        self.assertAlmostEqual(found.measures[0].mean, -0.001)  # of all three
        self.assertFalse(arms({None: 3.0}, {None: 3.001}).groups)
        # One run each with different seeds: the spread is unknown.
        single = arms({1: 3.0}, {2: 3.001})
        self.assertFalse(single.groups)
        self.assertEqual(single.verdict, analysis.INCONCLUSIVE)

    def test_ignores_seeds_of_one_arm_only(self):
        found = arms({1: 3.0, 2: 4.0, 9: 9.0}, {1: 3.0, 2: 4.0, 5: 100.0})
        self.assertEqual([pair.run.seed for pair in found.pairs], [1, 2])

    def test_two_runs_of_one_seed(self):
        once, twice = [run_of([1], 1)], [run_of([1], 1), run_of([1], 1)]
        for base, other, name in ((twice, once, "b"), (once, twice, "x")):
            with self.assertRaisesRegex(UserError, f"^{name}: two of its runs have the same seed"):
                compare_arms(Arm("b", base), Arm("x", other), Tolerance())

    def test_validation_at_the_last_common_tokens(self):
        def valid(values, seed):
            return Run(
                "r",
                np.arange(1.0, 11),
                np.full(10, 3.0),
                np.array(sorted(values)),
                np.array([values[t] for t in sorted(values)]),
                seed=seed,
            )

        base = Arm("b", [valid({5.0: 3.5, 10.0: 3.0}, 1), valid({5.0: 3.6, 10.0: 3.0}, 2)])
        found = compare_arms(base, Arm("x", [valid({5.0: 3.5, 10.0: 9.0}, 1), valid({5.0: 3.62}, 2)]), Tolerance())
        self.assertEqual(found.measures[1].name, "validation loss at 5 tokens")
        np.testing.assert_allclose(found.measures[1].gaps, [0.0, 0.02])

    def test_later_validation_losses_that_are_not_finite_are_outside(self):
        def arm(name, valid, bad=(), steps=10):
            tokens = np.arange(1.0, steps + 1)
            at, loss = np.array(sorted(valid)), np.array([valid[t] for t in sorted(valid)])
            train, bad = [np.full(steps, 3.0 + 1e-5 * s * (name == "x")) for s in (1, 2, 3)], np.array(bad)
            return Arm(name, [Run("r", tokens, t, at, loss, seed=s, bad_valid=bad) for s, t in enumerate(train, 1)])

        whole = {5.0: 3.5, 10.0: 3.2}
        base, lost = arm("b", whole), compare_arms(arm("b", whole), arm("x", {5.0: 3.5}, [10.0]), Tolerance())
        self.assertEqual(lost.verdict, analysis.OUTSIDE)
        self.assertEqual((lost.measures[0].verdict, lost.measures[1].verdict), (analysis.WITHIN, analysis.OUTSIDE))
        self.assertIn("3 of its runs have a validation loss that is not finite", lost.measures[1].why)
        never = compare_arms(base, arm("x", {}, [5.0, 10.0]), Tolerance())  # no common validation
        self.assertEqual((never.verdict, len(never.measures)), (analysis.OUTSIDE, 1))
        self.assertIn("not finite", never.measures[0].why)
        for other, candidate in (
            (base, arm("x", {10.0: 3.2}, [5.0])),  # recovered
            (arm("b", {5.0: 3.5}, [10.0]), arm("x", {5.0: 3.5}, [10.0])),  # the baseline's, too
            (arm("b", {5.0: 3.5}, steps=7), arm("x", {5.0: 3.5}, [10.0])),  # beyond the end of the baseline
        ):
            self.assertEqual(compare_arms(other, candidate, Tolerance()).verdict, analysis.WITHIN)

    def test_no_verdict_for_other_validation_samples(self):
        def arm(name, loss, valid, **config):
            runs = []
            for seed in (1, 2, 3):
                run = run_of([loss + seed + seed * 1e-5] * 40, seed, valid + seed)
                run.record = {"config": {key.replace("__", "."): value for key, value in config.items()}}
                runs.append(run)
            return Arm(name, runs)

        small = dict(training__eval_microbatches="10", training__micro_batch_size="4")
        base = arm("base", 3.0, 3.0, **small)
        other = {**small, "training__micro_batch_size": "8"}
        found = compare_arms(base, arm("x", 3.0, 9.0, **other), Tolerance(share=1.0))
        self.assertEqual(found.verdict, analysis.WITHIN)
        self.assertEqual(found.measures[1].verdict, None)
        self.assertIn("no verdict: the runs differ in training.micro_batch_size, so the samples may differ", found.measures[1].why)
        # The same number of samples in other microbatches.
        equal = dict(training__eval_microbatches="5", training__micro_batch_size="8")
        self.assertEqual(compare_arms(base, arm("x", 3.0, 9.0, **equal), Tolerance(share=1.0)).verdict, analysis.OUTSIDE)
        longer = arm("x", 3.0, 3.0, **small, model__seq_length="64")
        self.assertIn("model.seq_length", compare_arms(base, longer, Tolerance()).measures[1].why)

    def test_no_verdict_for_changed_data(self):
        def arm(name, loss, contents):
            runs = []
            for seed in (1, 2, 3):
                runs.append(run_of([loss + seed + seed * 1e-5] * 40, seed))
                runs[-1].record = {"starts": [{"data": contents}]}
            return Arm(name, runs)

        base = arm("base", 3.0, {"data/a": "3 documents", "data/b": "4 documents"})
        equal = compare_arms(base, arm("x", 3.0, {"data/a": "3 documents", "data/c": "9 documents"}), Tolerance())
        self.assertEqual(equal.verdict, analysis.WITHIN)
        changed = compare_arms(base, arm("x", 3.0, {"data/a": "5 documents"}), Tolerance())
        self.assertEqual(changed.verdict, analysis.INCONCLUSIVE)
        self.assertIn("no verdict: data/a had other content in some of the runs; ", changed.measures[0].why)

    def test_largest_excess(self):
        # Two seeds of the baseline differ by at most 0.5; the run is 0.7 above its baseline in one step (window 1).
        first, second = np.full(40, 3.0), np.full(40, 3.0)
        second[10] = 3.5
        run = first.copy()
        run[20] = 3.7
        found = compare_arms(Arm("b", [run_of(first, 1), run_of(second, 2)]), Arm("x", [run_of(run, 1)]), Tolerance()).excess
        self.assertAlmostEqual(found["gap"], 0.7)
        self.assertEqual(found["tokens"], 21)
        self.assertAlmostEqual(found["seeds"], 0.5)

    def test_gap_by_tenths(self):
        # 20 records at 1, ..., 20: tenths of the 19 tokens between them, the last from 18.1 on. Gaps 0.01 and 0.03
        # times the number of the tenth, so 0.02 on average.
        tokens = np.arange(1.0, 21)
        number = np.minimum(np.floor((tokens - 1) / 1.9), 9) + 1
        self.assertEqual(np.bincount(number.astype(int)).tolist(), [0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2])

        def run(gap, seed, valid):
            at = np.array(sorted(valid))
            return Run("r", tokens, 3.0 + gap * number, at, np.array([valid[t] for t in sorted(valid)]), seed=seed)

        base = Arm("b", [run(0.0, seed, {2.0: 4.0, 20.0: 3.0, 25.0: 2.0}) for seed in (1, 2)])
        other = Arm(
            "x", [run(0.01, 1, {2.0: 4.5, 19.0: 1.0, 20.0: 3.1, 25.0: 9.0}), run(0.03, 2, {2.0: 4.7, 20.0: 3.3})]
        )
        found = analysis.gap_by_tenths(compare_arms(base, other, Tolerance()).pairs)
        np.testing.assert_allclose(found["training"], 0.02 * np.arange(1, 11))
        np.testing.assert_allclose(found["validation"], [0.6, *[math.nan] * 8, 0.2])

    def test_the_last_tenth_is_the_measure(self):
        rng = np.random.default_rng(5)
        tokens = np.cumsum(rng.integers(1, 9, 137)).astype(float)
        base, other = rng.normal(3, 1, 137), rng.normal(3, 1, 137)
        none = np.array([])
        arms_of = [Arm("arm", [Run("r", tokens, loss, none, none, seed=1)]) for loss in (base, other)]
        found = compare_arms(*arms_of, Tolerance())
        self.assertAlmostEqual(analysis.gap_by_tenths(found.pairs)["training"][-1], found.measures[0].gaps[0])

    def test_full_windows(self):
        np.testing.assert_allclose(analysis.full_windows(np.array([3.0, 0, 0, 6]), 3), [1, 2])
        np.testing.assert_allclose(analysis.full_windows(np.array([3.0, 1]), 3), [2])

    def test_seed_spread(self):
        self.assertAlmostEqual(
            analysis.seed_spread(Arm("b", [run_of([3.0] * 9), run_of([4.0] * 9), run_of([5.0] * 5)])), 1.0
        )
        self.assertTrue(math.isnan(analysis.seed_spread(Arm("b", [run_of([3.0])]))))


class Finder(html.parser.HTMLParser):
    """Collects open tags, and all resources that an HTML file would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sources, self.bad = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.bad.append(tag)


class Program(InFolder):
    def call(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = compare_loss.main([str(a) for a in arguments])
        return code, output.getvalue(), errors.getvalue()

    def experiment(self, shift=0.001, states=None):
        names = {"bf16": [], "fp8": []}
        for own, name in enumerate(names):
            for seed in (1, 2, 3):
                # Three different gaps around `shift`.
                gap = (shift + 2e-4 * (seed - 2)) * own
                write_run(
                    self.folder / f"{name}_seed{seed}",
                    seed=seed,
                    shift=gap,
                    noise=0.01,
                    fp8=bool(own),
                    step_ms=100 - 20 * own,
                )
                write_evaluation(
                    self.folder / f"{name}_seed{seed}", [i % 3 < 1 + own * (i % 10 == 0) for i in range(100)]
                )
                names[name].append(f"{name}_seed{seed}")
        write_summary(self.folder, names, "bf16", states)
        return self.folder

    def test_seeds_from_file_names(self):
        runs = self.experiment()
        for run in list(runs.glob("*_seed*")):
            (self.folder / f"{run.name}.csv").write_text((run / "loss.csv").read_text())
        base, other = ([self.folder / f"{name}_seed{seed}.csv" for seed in seeds]
                       for name, seeds in (("bf16", (1, 2, 3)), ("fp8", (3, 1))))  # fmt: skip
        arms = ("--arm", "bf16", *base, "--arm", "fp8", *other)
        code, output, errors = self.call(*arms, "--report", self.folder / "r", "--no-plot")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("2 pairs of equal seed", output)
        numbers = json.loads((self.folder / "r" / "report.json").read_text())
        self.assertAlmostEqual(numbers["arms"][0]["measures"][0]["gap"], 0.001, places=5)

    def test_experiment_to_report(self):
        code, output, errors = self.call(self.experiment(), "--report", self.folder / "report")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("fp8: within tolerance", output)
        numbers = json.loads((self.folder / "report" / "report.json").read_text())
        train, valid = numbers["arms"][0]["measures"]
        self.assertAlmostEqual(train["gap"], 0.001, places=5)
        self.assertAlmostEqual(valid["gap"], 0.001, places=5)
        self.assertEqual((numbers["arms"][0]["verdict"], train["degrees_of_freedom"]), ("within", 2))
        text = (self.folder / "report" / "report.md").read_text()
        for part in (
            "precision.fp8` | off | hybrid",
            "times as fast to equal loss",
            "linear_fc2 | input (e4m3)",
            "hellaswag | acc",
            "McNemar",
            "1.250",
        ):
            self.assertIn(part, text)
        self.assertEqual(text.count("| fp8 | recast |"), 1)  # of all seeds
        self.assertNotIn("training.seed", text)
        pictures = {"gaps.png", "loss.png", "gap.png", "time.png", "gradients.png", "fp8.png"}
        self.assertEqual({p.name for p in (self.folder / "report").glob("*.png")}, pictures)
        for name in pictures:
            self.assertIn(f"({name})", text)
        page = (self.folder / "report" / "report.html").read_text()
        found = Finder(page)
        self.assertEqual((found.open, found.bad), ([], []))
        self.assertEqual(len(found.sources), len(pictures))
        for source in found.sources:
            self.assertTrue(source.startswith("data:image/png;base64,"), source[:40])
        self.assertNotIn("url(", page)

    def test_the_speed_of_an_emulated_recipe_is_not_compared(self):
        folder = self.experiment()
        for path in folder.glob("fp8_*/run.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"emulated": "nvfp4"}))
        code, _, errors = self.call(folder, "--report", self.folder / "report", "--no-plot")
        self.assertEqual((code, errors), (0, ""))
        text = (self.folder / "report" / "report.md").read_text()
        self.assertIn("fp8: nvfp4 emulated, so its speed and memory are not those of the recipe.", text)
        self.assertRegex(text, r"\| fp8 \|[^|]*\|[^|]*\| emulated \|")
        self.assertNotIn("times as fast to equal loss", text)
        self.assertNotIn("1.250", text)

    def test_a_diverged_run_is_not_compared(self):
        folder = self.experiment(states={"fp8_seed3": "diverged"})
        code, output, _ = self.call(folder, "--no-plot")
        self.assertEqual(code, 0)
        self.assertIn("fp8: outside tolerance", output)
        self.assertIn("1 of its runs diverged", output)
        self.assertIn("not compared: fp8 fp8_seed3: diverged", output)

    def test_runs_that_end_in_skipped_steps_have_diverged(self):
        folder = self.experiment()
        arms = {name: [folder / f"{name}_seed{seed}" for seed in (1, 2, 3)] for name in ("bf16", "fp8")}
        arguments = ("--arm", "bf16", *arms["bf16"], "--arm", "fp8", *arms["fp8"], "--no-plot")

        def verdict(of, ending, planned=None, state=None):
            """The output if the runs of the arm `of` end in the row, and te-experiment's state is `state`."""
            self.experiment()
            for run in arms[of]:
                with open(run / "loss.csv", "a") as file:
                    file.write(ending)
                record = json.loads((run / "run.json").read_text())
                record["config"] |= {"training.train_steps": str(planned)} if planned else {}
                (run / "run.json").write_text(json.dumps(record))
                (run / "state.json").unlink(missing_ok=True)
                if state:
                    (run / "state.json").write_text(json.dumps({"state": state}))
            return self.call(*arguments)[1]

        nan, norm = "101,101,101000,nan,,nan,1e-3,10,100,1,1\n", "101,101,101000,3.4,,inf,1e-3,10,100,1,1\n"
        spike = "101,101,101000,3.4,,90,1e-3,10,100,1,1\n"
        for case in ((nan,), (norm,), (nan, 200), ("", 200, "diverged")):
            output = verdict("fp8", *case)
            self.assertIn("fp8: outside tolerance", output, case)
            self.assertIn("3 of its runs diverged; before that: the whole interval", output)
        for case in (("",), (spike,), (nan, 101), (nan, 200, "finished")):
            self.assertIn("fp8: within tolerance", verdict("fp8", *case), case)
        verdict("fp8", "")
        self.assertIn("fp8: within tolerance", verdict("bf16", nan))
        code, output, _ = self.call(arms["fp8"][0], arms["bf16"][0], "--report", folder / "r", "--no-plot")
        self.assertIn("bf16_seed1: outside tolerance", output)

    def test_a_variant_with_diverged_runs_only_has_a_verdict(self):
        folder = self.experiment()
        names = {"bf16": ["bf16_seed1", "bf16_seed2"], "fp8": ["fp8_seed1", "fp8_seed2"], "wild": ["w1", "w2"]}
        write_summary(folder, names, "bf16", {"w1": "diverged", "w2": "failed"})
        code, output, _ = self.call(folder, "--report", folder / "r", "--no-plot")
        self.assertEqual(code, 0)
        self.assertIn("wild: outside tolerance\n  no run can be compared: 1 diverged, 1 failed.", output)
        self.assertIn("wild: outside tolerance", (folder / "r" / "report.html").read_text())

    def grid(self, states=None):
        """Two learning rates, each in BF16 and FP8; the losses of the higher one are 0.5 nats lower."""
        for rate, shift in (("low", 0.0), ("high", -0.5)):
            for seed in (1, 2, 3):
                gap = 0.001 + 1e-4 * (seed - 2)
                for name, fp8 in ((f"bf16_{rate}", False), (f"fp8_{rate}", True)):
                    write_run(self.folder / f"{name}_{seed}", seed=seed, shift=shift + gap * fp8, noise=0.01, fp8=fp8)
        variants = ("bf16_low", "fp8_low", "bf16_high", "fp8_high")
        names = {name: [f"{name}_{seed}" for seed in (1, 2, 3)] for name in variants}
        write_summary(self.folder, names, "bf16_low", states, {"fp8_high": "bf16_high"})
        return self.folder

    def test_a_variant_with_its_own_baseline(self):
        code, output, errors = self.call(self.grid(), "--report", self.folder / "r", "--no-plot")
        self.assertEqual((code, errors), (0, ""))
        arms = {arm["name"]: arm for arm in json.loads((self.folder / "r" / "report.json").read_text())["arms"]}
        for name, base, gap in (
            ("fp8_low", "bf16_low", 0.001), ("bf16_high", "bf16_low", -0.5), ("fp8_high", "bf16_high", 0.001)
        ):  # fmt: skip
            self.assertEqual(arms[name]["baseline"], base)
            self.assertAlmostEqual(arms[name]["measures"][0]["gap"], gap, places=5)
        self.assertIn("fp8_high - bf16_high: within tolerance", output)
        text = (self.folder / "r" / "report.md").read_text()
        self.assertIn("fp8_high (3, with bf16_high)", text)
        self.assertIn("| key | bf16_high | fp8_high |", text)
        # A baseline of the command line applies to all variants.
        self.call(self.folder, "--baseline", "bf16_low", "--report", self.folder / "s", "--no-plot")
        arms = {arm["name"]: arm for arm in json.loads((self.folder / "s" / "report.json").read_text())["arms"]}
        self.assertAlmostEqual(arms["fp8_high"]["measures"][0]["gap"], -0.499, places=5)

    def test_a_variant_whose_own_baseline_has_not_finished(self):
        folder = self.grid({"bf16_high_1": "failed", "bf16_high_2": "diverged", "bf16_high_3": "failed"})
        code, output, errors = self.call(folder, "--report", folder / "r", "--no-plot")
        self.assertEqual((code, errors), (0, ""))
        lines = "fp8_high: inconclusive\n  no run can be compared: 3 finished, but no run of bf16_high."
        self.assertIn(lines, output)
        self.assertIn("fp8_low: within tolerance", output)

    def test_six_lines_look_different_and_the_rest_is_gray(self):
        many = [Arm(f"arm{k}", [run_of([3.0 + k] * 40, seed=1)]) for k in range(12)]
        content = types.SimpleNamespace(baseline=many[0], arms=many[1:])
        (axes,) = figures.loss_by_tokens(content).axes
        lines = [line for line in axes.lines if line.get_label().startswith("arm")]
        self.assertEqual(len({line.get_color() for line in lines}), 6)
        self.assertEqual([t.get_text() for t in axes.get_legend().get_texts()], [*(f"arm{k}" for k in range(6)), "6 more variants"])

    def test_another_baseline_and_tolerance(self):
        folder = self.experiment(shift=0.02)
        self.assertIn("fp8: outside tolerance", self.call(folder)[1])
        self.assertIn("fp8: within tolerance", self.call(folder, "--tolerance-nats", "0.1", "--tolerance-percent", "5")[1])
        code, output, _ = self.call(folder, "--baseline", "fp8")
        self.assertEqual(code, 0)
        self.assertIn("bf16: outside tolerance", output)
        self.assertIn("below (better)", output)

    def test_the_tolerance_names_its_source(self):
        folder = self.experiment()
        summary = json.loads((folder / "summary.json").read_text())

        def said(given, *options):
            summary["tolerance"].pop("given", None)
            summary["tolerance"] |= {} if given is None else {"given": given}
            (folder / "summary.json").write_text(json.dumps(summary))
            output = self.call(folder, "--report", folder / "r", "--no-plot", *options)[1]
            line = next(line for line in output.splitlines() if line.startswith("tolerance: "))
            self.assertIn(line.removeprefix("tolerance: "), (folder / "r" / "report.md").read_text())
            return line

        file = "set in the experiment's file"
        self.assertEqual(said([]), "tolerance: ±0.01 nats and ±0.25% (default)")
        self.assertEqual(said(["nats", "percent"]), f"tolerance: ±0.01 nats and ±0.25% ({file})")
        self.assertEqual(said(["percent"]), f"tolerance: ±0.01 nats (default) and ±0.25% ({file})")
        self.assertEqual(said(None), "tolerance: ±0.01 nats and ±0.25% (from summary.json)")
        self.assertEqual(said([], "--tolerance-nats", "0.1"), "tolerance: ±0.1 nats (--tolerance-nats) and ±0.25% (default)")
        runs = [folder / "bf16_seed1", folder / "fp8_seed1", "--report", folder / "s", "--no-plot"]
        self.assertIn("±0.25% (default)", self.call(*runs)[1])
        self.assertIn("±5% (--tolerance-percent)", self.call(*runs, "--tolerance-percent", "5")[1])

    def test_reads_summaries_that_call_the_tolerance_bar(self):
        folder = self.experiment()
        summary = json.loads((folder / "summary.json").read_text())
        del summary["tolerance"]
        summary["bar"] = {"nats": 0.02, "percent": 0.5}
        (folder / "summary.json").write_text(json.dumps(summary))
        output = self.call(folder, "--report", folder / "r", "--no-plot")[1]
        self.assertIn("tolerance: ±0.02 nats and ±0.5% (from summary.json)", output)

    def page(self, *arguments):
        self.assertEqual(self.call(*arguments, "--report", self.folder / "page", "--no-plot")[0], 0)
        return (self.folder / "page" / "report.md").read_text()

    def test_explains_tests(self):
        self.experiment()
        runs = [self.folder / f"{name}_seed{seed}" for name in ("bf16", "fp8") for seed in (1, 2, 3)]
        whole = self.page("--arm", "a", *runs[:3], "--arm", "b", *runs[3:])
        single = self.page(runs[0], runs[3])
        for text in ("p: no gap", "p: beyond tolerance", "minimum detectable gap", "3 seeds differ by"):
            self.assertIn(text, whole)
            self.assertNotIn(text, single)
        self.assertIn("a run minus the baseline of the same seed", single)

    def test_unknown_seeds_are_not_mentioned(self):
        for name, shift in (("a1", 0.0), ("a2", 0.0), ("b1", 0.01), ("b2", 0.01)):
            write_run(self.folder / name, seed=int(name[1]), shift=shift, noise=0.01)
            (self.folder / name / "run.json").unlink()
        arms = [self.folder / name for name in ("a1", "a2", "b1", "b2")]
        text = self.page("--arm", "a", *arms[:2], "--arm", "b", *arms[2:])
        for claim in ("same seed", "seeds differ", "two seeds"):
            self.assertNotIn(claim, text)
        for fact in ("in the given order", "2 runs differ by σ"):
            self.assertIn(fact, text)

    def test_a_run_that_is_never_above(self):
        write_run(self.folder / "a")
        write_run(self.folder / "b", shift=-0.5)
        text = self.page(self.folder / "a", self.folder / "b")
        self.assertIn("b: never above a (smoothed", text)
        self.assertNotIn("largest excess", text)

    def test_skipped_steps_of_an_arm_without_finite_norms(self):
        write_run(self.folder / "a")
        lines = (write_run(self.folder / "b") / "loss.csv").read_text().splitlines()
        rows = [line.split(",") for line in lines[1:]]
        for row in rows:
            row[5] = "nan"
        for row in rows[40:43]:
            row[10] = "1"  # skipped, with a loss
        (self.folder / "b" / "loss.csv").write_text("\n".join([lines[0], *map(",".join, rows)]) + "\n")
        text = self.page(self.folder / "a", self.folder / "b")
        self.assertIn("| b | - | - | - | 3 |", text)
        self.assertRegex(text, r"\| a \| 0\.\d+ \| 0\.\d+ \| \d+ \| 0 \|")
        self.assertIn("3 skipped steps", self.call(self.folder / "a", self.folder / "b", "--no-plot")[1])

    def test_a_branch_has_no_time_from_the_start(self):
        write_run(self.folder / "a")
        for name, step_ms in (("b", 100), ("c", 50)):
            lines = (write_run(self.folder / name, step_ms=step_ms) / "loss.csv").read_text().splitlines()
            (self.folder / name / "loss.csv").write_text("\n".join([lines[0], *lines[41:]]) + "\n")
        text = self.page(self.folder / "a", self.folder / "b")
        self.assertRegex(text, r"\| b \| 100\.0 \| 10,000 \| 1\.000 \| - \| 1\.00 GiB \|")
        self.assertNotIn("times as fast to equal loss", text)
        branches = self.page(self.folder / "b", self.folder / "c")  # of one step, so they are compared since then
        self.assertRegex(branches, r"in 3\.0 s, b in 6\.0 s: \*\*2\.000 times as fast to equal loss")

    def test_no_claim_about_unmeasured_saturation(self):
        write_run(self.folder / "a")
        for name, shares in (("b", {}), ("c", {"saturated": 0.0, "flushed": 0.0})):
            write_run(self.folder / name)
            metrics = self.folder / name / "metrics.jsonl"
            records = [json.loads(line) for line in metrics.read_text().splitlines()]
            operand = {"linear": "x", "role": "input", "format": "e4m3", "amax": 1.0, **shares}
            metrics.write_text("".join(json.dumps(record | {"fp8": [operand]}) + "\n" for record in records))
        claim = "No value was saturated or flushed to zero"
        self.assertNotIn(claim, self.page(self.folder / "a", self.folder / "b"))
        self.assertIn(claim, self.page(self.folder / "a", self.folder / "c"))

    def test_runs_on_the_command_line(self):
        self.experiment()
        runs = [self.folder / f"{name}_seed{seed}" for name in ("bf16", "fp8") for seed in (1, 2, 3)]
        code, output, errors = self.call(
            "--arm", "a", *runs[:3], "--arm", "b", *runs[3:], "--report", self.folder / "r", "--no-plot"
        )
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("b: within tolerance", output)
        self.assertFalse(list((self.folder / "r").glob("*.png")))
        code, output, _ = self.call("--arm", "a", *runs[:2], "--arm", "b", runs[2], "--report", self.folder / "other")
        self.assertEqual(code, 0)
        code, output, _ = self.call(runs[0], runs[3], "--band", *runs[1:3], "--report", self.folder / "r2")
        self.assertEqual(code, 0)
        self.assertIn("fp8_seed1: inconclusive", output)
        text = (self.folder / "r2" / "report.md").read_text()
        self.assertIn(" (steps only)", text)
        self.assertIn("Interval: 95% of a circular block bootstrap", text)
        self.assertNotIn("Interval: one pair", text)

    def test_different_lengths_and_sparse_logs(self):
        write_run(self.folder / "a", steps=300, step_ms=50)
        write_run(self.folder / "b", steps=100, every=5, shift=0.004)
        code, output, _ = self.call(self.folder / "a", self.folder / "b", "--report", self.folder / "r")
        self.assertEqual(code, 0)
        numbers = json.loads((self.folder / "r" / "report.json").read_text())
        self.assertAlmostEqual(numbers["arms"][0]["measures"][0]["gap"], 0.004, places=5)
        self.assertAlmostEqual(numbers["arms"][0]["measures"][1]["gap"], 0.004, places=5)
        self.assertIn("validation loss at 60 thousand tokens", output)
        # Time and gradient norms of the longer run are limited to the tokens of the shorter one.
        text = (self.folder / "r" / "report.md").read_text()
        self.assertEqual(text.count("All runs up to 100 thousand tokens, the end of the shortest run."), 2)
        times = {line.split(" | ")[0]: line.split(" | ")[4] for line in text.splitlines() if " GiB |" in line}
        self.assertEqual(times, {"| a": "5.0 s", "| b": "10.0 s"})  # 100 steps of 50 and of 100 ms

    def test_mistakes_are_one_line_and_exit_2(self):
        folder = self.experiment()
        run = folder / "bf16_seed1"
        for arguments, expected in (
            (["--arm", "a", run], "--arm: nothing to compare"),
            (["--arm", "a", run, "--arm", "b"], "has no runs"),
            (["--arm", "a", run, "--arm", "a", run], "names must differ"),
            ([run, "--arm", "a", run, "--arm", "b", run], "all runs must belong to arms"),
            ([folder, "--baseline", "none"], "none is not a variant; the variants are bf16, fp8"),
            ([run, run, "--report", folder / "r"], "two have the name bf16_seed1"),
            ([run, folder / "fp8_seed1", "--report", folder / "r", "--tolerance-nats", "0"], "--tolerance-nats"),
            ([run, folder / "fp8_seed1", "--report", run / "loss.csv" / "x"], "cannot be written"),
        ):
            code, _, errors = self.call(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(expected, errors)
            self.assertEqual(errors.count("\n"), 1, errors)
        write_summary(folder, {"bf16": ["bf16_seed1"], "fp8": ["fp8_seed1"]}, "bf16", {"fp8_seed1": "failed"})
        self.assertIn("only runs of the baseline have finished", self.call(folder)[2])

    def test_message_without_scipy(self):
        folder = self.experiment()
        code = "import sys; sys.modules['scipy'] = None; import compare_loss; sys.exit(compare_loss.main(sys.argv[1:]))"
        runs = [str(folder / "bf16_seed1"), str(folder / "fp8_seed1")]
        done = [
            subprocess.run([sys.executable, "-B", "-c", code, *a], cwd=ROOT / "scripts", capture_output=True, text=True)
            for a in ([*runs, "--report", str(folder / "r")], [*runs, "--no-plot"])
        ]
        self.assertEqual((done[0].returncode, done[0].stderr.count("\n")), (2, 1), done[0].stderr)
        self.assertIn("apt install python3-scipy", done[0].stderr)
        self.assertEqual(done[1].returncode, 0, done[1].stderr)  # the short comparison does not need scipy


class Blocks(unittest.TestCase):
    def test_markdown_and_html(self):
        table = blocks.Table(["a", "b"], [["x|y", "1.5"], ["<z>", "-2%"]])
        self.assertEqual(blocks.markdown([table]), "| a | b |\n| --- | --- |\n| x\\|y | 1.5 |\n| <z> | -2% |\n")
        page = blocks.html_page("t & t", [table, blocks.Paragraph("**b** `c<d`")])
        self.assertIn("<title>t &amp; t</title>", page)
        self.assertIn('<td>&lt;z&gt;</td><td class="n">-2%</td>', page)
        self.assertIn("<p><strong>b</strong> <code>c&lt;d</code></p>", page)


if __name__ == "__main__":
    unittest.main()
