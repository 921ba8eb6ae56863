"""Tests of the report's arithmetic: pairs, verdicts, and the figures of a comparison."""

import math
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
try:
    import matplotlib  # noqa: F401
    import numpy as np
    import scipy  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
from report import UserError, analysis, figures
from report.analysis import Arm, Tolerance, compare_arms
from report.runs import Run


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
            ends = [(line, line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 2]
            intervals = [line for line, y in ends if y[0] == y[1] == 0]
            self.assertEqual(bool(intervals) and intervals[0].get_marker() == "None", interval)
            texts = [text.get_text() for text in figure.texts]
            self.assertEqual(any("no interval for fewer than three pairs" in text for text in texts), not interval)
            self.assertIn("a title", texts)

    def test_many_arms_are_sorted_and_intervals_without_zero_are_marked(self):
        names = [f"arm{k}" for k in range(8)]
        base = Arm("b", [run_of([3.0 + seed] * 40, seed) for seed in (1, 2, 3)])
        shifts = {name: 0.002 * k for k, name in enumerate(names)}
        found = [
            compare_arms(
                base, Arm(n, [run_of([3.0 + s + shifts[n] + 1e-3 * s] * 40, s) for s in (1, 2, 3)]), Tolerance()
            )
            for n in names
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
            baseline=Arm("base", [run_of(np.full(steps, 4.0), 1)]),
            arms=[],
            tolerance=Tolerance(),
            title="GPT",
            epochs=[50.0, 100.0],
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
        self.assertEqual(found.pairs, [])
        self.assertFalse(arms({None: 3.0}, {None: 3.001}).groups)
        # One run each with different seeds: the spread is unknown.
        single = arms({1: 3.0}, {2: 3.001})
        self.assertFalse(single.groups)
        self.assertEqual(single.verdict, analysis.INCONCLUSIVE)

    def test_short_runs_are_not_compared(self):
        """The runs are 0.05 above the baseline from the 30th step on; one ended before that."""
        for seeds in ((1, 2, 3, 4), (5, 6, 7, 8)):  # pairs, groups
            base = Arm("b", [run_of([3.0 + s * 1e-5] * 100, s) for s in (1, 2, 3, 4)])
            runs = [run_of([3.0 + s * 1e-5] * 29 + [3.05 + s * 2e-5] * 71, s, label=f"x{s}") for s in seeds]
            runs[1] = run_of([9.0] * 20, seeds[1], label="second")
            found = compare_arms(base, Arm("x", runs), Tolerance())
            self.assertEqual((found.verdict, found.groups), (analysis.OUTSIDE, seeds[0] == 5))
            self.assertAlmostEqual(found.measures[0].mean, 0.05, places=3)
            name = "second" if found.groups else "seed 2"
            self.assertIn(f"; too short to compare: {name} (20 of 100 tokens)", found.measures[0].why)
        one = compare_arms(Arm("b", base.runs[:2]), Arm("x", runs[:2]), Tolerance())  # one run of the group is left
        self.assertEqual((one.verdict, len(one.pairs)), (analysis.INCONCLUSIVE, 1))

    def test_groups_need_three_runs_each(self):
        base, other = {1: 3.0, 2: 3.0001, 3: 3.0002}, {7: 3.0, 8: 3.0001, 9: 3.0002}
        self.assertEqual(arms(base, other).verdict, analysis.WITHIN)
        del other[9]
        two = arms(base, other)
        self.assertEqual((two.verdict, two.measures[0].verdict), (analysis.INCONCLUSIVE, analysis.INCONCLUSIVE))
        self.assertIn("two runs may agree by chance: a verdict needs three in each group", two.measures[0].why)

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
        for other, candidate, verdict in (
            (base, arm("x", {10.0: 3.2}, [5.0]), analysis.WITHIN),  # recovered
            # The baseline's, too.
            (arm("b", {5.0: 3.5}, [10.0]), arm("x", {5.0: 3.5}, [10.0]), analysis.INCONCLUSIVE),
            # Beyond the end of the baseline.
            (arm("b", {7.0: 3.5}, steps=7), arm("x", {7.0: 3.5}, [10.0]), analysis.WITHIN),
        ):
            self.assertEqual(compare_arms(other, candidate, Tolerance()).verdict, verdict)

    def test_no_verdict_from_records_before_the_runs_differ(self):
        """After 60% of its tokens the run logs at other token counts, as after a rollback, and is 0.1 above."""
        tokens = np.arange(1.0, 101)
        other = tokens + 0.5 * (tokens > 60)

        def arm(name, tokens, gap, valid):
            valid, loss = np.array(valid), 3.0 + gap * (tokens > 60)
            return Arm(name, [Run("r", tokens, loss + s * 1e-4, valid, 0 * valid + 3, seed=s) for s in (1, 2, 3)])

        base = arm("b", tokens, 0.0, [50.0, 100.0])
        found = compare_arms(base, arm("x", other, 0.1, [50.0, 100.5]), Tolerance())
        self.assertEqual((found.verdict, found.measures[0].verdict), (analysis.OUTSIDE, analysis.OUTSIDE))
        self.assertEqual([(pair.tokens[-1], pair.exact) for pair in found.pairs], 3 * [(100.0, False)])
        self.assertAlmostEqual(found.measures[0].mean, 0.1)
        # Common records only at the end.
        other[-1] = 100.0
        found = compare_arms(base, arm("x", other, 0.1, [50.0, 100.5]), Tolerance())
        self.assertGreater(int(found.pairs[0].tail.sum()), 8)

    def test_no_verdict_without_a_common_validation_in_the_last_tenth(self):
        def arm(name, *valid, steps=100):
            runs = [run_of([3.0 + s * 1e-4] * steps, s) for s in range(1, 4)]
            for run, at in zip(runs, valid):
                run.valid_tokens, run.valid_loss = np.array(at, float), np.array([3.0 + run.seed * 1e-5] * len(at))
            return Arm(name, runs)

        late, early, none, different = [50, 100], [50, 101], [], "no validation loss at the same token count"
        base = arm("b", late, late, late)
        for candidate, verdict, measures, text in (
            (arm("x", late, late, late), analysis.WITHIN, 2, None),
            (arm("x", early, late, late), analysis.INCONCLUSIVE, 2, "at 50% of the tokens that all runs have"),
            (arm("x", late, none, late), analysis.INCONCLUSIVE, 1, different),
        ):
            found = compare_arms(base, candidate, Tolerance())
            self.assertEqual((found.verdict, len(found.measures)), (verdict, measures))
            if text:
                self.assertIn(text, found.measures[-1].why)
        without = compare_arms(arm("b", none, none, none), arm("x", none, none, none), Tolerance())
        self.assertEqual(without.verdict, analysis.WITHIN)
        shorter = compare_arms(base, arm("x", *3 * [[50]], steps=50), Tolerance())
        self.assertEqual(shorter.verdict, analysis.WITHIN)
        self.assertIn("measured up to 50 tokens, 50% of the longest run", shorter.measures[0].why)

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
        reason = "no verdict: the runs differ in training.micro_batch_size, so the samples may differ"
        self.assertIn(reason, found.measures[1].why)
        # The same number of samples in other microbatches.
        equal = dict(training__eval_microbatches="5", training__micro_batch_size="8")
        found = compare_arms(base, arm("x", 3.0, 9.0, **equal), Tolerance(share=1.0))
        self.assertEqual(found.verdict, analysis.OUTSIDE)
        longer = arm("x", 3.0, 3.0, **small, model__seq_length="64")
        self.assertIn("model.seq_length", compare_arms(base, longer, Tolerance()).measures[1].why)
        sides = [arm(name, 3.0, 3.0, data__overlong=name) for name in ("truncate", "drop")]
        self.assertIn("the runs differ in data.overlong", compare_arms(*sides, Tolerance()).measures[1].why)

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

    def test_no_verdict_for_lost_moments(self):
        def arm(name, *resets):
            runs = []
            for seed in (1, 2, 3):
                runs.append(run_of([3.0 + seed + seed * 1e-5] * 40, seed))
                runs[-1].record = {"starts": [{"zero_moments_after": step} if step else {} for step in resets]}
            return Arm(name, runs)

        base = arm("base", 0, 0)
        # The first start may begin with the weights of another run, and repeats that if it is killed before it saves.
        for resets in ((0,), (10,), (10, 0), (10, 10)):
            self.assertEqual(compare_arms(base, arm("x", *resets), Tolerance()).verdict, analysis.WITHIN, resets)
        for resets in ((0, 20), (10, 20), (10, 10, 20)):
            found = compare_arms(base, arm("x", *resets), Tolerance())
            self.assertEqual(found.verdict, analysis.INCONCLUSIVE, resets)
            self.assertIn("no verdict: 3 of the runs resumed without Adam moments; ", found.measures[0].why)

    def test_largest_excess(self):
        # Two seeds of the baseline differ by at most 0.5; the run is 0.7 above its baseline in one step (window 1).
        first, second = np.full(40, 3.0), np.full(40, 3.0)
        second[10] = 3.5
        run = first.copy()
        run[20] = 3.7
        base = Arm("b", [run_of(first, 1), run_of(second, 2)])
        found = compare_arms(base, Arm("x", [run_of(run, 1)]), Tolerance()).excess
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
        runs = [run_of([3.0] * 20), run_of([4.0] * 20), run_of([5.0] * 19), run_of([9.0] * 5)]  # the last is too short
        np.testing.assert_allclose(analysis.seed_spread(Arm("b", runs)), (1.0, 3)
        )
        self.assertTrue(math.isnan(analysis.seed_spread(Arm("b", [run_of([3.0])]))[0]))

    def test_six_lines_look_different_and_the_rest_is_gray(self):
        many = [Arm(f"arm{k}", [run_of([3.0 + k] * 40, seed=1)]) for k in range(12)]
        content = types.SimpleNamespace(baseline=many[0], arms=many[1:])
        (axes,) = figures.loss_by_tokens(content).axes
        lines = [line for line in axes.lines if line.get_label().startswith("arm")]
        self.assertEqual(len({line.get_color() for line in lines}), 6)
        texts = [t.get_text() for t in axes.get_legend().get_texts()]
        self.assertEqual(texts, [*(f"arm{k}" for k in range(6)), "6 more variants"])


if __name__ == "__main__":
    unittest.main()
