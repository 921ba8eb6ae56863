"""Tests of the short comparison of scripts/compare_loss.py: curves with known gaps, damaged logs, the noise band."""

import contextlib
import dataclasses
import io
import json
import os
import math
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
try:
    import matplotlib  # noqa: F401
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import compare_loss
from folder_testing import InFolder
from report import UserError, table
from report.curves import (
    align,
    band_of,
    common_valid_tokens,
    compare,
    noise_band,
    smooth,
    tail_mask,
    verdicts,
)
from report.plots import gap_before
from report.runs import Run, read_run


def make_run(loss, label="run", batch=100, valid=()):
    tokens = batch * np.arange(1.0, len(loss) + 1)
    valid = np.array(valid, float)
    return Run(label, tokens, np.array(loss, float), tokens[-len(valid) :] if len(valid) else valid, valid)


class Reading(InFolder):
    def test_folder_validation_skipped_and_repeated_steps(self):
        self.write(
            "bf16/loss.csv",
            "step,consumed_tokens,loss,lr,valid_loss\n1,100,4.0,1e-3,\n2,200,nan,1e-3,\n"
            "3,300,9.0,1e-3,\n3,300,3.0,1e-3,3.25\n\n4,400,2.5,1e-3,\n",
        )
        run = read_run(self.folder / "bf16")
        self.assertEqual(run.label, "bf16")
        self.assertEqual(run.tokens.tolist(), [100, 300, 400])
        self.assertEqual(run.loss.tolist(), [4.0, 3.0, 2.5])
        self.assertEqual((run.valid_tokens.tolist(), run.valid_loss.tolist()), ([300], [3.25]))
        self.assertEqual(run.dropped, 1)

    def test_last_line_of_a_run_that_still_writes(self):
        run = read_run(self.write("x.csv", "step,consumed_tokens,loss\n1,100,4.0\n2,200"))
        self.assertEqual(run.tokens.tolist(), [100])
        self.assertEqual(run.label, "x")

    def test_the_slow_first_step_of_a_resume_counts_once(self):
        rows = "1,10,4,30000\n50,500,4,500\n81,810,4,30000\n100,1000,4,500\n"
        self.write("a/loss.csv", "step,consumed_tokens,loss,step_ms\n" + rows)
        self.write("a/run.json", '{"config": {"logging.every": "50"}}')
        self.assertEqual(read_run(self.folder / "a").seconds.tolist(), [30, 54.5, 99.5, 109])

    def test_byte_order_mark(self):
        self.write("run/loss.csv", "\ufeffconsumed_tokens,loss\n100,4.0\n")
        self.assertEqual(read_run(self.folder / "run").tokens.tolist(), [100])
        self.write("run/metrics.jsonl", '\ufeff{"step": 1, "consumed_tokens": 100, "loss": 3.0}\n')
        self.write("run/run.json", '\ufeff{"config": {}}')
        (self.folder / "run" / "loss.csv").unlink()
        self.assertEqual(read_run(self.folder / "run").loss.tolist(), [3.0])

    def test_errors_name_file_and_line(self):
        head = "step,consumed_tokens,loss\n"
        cases = {
            "": "is empty",
            "step,loss\n1,2\n": "column consumed_tokens is missing (found: step, loss)",
            head: "no row with a finite loss",
            head + '"' + "x" * 200_000: "is not a CSV file",
            head + "1,100,abc\n": "line 2: loss is 'abc'",
            head + "1,,2.0\n": "line 2: consumed_tokens is empty",
            head + "1,100\n2,200,3.0\n": "line 2: 2 fields where the header has 3",
        }
        for text, expected in cases.items():
            with self.assertRaises(UserError, msg=text) as caught:
                read_run(self.write("bad.csv", text))
            self.assertIn(expected, str(caught.exception))
            self.assertIn("bad.csv", str(caught.exception))
        with self.assertRaisesRegex(UserError, "no such file"):
            read_run(self.folder / "absent")
        with self.assertRaisesRegex(UserError, "loss.csv: no such file"):
            read_run(self.folder)


