"""Tests of the report's sections about FP8 statistics and the guard, with generated folders."""

import contextlib
import io
import json
import math
import sys
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
from report import details, precision, precision_figures
from report.runs import read_run
from report_testing import write_run


def quantization(
    linear, role, sqnr, *, recipe="delayed", what_if=False, form="both", amax=1.0, saturated=0.0, flushed=0.0
):
    return {
        "layer": int(linear.split(".")[1]), "linear": linear, "role": role, "recipe": recipe, "what_if": what_if,
        "form": form, "format": "fp8_e4m3", "amax": amax, "sqnr_db": sqnr, "saturated": saturated, "flushed": flushed,
    }  # fmt: skip


FC2, QKV = "layers.1.mlp.linear_fc2", "layers.0.self_attention.linear_qkv"


def write_statistics(folder, steps=range(10, 101, 10)):
    """The SQNR of linear_fc2's input falls from 30 dB by 0.1 dB per step and its amax grows; another quantization is constant."""
    lines = []
    for step in steps:
        operands = [
            quantization(FC2, "input", 30 - 0.1 * step, amax=float(step), saturated=1e-6 * step),
            quantization(FC2, "input", 31.0, recipe="blockwise", what_if=True, form="rowwise", amax=float(step)),
            quantization(QKV, "weight", 28.5, flushed=1e-3),
        ]
        swiglu = [{"layer": 0, "mean": 0.1, "max": 0.5}, {"layer": 1, "mean": 0.002 * step, "max": 0.9}]
        lines.append(json.dumps({"step": step, "operands": operands, "swiglu": swiglu}))
    (folder / "fp8_statistics.jsonl").write_text("\n".join(lines) + "\n")


