"""Tests of scripts/report/statistics.py and details.py against numbers computed by hand or from tables."""

import math
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
try:
    import numpy as np
    import scipy  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
from report import details, statistics
from report.runs import Run
from report.analysis import make_pair


def run_of(loss, seconds=None, norms=None, tokens=None):
    loss = np.array(loss, float)
    tokens = np.arange(1.0, len(loss) + 1) if tokens is None else np.array(tokens, float)
    nothing = np.array([])
    return Run("r", tokens, loss, nothing, nothing, grad_norm=nothing if norms is None else np.array(norms, float),
               seconds=nothing if seconds is None else np.array(seconds, float))  # fmt: skip


class Student(unittest.TestCase):
    """Gaps 1, 2, 3: mean 2, standard deviation 1, standard error 1 / sqrt(3) = 0.57735, two degrees of freedom. With
    two degrees t has a closed form: P(T > t) = 1/2 - t / (2 sqrt(2 + t^2))."""

    def setUp(self):
        self.e = statistics.paired([1.0, 2.0, 3.0])

    @staticmethod
    def tail(t):
        return 0.5 - t / (2 * math.sqrt(2 + t * t))

    def test_interval(self):
        self.assertEqual((self.e.mean, self.e.df, self.e.runs, self.e.spread), (2.0, 2, 3, 1.0))
        # t(0.975, 2) = 4.30265 in every table; 4.30265 / sqrt(3) = 2.48414.
        low, high = self.e.interval()
        self.assertAlmostEqual(low, 2 - 2.48414, places=5)
        self.assertAlmostEqual(high, 2 + 2.48414, places=5)

    def test_difference(self):
        # t = 2 sqrt(3) = 3.4641; p = 2 tail = 1 - 3.4641 / sqrt(14) = 0.07418.
        self.assertAlmostEqual(self.e.difference_p(), 2 * self.tail(2 * math.sqrt(3)))
        self.assertAlmostEqual(self.e.difference_p(), 0.07418, places=5)
        self.assertAlmostEqual(statistics.paired([-1, -2, -3]).difference_p(), 0.07418, places=5)

    def test_equivalence(self):
        # Tolerance 4: t = (4 - 2) sqrt(3) = 3.4641, one tail: 0.03709. The mean exceeds a tolerance of 1: t is
        # negative.
        self.assertAlmostEqual(self.e.equivalence_p(4.0), 0.03709, places=5)
        self.assertAlmostEqual(self.e.equivalence_p(1.0), 1 - self.tail(math.sqrt(3)))
        self.assertAlmostEqual(self.e.equivalence_p(2.0), 0.5)
        self.assertAlmostEqual(self.e.beyond_p(1.0), self.tail(math.sqrt(3)))

    def test_equivalence_and_interval_agree(self):
        edge = self.e.interval()[1]
        self.assertAlmostEqual(self.e.equivalence_p(edge), 0.025)
        self.assertLess(self.e.equivalence_p(edge + 0.01), 0.025)
        self.assertGreater(self.e.equivalence_p(edge - 0.01), 0.025)

    def test_equal_runs(self):
        same, shifted = statistics.paired([0.0, 0.0]), statistics.paired([0.5, 0.5])
        self.assertEqual(
            (same.difference_p(), same.equivalence_p(0.1), same.interval(), same.smallest_gap()),
            (1.0, 0.0, (0.0, 0.0), 0.0),
        )
        self.assertEqual((shifted.difference_p(), shifted.equivalence_p(0.1), shifted.beyond_p(0.1)), (0.0, 1.0, 0.0))

    def test_smallest_gap(self):
        # With very many runs t is normal: (1.95996 + 0.84162) standard errors.
        many = statistics.Estimate(0.0, 1.0, 1e7, 2, 1.0)
        self.assertAlmostEqual(many.smallest_gap(), 2.80158, places=3)
        # A paired t test of five has power 0.8 at an effect of 1.682 standard deviations.
        five = statistics.Estimate(0.0, 1 / math.sqrt(5), 4, 5, 1.0)
        self.assertAlmostEqual(five.smallest_gap(), 1.682, places=2)

    def test_power_at_the_smallest_gap(self):
        gap = statistics.Estimate(0.0, 1 / math.sqrt(4), 3, 4, 1.0).smallest_gap()
        draws = np.random.default_rng(1).normal(gap, 1.0, (20000, 4))
        t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / 2)
        self.assertAlmostEqual(float(np.mean(t > 3.18245)), 0.8, delta=0.01)  # t(0.975, 3)

    def test_runs_needed(self):
        # Mean 0, spread 1: t(0.975, 5) / sqrt(6) = 2.57058 / 2.44949 = 1.0494, t(0.975, 6) / sqrt(7) = 0.9248.
        self.assertEqual(statistics.runs_needed(0.0, 1.0, 1.05), 6)
        self.assertEqual(statistics.runs_needed(0.0, 1.0, 1.0), 7)
        self.assertEqual(statistics.runs_needed(-0.5, 1.0, 1.5), 7)
        self.assertIsNone(statistics.runs_needed(1.0, 1.0, 1.0))
        self.assertIsNone(statistics.runs_needed(0.0, 1.0, 1e-6))

    def test_welch(self):
        # {1, 2, 3} and {4, 6, 8, 10}: variances 1 and 20/3; squared errors 1/3 + 5/3 = 2;
        # df = 4 / (1/9/2 + 25/9/3) = 4 / 0.981481 = 4.07547.
        e = statistics.unpaired([1, 2, 3], [4, 6, 8, 10])
        self.assertAlmostEqual(e.mean, 5.0)
        self.assertAlmostEqual(e.error, math.sqrt(2))
        self.assertAlmostEqual(e.df, 4.07547, places=5)
        self.assertEqual(e.runs, 3)