class Arithmetic(unittest.TestCase):
    def test_smooth(self):
        np.testing.assert_allclose(smooth([1, 2, 6, 4, 2], 1), [1, 2, 6, 4, 2])
        np.testing.assert_allclose(smooth([1, 2, 6, 4, 2], 3), [1, 3, 4, 4, 3])
        np.testing.assert_allclose(smooth(np.full(9, 2.0), 101), np.full(9, 2.0))
        np.testing.assert_allclose(smooth([5.0], 7), [5.0])
        line = np.arange(20.0)
        np.testing.assert_allclose(smooth(line, 5)[:18], line[:18])  # no bias on a slope, except at the end

    def test_align_takes_common_tokens(self):
        base = make_run([5, 4, 3, 2])
        other = make_run([50, 40, 30, 20, 10])
        tokens, a, b, exact = align(base, other)
        self.assertEqual(
            (tokens.tolist(), a.tolist(), b.tolist()), ([100, 200, 300, 400], [5, 4, 3, 2], [50, 40, 30, 20])
        )
        self.assertTrue(exact)

    def test_align_interpolates_other_batch_sizes(self):
        base = make_run([8, 7, 6, 5, 4], batch=100)
        other = make_run([8, 5, 2], batch=150)  # 150, 300, 450: only 300 is common
        tokens, a, b, exact = align(base, other)
        self.assertFalse(exact)
        self.assertEqual((tokens.tolist(), a.tolist()), ([200, 300, 400], [7, 6, 5]))
        np.testing.assert_allclose(b, [7, 5, 3])
        with self.assertRaisesRegex(UserError, "shares no range"):
            align(make_run([1, 2, 3], batch=1), make_run([1, 2, 3], batch=1000))

    def test_tail_is_the_last_tenth_of_the_tokens(self):
        self.assertEqual(tail_mask(np.arange(0.0, 101.0)).sum(), 11)
        self.assertEqual(tail_mask(np.array([7.0])).sum(), 1)

    def test_compare_finds_known_gaps(self):
        base = 2.0 + np.exp(-np.arange(200) / 20)
        factor = np.full(200, 1.01)
        factor[50] = 0.9
        factor[-20:] = 1.02
        result = compare(
            make_run(base, valid=[2.0, 4.0]), make_run(base * factor, "fp8", valid=[2.0, 4.1]), window=1
        )
        self.assertAlmostEqual(result["mean_gap"], (179 * 0.01 - 0.1 + 20 * 0.02) / 200)
        self.assertAlmostEqual(result["mean_abs_gap"], (179 * 0.01 + 0.1 + 20 * 0.02) / 200)
        self.assertAlmostEqual(result["max_abs_gap"], 0.1)
        self.assertEqual(result["max_abs_gap_tokens"], 5100)
        self.assertAlmostEqual(result["last_tenth_gap"], 0.02)
        self.assertAlmostEqual(result["final_loss"], base[-1] * 1.02)
        self.assertAlmostEqual(result["valid_gap"], 0.025)
        smoothed = compare(make_run(base), make_run(base * factor), window=21)
        self.assertLess(smoothed["max_abs_smoothed_gap"], 0.03)
        self.assertTrue(math.isnan(smoothed["valid_gap"]))

    def test_band_and_verdict(self):
        low, high = band_of([0.0, 0.01, 0.02], "sigma", 2.0)
        np.testing.assert_allclose([low, high], [-0.01, 0.03])
        self.assertEqual(band_of([0.0, 0.01, -0.02], "minmax", 2.0), (-0.02, 0.01))
        base = make_run(np.full(100, 4.0), valid=[4.0])
        seeds = [make_run(np.full(100, 4.0 * f), valid=[4.0 * f]) for f in (1.01, 1.02)]
        band = noise_band(base, seeds, window=3)
        self.assertEqual(band["runs"], 3)
        np.testing.assert_allclose(band["last_tenth"], [-0.01, 0.03])
        np.testing.assert_allclose(band["valid"], [-0.01, 0.03])
        np.testing.assert_allclose(band["curves"]["high"], 0.03)
        for factor, inside in ((1.029, True), (1.031, False), (0.991, True), (0.989, False)):
            result = compare(base, make_run(np.full(100, 4.0 * factor), valid=[4.0 * factor]), window=3)
            self.assertEqual(verdicts(result, band), {"last_tenth": inside, "valid": inside})
        no_valid = compare(base, make_run(np.full(100, 4.0)), window=3)
        self.assertEqual(verdicts(no_valid, band), {"last_tenth": True})

    def test_a_shorter_run_is_compared_over_the_same_tokens(self):
        # The seeds agree for 50 steps and then differ by 1%.
        base = make_run(np.full(100, 4.0))
        seed = make_run(np.where(np.arange(100) < 50, 4.0, 4.04))
        run = make_run(np.full(40, 4.01), "short")
        result = compare(base, run, window=1)
        self.assertTrue(verdicts(result, noise_band(base, [seed], window=1, kind="minmax"))["last_tenth"])
        band = noise_band(base, [seed], window=1, kind="minmax", end=result["tokens"])
        self.assertEqual(band["last_tenth"], [0.0, 0.0])
        self.assertFalse(verdicts(result, band)["last_tenth"])

    def test_no_band_verdict_on_an_early_validation(self):
        runs = [make_run(np.full(100, 4.0 * f), valid=[4.0 * f]) for f in (1.0, 1.01, 1.0)]
        for early in (1, 2):  # of the seed, of the run
            at = [run.valid_tokens for run in runs]
            at[early] = np.array([5000.0])
            base, seed, run = [dataclasses.replace(r, valid_tokens=t) for r, t in zip(runs, at)]
            base = dataclasses.replace(base, valid_tokens=np.array([5000.0, 10000.0]), valid_loss=np.array([4.0, 4.0]))
            result = compare(base, run, window=1)
            self.assertEqual(verdicts(result, noise_band(base, [seed], window=1)), {"last_tenth": True})
        self.assertIn("; last common validation at 5 thousand tokens", next(table.notes(base, [result], None)))

    def test_numbers_in_the_legend_are_over_the_same_tokens(self):
        # Validation at 300, 600, 900 and at 300, 600: the last common point is 600.
        long = Run("long", np.arange(1.0, 1001), np.full(1000, 2.0), np.array([300.0, 600, 900]), np.array([3.0, 2.5, 2.25]))
        short = Run("short", np.arange(1.0, 701), np.full(700, 2.0), np.array([300.0, 600]), np.array([3.0, 2.75]))
        without = Run("none", np.arange(1.0, 11), np.full(10, 2.0), np.array([]), np.array([]))
        self.assertEqual(common_valid_tokens([long, short, without]), 600)
        self.assertEqual(common_valid_tokens([long]), 900)
        self.assertIsNone(common_valid_tokens([without]))
        # The gap is 1% up to 500 tokens and then 5%.
        gap = np.where(np.arange(1, 1001) <= 500, 1.01, 1.05)
        found = compare(long, Run("x", long.tokens, 2 * gap, without.valid_tokens, without.valid_loss))
        self.assertAlmostEqual(gap_before(found["curves"], 1000.0), 0.05)
        self.assertAlmostEqual(gap_before(found["curves"], 500.0), 0.01)