def write_guard(folder, action="rollback"):
    """Comparisons every 20 steps; one is above its limit, after which the run continues in BF16."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        step = record["step"]
        if step in (20, 40, 60):
            gap = 0.04 if step == 60 else 0.0001 * step
            record["guard"] = {"gap": gap, "limit": 0.005, "excess": int(gap > 0.005), "seconds": 1.5}
        record["in_fp8"] = step not in (70, 80)
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    run = json.loads((folder / "run.json").read_text())
    run["config"]["guard.action"] = action
    (folder / "run.json").write_text(json.dumps(run))


class Records(InFolder):
    def setUp(self):
        super().setUp()
        self.folder = write_run(self.folder / "run", fp8=True)

    def test_statistics_are_read(self):
        write_statistics(self.folder)
        found = precision.fp8_statistics(read_run(self.folder))
        self.assertEqual(list(found.tokens), [1000.0 * s for s in range(10, 101, 10)])
        np.testing.assert_allclose(found.lowest_sqnr, [28.5, 28, 27, 26, 25, 24, 23, 22, 21, 20])
        self.assertAlmostEqual(found.saturated[-1], 1e-4)
        self.assertEqual(found.flushed[0], 1e-3)
        self.assertEqual(list(found.fc2_amax), list(range(10, 101, 10)))
        # The largest of the layers' means.
        np.testing.assert_allclose(found.alignment[[0, 9]], [0.1, 0.2])
        self.assertEqual(found.worst_quantizations(5), [(FC2, "input", "both"), (QKV, "weight", "both")])
        self.assertEqual(found.recipes()["blockwise (tried)"], (31.0, 31.0))
        self.assertEqual(found.recipes()["delayed"][0], 20.0)

    def test_the_start_is_the_first_5_percent_of_the_run(self):
        """Not of its FP8 records: the first of two may be bad in the middle of the run. The run has 100 steps."""
        file = self.folder / "fp8_statistics.jsonl"
        for bad, starts in ((5, True), (6, False), (50, False)):
            records = [(bad, quantization(FC2, "input", 5.0)), (100, quantization(FC2, "input", 30.0))]
            file.write_text("".join(json.dumps({"step": s, "operands": [q]}) + "\n" for s, q in records))
            found = precision.fp8_statistics(read_run(self.folder))
            self.assertEqual(found.recipes()["delayed"][0], 30.0 if starts else 5.0, bad)
        log = self.folder / "loss.csv"  # of a branch from step 49
        rows = log.read_text().splitlines()
        log.write_text("\n".join([rows[0], *rows[50:]]) + "\n")
        self.assertEqual(precision.fp8_statistics(read_run(self.folder)).recipes()["delayed"][0], 30.0)

    def test_health_after_the_first_5_percent_of_the_run(self):
        for steps, after_start in ((20, 2), (100, 10), (300, 29)):  # a record every ten steps
            found = details.fp8_health(read_run(write_run(self.folder / f"{steps}", steps=steps, fp8=True)))
            self.assertEqual((len(found["tokens"]), len(found["after_start"])), (steps // 10, after_start))

    def test_tokens_are_those_of_the_log(self):
        """The batch size was doubled after step 50; the log misses steps."""
        log = self.folder / "loss.csv"
        rows = [line.split(",") for line in log.read_text().splitlines()]
        for row in rows[51:]:
            row[2] = str(2000 * int(row[0]) - 50000)
        kept = rows[:45] + rows[47:96]
        log.write_text("\n".join(map(",".join, kept)) + "\n")
        write_statistics(self.folder, [1, 45, 50, 60, 100])
        found = precision.fp8_statistics(read_run(self.folder))
        np.testing.assert_allclose(found.tokens, [1000, 45000, 50000, 70000, 150000])

    def test_a_repeated_step_counts_once(self):
        write_statistics(self.folder)
        file = self.folder / "fp8_statistics.jsonl"
        again = json.dumps({"step": 100, "operands": [quantization(FC2, "input", 5.0)]})
        file.write_text(file.read_text() + again + "\n" + '{"step": 110, "oper')
        found = precision.fp8_statistics(read_run(self.folder))
        self.assertEqual((len(found.tokens), found.lowest_sqnr[-1]), (10, 5.0))
        self.assertTrue(math.isnan(found.alignment[-1]))

    def test_a_bf16_run_has_no_own_quantizations(self):
        none = {"layer": 1, "linear": FC2, "role": "input", "recipe": "none", "amax": 7.0}
        tried = quantization(FC2, "input", 25.0, recipe="tensorwise", what_if=True, amax=7.0)
        lines = [json.dumps({"step": s, "operands": [none, tried], "swiglu": []}) for s in (10, 20)]
        (self.folder / "fp8_statistics.jsonl").write_text("\n".join(lines) + "\n")
        found = precision.fp8_statistics(read_run(self.folder))
        self.assertTrue(np.isnan(found.lowest_sqnr).all())
        self.assertEqual(list(found.fc2_amax), [7.0, 7.0])
        self.assertEqual(found.worst_quantizations(5), [])
        self.assertEqual(found.recipes(), {"tensorwise (tried)": (25.0, 25.0)})

    def test_the_guard_is_read(self):
        self.assertIsNone(precision.guard(read_run(self.folder)))
        write_guard(self.folder)
        found = precision.guard(read_run(self.folder))
        self.assertEqual(list(found.tokens), [20e3, 40e3, 60e3])
        np.testing.assert_allclose(found.gap, [0.002, 0.004, 0.04])
        self.assertEqual(list(found.excess), [False, False, True])
        self.assertEqual(list(found.bf16_tokens), [70e3, 80e3])
        self.assertEqual(found.action, "rollback")

    def test_runs_without_either(self):
        self.assertIsNone(precision.fp8_statistics(read_run(self.folder)))
        (self.folder / "fp8_statistics.jsonl").write_text("")
        self.assertIsNone(precision.fp8_statistics(read_run(self.folder)))

    def test_names_of_quantizations(self):
        self.assertEqual(precision_figures.quantization_name((FC2, "input", "both")), "layer 1 linear_fc2 input")
        name = precision_figures.quantization_name((FC2, "input", "rowwise"))
        self.assertEqual(name, "layer 1 linear_fc2 input, rowwise")
        self.assertEqual(precision_figures.quantization_name(("output_layer", "weight", "both")), "output_layer weight")


class Program(InFolder):
    def setUp(self):
        super().setUp()
        self.runs = [
            write_run(self.folder / name, seed=seed, fp8=name != "bf16", own=own, noise=0.01)
            for name, seed, own in (("bf16", 1, 0), ("fp8", 1, 1), ("plain", 1, 2))
        ]

    def report(self, *more):
        arms = [word for run in self.runs for word in ("--arm", run.name, str(run))]
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = compare_loss.main([*arms, "--report", str(self.folder / "report"), *more])
        self.assertEqual((code, errors.getvalue()), (0, ""))
        return (self.folder / "report" / "report.md").read_text()

    def test_sections_of_runs_with_records(self):
        write_statistics(self.runs[1])
        write_guard(self.runs[1])
        text = self.report()
        for part in (
            "## FP8 statistics",
            "| fp8 | layer 1 linear_fc2 input | 20.0 | 100 thousand | 20.0 | 1.0e-04 | 0.0e+00 |",
            "| fp8 | blockwise (tried) | 31.0 | 31.0 |",
            "- fp8: largest input of a linear_fc2 from 10 to 100 (10.00 times); maximum 100.",
            "- fp8: alignment of SwiGLU's weights from 0.1 to 0.2 (2.00 times); maximum 0.2.",
            "## The guard",
            "| fp8 | fp8 | 3 | +0.400% | +4.000% | 1 | rollback | 2 | 4.5 s |",
            "- fp8: at 60 thousand tokens +4.000% (limit +0.500%); the run rolled back and continued in BF16.",
        ):
            self.assertIn(part, text)
        self.assertNotIn("| plain | layer ", text)
        for part in ("both grow before the loss", "the same values with other recipes"):
            self.assertIn(part, text)
        for picture in ("fp8_statistics.png", "fp8_sqnr.png", "guard.png"):
            self.assertIn(f"({picture})", text)
            self.assertGreater((self.folder / "report" / picture).stat().st_size, 10_000)

    def test_no_sections_without_records(self):
        text = self.report("--no-plot")
        self.assertNotIn("FP8 statistics", text)
        self.assertNotIn("The guard", text)

    def test_statistics_of_bf16_runs_only(self):
        none = {"layer": 1, "linear": FC2, "role": "input", "recipe": "none", "amax": 7.0}
        lines = [json.dumps({"step": s, "operands": [none], "swiglu": []}) for s in (10, 20)]
        (self.runs[0] / "fp8_statistics.jsonl").write_text("\n".join(lines) + "\n")
        text = self.report()
        self.assertIn("- bf16: largest input of a linear_fc2 from 7 to 7", text)
        self.assertIn("(fp8_statistics.png)", text)
        self.assertNotIn("(fp8_sqnr.png)", text)
        self.assertNotIn("SwiGLU", text)  # not recorded

    def test_without_other_recipes(self):
        lines = [json.dumps({"step": s, "operands": [quantization(FC2, "input", 30.0)]}) for s in (10, 20)]
        (self.runs[1] / "fp8_statistics.jsonl").write_text("\n".join(lines) + "\n")
        text = self.report("--no-plot")
        self.assertIn("All quantizations:", text)
        self.assertNotIn("other recipes", text)

    def test_a_guard_with_unknown_action(self):
        write_guard(self.runs[1])
        record = json.loads((self.runs[1] / "run.json").read_text())
        del record["config"]["guard.action"]
        (self.runs[1] / "run.json").write_text(json.dumps(record))
        text = self.report("--no-plot")
        self.assertIn("at 60 thousand tokens +4.000% (limit +0.500%).", text)
        self.assertNotIn("the run continued", text)


if __name__ == "__main__":
    unittest.main()