class Bootstrap(unittest.TestCase):
    def test_autocorrelation(self):
        # 1, -1, 1, -1: sums of products 4, -3, 2, -1.
        np.testing.assert_allclose(statistics.autocorrelation([1, -1, 1, -1]), [1, -0.75, 0.5, -0.25])
        np.testing.assert_allclose(statistics.autocorrelation([2, 2, 2]), [1, 0, 0])

    def test_block_length(self):
        rng = np.random.default_rng(0)
        self.assertEqual(statistics.block_length(np.tile([1.0, -1.0], 500)), 10)  # the cube root
        slow = np.repeat(rng.normal(size=50), 40)  # neighbors are equal for 40 points
        self.assertGreaterEqual(statistics.block_length(slow), 30)
        self.assertEqual(statistics.block_length(np.linspace(0, 1, 40)), 10)  # at most a quarter

    def test_all_samples_of_two_points(self):
        # Blocks of 1 of {0, 1}: means 0, 1/2, 1 with chances 1/4, 1/2, 1/4; the 2.5% quantiles are 0 and 1.
        self.assertEqual(statistics.block_bootstrap([0.0, 1.0], block=1), (0.0, 1.0))
        # With a block as long as the series, all samples are rotations of the series.
        low, high = statistics.block_bootstrap([1.0, 2.0, 6.0], block=3)
        self.assertAlmostEqual(low, 3.0)
        self.assertAlmostEqual(high, 3.0)

    def test_independent_points_have_the_standard_error(self):
        values = np.random.default_rng(3).normal(5, 2, 4000)
        low, high = statistics.block_bootstrap(values)
        self.assertAlmostEqual((low + high) / 2, values.mean(), delta=0.01)
        self.assertAlmostEqual((high - low) / 2, 1.96 * 2 / math.sqrt(4000), delta=0.01)

    def test_correlated_neighbors_widen_it(self):
        # Every value 25 times: the number of independent points is 25 times smaller, so the interval is 5 times as
        # wide.
        values = np.repeat(np.random.default_rng(4).normal(0, 1, 400), 25)
        low, high = statistics.block_bootstrap(values, block=200)
        self.assertAlmostEqual((high - low) / 2, 1.96 / math.sqrt(400), delta=0.02)
        naive = statistics.block_bootstrap(values, block=1)
        self.assertLess(naive[1] - naive[0], (high - low) / 4)


class McNemar(unittest.TestCase):
    def test_exact(self):
        # 1 and 5: P(at most 1 head in 6) = 7 / 64, two-sided 14 / 64. 0 and 6: 2 / 64.
        self.assertAlmostEqual(statistics.mcnemar(1, 5), 14 / 64)
        self.assertAlmostEqual(statistics.mcnemar(6, 0), 2 / 64)
        self.assertEqual(statistics.mcnemar(3, 3), 1.0)
        self.assertEqual(statistics.mcnemar(0, 0), 1.0)