class Program(InFolder):
    def setUp(self):
        super().setUp()
        for name, factor in (("bf16", 1.0), ("fp8", 1.004), ("seed2", 1.003), ("seed3", 0.998)):
            rows = [
                f"{i},{i * 4096},{factor * (3 + 8 / i):.6f},{3.1 * factor if i % 50 == 0 else ''}"
                for i in range(1, 101)
            ]
            self.write(f"{name}/loss.csv", "step,consumed_tokens,loss,valid_loss\n" + "\n".join(rows) + "\n")

    def call(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = compare_loss.main([str(a) for a in arguments])
        return code, output.getvalue(), errors.getvalue()

    def test_table_json_and_picture(self):
        runs = [self.folder / name for name in ("bf16", "fp8")]
        picture, report = self.folder / "x.png", self.folder / "x.json"
        code, output, errors = self.call(
            *runs,
            "--band",
            self.folder / "seed2",
            self.folder / "seed3",
            "--output",
            picture,
            "--json",
            report,
        )
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("+0.400%", output)
        self.assertIn("is within the noise band", output)
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        found = json.loads(report.read_text())
        self.assertEqual(found["baseline"], "bf16")
        self.assertAlmostEqual(found["runs"][0]["last_tenth_gap"], 0.004, places=6)
        self.assertEqual(found["runs"][0]["inside_band"], {"last_tenth": True, "valid": True})
        self.assertEqual(found["band"]["runs"], 3)

    def test_reports_a_gap_outside_the_band(self):
        code, output, _ = self.call(
            *[self.folder / n for n in ("bf16", "fp8")],
            "--band",
            self.folder / "seed2",
            "--band-kind",
            "minmax",
            "--no-plot",
        )
        self.assertEqual(code, 0)
        self.assertIn("outside the noise band [+0.000%, +0.300%]", output)
        self.assertFalse(list(self.folder.glob("*.png")))

    def test_the_band_refuses_short_and_repeated_seeds(self):
        bf16, fp8, seed2, seed3 = [self.folder / name for name in ("bf16", "fp8", "seed2", "seed3")]
        lines = (seed3 / "loss.csv").read_text().splitlines()
        (seed3 / "loss.csv").write_text("\n".join(lines[:80]) + "\n")
        for seed in (4, 5):  # the seed is in run.json
            self.write(f"other{seed}/loss.csv", "\n".join(lines) + "\n")
            self.write(f"other{seed}/run.json", '{"config": {"training.seed": "4"}}')
        for band, expected in (
            ([seed2, seed3], "--band: seed3: ended before 90% of the compared tokens; leave it out"),
            ([bf16, seed2], "bf16 have the same seed"),
            ([self.folder / "other4", self.folder / "other5"], "other5 have the same seed"),
        ):
            code, output, errors = self.call(bf16, fp8, "--band", *band, "--no-plot")
            self.assertEqual((code, output), (2, ""))
            self.assertIn(expected, errors)
            self.assertEqual(errors.count("\n"), 1, errors)

    def test_a_diverged_run_is_outside_the_band(self):
        with open(self.folder / "fp8/loss.csv", "a") as file:
            file.write(f"101,{101 * 4096},nan,\n")
        bf16, fp8, *seeds = [self.folder / name for name in ("bf16", "fp8", "seed2", "seed3")]
        code, output, _ = self.call(bf16, fp8, "--band", *seeds, "--no-plot")
        self.assertEqual(code, 0)
        self.assertIn("the run diverged (gap +0.400% before that), so it is outside the noise band", output)

    def test_mistakes_are_one_line_and_exit_2(self):
        bf16, fp8 = self.folder / "bf16", self.folder / "fp8"
        for arguments, expected in (
            ([bf16], "runs: nothing to compare"),
            ([self.folder / "none"], "none: no such file or folder; "),
            ([bf16, self.folder / "none"], "no such file"),
            ([bf16, fp8, "--labels", "a"], "--labels"),
            ([bf16, fp8, "--smooth", "0"], "--smooth"),
            ([bf16, fp8, "--output", self.folder / "no" / "x.png"], "cannot be written"),
            ([bf16, fp8, "--output", self.folder / "x.weird"], "cannot be written"),
            ([bf16, fp8, "--no-plot", "--json", self.folder / "no" / "x.json"], "cannot be written"),
        ):
            code, _, errors = self.call(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(expected, errors)
            self.assertEqual(errors.count("\n"), 1, errors)

    def test_message_of_a_python_without_numpy(self):
        script = str(SCRIPTS / "compare_loss.py")
        program = (
            "import runpy, sys; sys.modules['numpy'] = None;"
            f"sys.argv = [{script!r}]; runpy.run_path({script!r}, run_name='__main__')"
        )
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertTrue(done.stderr.startswith(f"compare_loss.py: error: {sys.executable} has no numpy; "))
        self.assertRegex(done.stderr, r"run /usr/bin/python3 .*compare_loss.py|-m pip install numpy")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_as_a_process(self):
        command = [
            sys.executable,
            "-B",
            SCRIPTS / "compare_loss.py",
            self.folder / "bf16",
            self.folder / "nothing",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertTrue(done.stderr.startswith("compare_loss.py: error: "), done.stderr)

    def test_closed_pipe_is_silent(self):
        command = [sys.executable, "-B", SCRIPTS / "compare_loss.py", "--no-plot", self.folder / "bf16", self.folder / "fp8"]
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as closed:
            self.assertEqual(subprocess.run(command, stdout=closed, stderr=subprocess.PIPE).stderr, b"")

    def start(self, *arguments, **options):
        runs = [self.folder / "bf16", self.folder / "fp8"]
        command = [sys.executable, "-B", "-u", SCRIPTS / "compare_loss.py", *runs, *arguments]
        return subprocess.run(command, stderr=subprocess.PIPE, text=True, **options)

    def test_files_with_a_full_or_closed_standard_output(self):
        numbers, report = self.folder / "x.json", self.folder / "report"
        for arguments, output in ((["--json", numbers], numbers), (["--report", report], report / "report.json")):
            with open("/dev/full", "w") as full:
                done = self.start(*arguments, "--no-plot", stdout=full)
            self.assertEqual((done.returncode, done.stderr), (2, "compare_loss.py: error: No space left on device\n"))
            self.assertTrue(output.exists())
            output.unlink()
            done = self.start(*arguments, "--no-plot", preexec_fn=lambda: os.close(1))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(output.exists())

    def test_table_if_a_file_cannot_be_written(self):
        for arguments in (["--json", self.folder / "no" / "x.json"], ["--report", self.folder / "bf16" / "loss.csv"]):
            done = self.start(*arguments, "--no-plot", stdout=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn("fp8", done.stdout)

    def test_a_charset_without_plus_minus(self):
        environment = {**os.environ, "PYTHONIOENCODING": "koi8-r"}
        for arguments in (["--help"], ["--no-plot", "--report", self.folder / "report"]):
            done = self.start(*arguments, stdout=subprocess.PIPE, env=environment)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("?", done.stdout)


if __name__ == "__main__":
    unittest.main()
