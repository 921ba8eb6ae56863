"""Tests of the report: its pages, and the program from folders to files."""

import contextlib
import html.parser
import io
import json
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "scripts")]
try:
    import matplotlib  # noqa: F401
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import compare_loss
from folder_testing import InFolder
from report import blocks
from report_testing import write_evaluation, write_run, write_summary


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
        counts = {"operand_records": 3 * 2 * 10, "saturated": 3 * 10, "requantized": 3 * 2 * 10}
        self.assertEqual(numbers["arms"][0]["fp8_health"], counts)
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

    def test_divergence_is_matched_by_seed(self):
        folder = self.experiment()
        for name in ("bf16", "fp8"):
            for seed in (4, 5):
                write_run(folder / f"{name}_seed{seed}", seed=seed, shift=0.001 * (name == "fp8"), noise=0.01)

        def verdict(diverged, base=range(1, 6), other=range(1, 6)):
            names = {name: [f"{name}_seed{s}" for s in seeds] for name, seeds in (("bf16", base), ("fp8", other))}
            if len(other) == 1:  # another variant has runs
                names["ok"] = names["bf16"][1:]
            write_summary(folder, names, "bf16", dict.fromkeys(diverged, "diverged"))
            return self.call(folder, "--no-plot")[1]

        self.assertIn("fp8: outside tolerance\n", verdict(["bf16_seed1", "fp8_seed2"]))
        self.assertIn("fp8: outside tolerance\n", verdict(["bf16_seed5", "fp8_seed1"], other=range(1, 5)))
        both = verdict(["bf16_seed1", "fp8_seed1"])
        self.assertIn("fp8: within tolerance\n", both)
        self.assertIn("1 of its runs diverged, as the baseline's did; the others: the whole interval", both)
        self.assertIn("fp8: inconclusive\n  no run can", verdict(["bf16_seed1", "fp8_seed1"], other=[1]))
        self.assertIn("fp8: outside tolerance\n  no run can", verdict(["bf16_seed2", "fp8_seed1"], other=[1]))

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
        three = "".join(f"{s},{s},{s}000,nan,,nan,1e-3,10,100,1,1\n" for s in (101, 102, 103))
        self.assertIn("3 of its runs diverged", verdict("fp8", three, 103))  # exit code 3 of te-train
        for case in (("",), (spike,), (nan, 101), (three[: three.index("103")], 102), (nan, 200, "finished")):
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
        numbers = json.loads((folder / "r" / "report.json").read_text())
        lost = {"name": "wild", "baseline": "bf16", "verdict": "outside", "measures": [], "excess": None}
        self.assertEqual(numbers["arms"][1:], [lost | {"gap_by_tenths": None, "tasks": [], "fp8_health": None}])
        self.assertEqual(numbers["arms"][0].keys(), numbers["arms"][1].keys())
        states = [{"arm": "wild", "run": run, "state": state} for run, state in (("w1", "diverged"), ("w2", "failed"))]
        self.assertEqual(numbers["not_compared"], states)

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
        numbers = json.loads((folder / "r" / "report.json").read_text())
        arms = [(arm["name"], arm["baseline"], arm["verdict"]) for arm in numbers["arms"]]
        lost = [("bf16_high", "bf16_low", "outside"), ("fp8_high", "bf16_high", "inconclusive")]
        self.assertEqual(arms, [("fp8_low", "bf16_low", "within"), *lost])
        self.assertEqual(len(numbers["not_compared"]), 6)

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
            ([folder, "--tolerance-nats", "inf"], "--tolerance-nats: inf must be a finite number above 0"),
            ([folder, "--tolerance-percent", "nan"], "--tolerance-percent"),
            ([run, folder / "fp8_seed1", "--report", run / "loss.csv" / "x"], "cannot be written"),
        ):
            code, _, errors = self.call(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(expected, errors)
            self.assertEqual(errors.count("\n"), 1, errors)
        for limit in ("nats", "percent"):
            summary = json.loads((folder / "summary.json").read_text())
            summary["tolerance"][limit] = None  # te-experiment writes infinity so
            (folder / "other").mkdir(exist_ok=True)
            (folder / "other" / "summary.json").write_text(json.dumps(summary))
            code, _, errors = self.call(folder / "other")
            self.assertIn(f"summary.json: the tolerance in {limit} is null; set a finite number above 0", errors)
            self.assertEqual((code, errors.count("\n")), (2, 1), errors)
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