class PairedDocuments(unittest.TestCase):
    def test_two_documents_by_hand(self):
        # 0 and 1 about 1/2: a standard error of sqrt(2 * 1/2) / 2 = 1/2, and t of one degree of freedom, 12.706.
        mean, low, high, p = statistics.paired_documents([0, 1])
        self.assertEqual(mean, 0.5)
        self.assertAlmostEqual(low, 0.5 - 12.7062047362 / 2)
        self.assertAlmostEqual(high, 0.5 + 12.7062047362 / 2)
        self.assertAlmostEqual(p, 0.5)  # t = 1 with one degree of freedom is a quarter of a turn

    def test_few_documents_are_not_significant(self):
        # Five documents with the same sign: a fair coin gives that in 2 of 32 cases, and p is not much smaller.
        p = statistics.paired_documents([1, 2, 3, 4, 5])[3]
        self.assertGreater(p, 0.01)
        mean, low, high, p = statistics.paired_documents([0.3])
        self.assertEqual(mean, 0.3)
        self.assertTrue(all(math.isnan(x) for x in (low, high, p)))

    def test_equal_documents(self):
        self.assertEqual(statistics.paired_documents([0.5] * 8), (0.5, 0.5, 0.5, 0.0))
        self.assertEqual(statistics.paired_documents([0.0] * 4), (0.0, 0.0, 0.0, 1.0))

    def test_weights_make_a_ratio_of_sums(self):
        # -3 for 1 word and +5 for 9 words: +2 in 10 words; residuals are -3.2 and 3.2, the error sqrt(2 * 2) * 3.2 /
        # 10.
        mean, low, high, _ = statistics.paired_documents([-3, 5], [1, 9])
        self.assertAlmostEqual(mean, 0.2)
        self.assertAlmostEqual(high - mean, 12.7062047362 * 0.64)
        self.assertAlmostEqual(mean - low, 12.7062047362 * 0.64)

    def test_as_scipy(self):
        from scipy import stats

        values = np.random.default_rng(3).normal(0.1, 1, 200)
        mean, low, high, p = statistics.paired_documents(values)
        other = stats.ttest_1samp(values, 0)
        self.assertAlmostEqual(p, other.pvalue)
        expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        self.assertAlmostEqual(low, expected[0])
        self.assertAlmostEqual(high, expected[1])


class Details(unittest.TestCase):
    def test_time_to_equal_loss(self):
        # The run reaches 2.0 between 20 s (2.5) and 30 s (1.5): at 25 s. The baseline ends at 2.0 after 40 s.
        pair = make_pair(run_of([4, 3, 2.5, 2], [10, 20, 30, 40]), run_of([4, 2.5, 1.5, 1], [10, 20, 30, 40]))
        found = details.time_to_equal_loss(pair, window=1)
        self.assertEqual((found["loss"], found["baseline"], found["run"], found["speedup"]), (2.0, 40.0, 25.0, 1.6))
        # A run that ends above: the target is its lowest loss, 3.0.
        pair = make_pair(run_of([4, 3, 2], [10, 20, 30]), run_of([4, 3.5, 3], [5, 10, 15]))
        found = details.time_to_equal_loss(pair, window=1)
        self.assertEqual((found["loss"], found["baseline"], found["run"]), (3.0, 20.0, 15.0))
        self.assertIsNone(details.time_to_equal_loss(make_pair(run_of([1]), run_of([1]))))
        # A run that never gets below its first loss reaches no equal loss.
        pair = make_pair(run_of([4, 3, 2], [10, 20, 30]), run_of([4, 30, 9], [1, 2, 3]))
        self.assertIsNone(details.time_to_equal_loss(pair, window=1))

    def test_gradients(self):
        norms = np.full(200, 2.0)
        norms[50], norms[120] = 11.0, 9.0  # above and below five times the median around
        norms[190] = 6.0
        found = details.gradients(run_of(np.ones(200), norms=norms))
        # The last tenth: tokens 180.1 to 200, 20 points, of which one is 6.
        self.assertEqual((found["median"], found["spikes"]), (2.0, 1))
        self.assertAlmostEqual(found["p95"], np.quantile([2.0] * 19 + [6.0], 0.95))
        self.assertIsNone(details.gradients(run_of([1, 2])))

    def test_worst_operands(self):
        def operand(linear, saturated, flushed):
            return {
                "linear": linear,
                "role": "input",
                "format": "e4m3",
                "saturated": saturated,
                "flushed": flushed,
                "sqnr": 30 * saturated,
            }

        records = [[operand("a", 0.1, 0.0), operand("b", 0.0, 0.5)], [operand("a", 0.0, 0.2), operand("b", 0.3, 0.0)]]
        self.assertEqual(details.worst_operands(records, 1), [("b", "input", "e4m3", 0.3, 0.5)])
        self.assertEqual(details.other_numbers(records)["sqnr"][2], 9.0)

    def test_devices_of_pairs(self):
        def arm(name, *devices):
            runs = [SimpleNamespace(seed=s, record={"starts": [{"device": d}]}) for s, d in enumerate(devices, 1)]
            return SimpleNamespace(name=name, runs=runs)

        base = arm("bf16", "CPU", "H200", "H200")
        self.assertEqual(details.other_differences(base, arm("fp8", "CPU", "H200", "H200")), [])
        self.assertEqual(
            details.other_differences(base, arm("fp8", "H200", "CPU", "H200")),
            ["device: CPU or H200, not the same in the pairs of seed 1, 2"],
        )
        self.assertEqual(
            details.other_differences(base, arm("fp8", "CPU", "CPU")), ["device: CPU, H200 in bf16, CPU in fp8"]
        )


if __name__ == "__main__":
    unittest.main()
