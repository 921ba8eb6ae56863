"""Tests of scripts/plot_step_time.py and scripts/peers/table.py on small reports."""

import json
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def row(group, name, lower_bound_ms, ms):
    return {"group": group, "name": name, "lower_bound_ms": lower_bound_ms, "ms": ms, "calls": 1, "flops": 0, "bytes": 0, "problems": []}


PROFILE = {
    "operations": [
        row("norm", "norm_forward", 1, 2),
        row("GEMMs", "output_layer fprop", 30, 40),
        row("GEMMs", "b", 10, 10),
    ],
    "lower_bound_ms": 41,
    "operations_ms": 52,
    "span_ms": 58,
    "busy_ms": 52,
    "run_ms": 60,
    "copy_bytes_per_s": 1e12,
}


class Performance(InFolder):
    def run_script(self, script, *arguments):
        command = [sys.executable, "-B", str(SCRIPTS / script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_table_of_a_step(self):
        report = self.write("step.json", [{"config": "tiny", "profile": PROFILE}])
        result = self.run_script("plot_step_time.py", report, "--markdown")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| GEMMs | 40.00 | 50.00 | 80% | 83.3% |", result.stdout)
        self.assertIn("| between operations | | 6.00 | | 10.0% |", result.stdout)
        self.assertIn("| **41.00** | **60.00** | **68.3%** |", result.stdout)
        self.assertLess(result.stdout.index("GEMMs"), result.stdout.index("norm"))

    def test_bounds_in_the_figure_do_not_exceed_the_measurement(self):
        sys.path.insert(0, str(SCRIPTS))
        import plot_step_time

        # Operations take 52 ms of a step of 60: norm 1 of 2, GEMMs 30 of 40 and 10 of 10.
        bars = plot_step_time.bars_of(PROFILE)
        self.assertAlmostEqual(bars["GEMMs"][0], 100 * 40 / 60)
        self.assertAlmostEqual(bars["GEMMs"][1], 100 * 50 / 60)
        # The second GEMM is faster in the step (10 ms) than alone (25 ms): its group's bound is 30 + 10.
        faster = {**PROFILE, "operations": [*PROFILE["operations"][:2], row("GEMMs", "b", 25, 10)], "run_ms": 50}
        bars = plot_step_time.bars_of(faster)
        self.assertAlmostEqual(bars["GEMMs"][0], 100 * 40 / 52)  # the profiled operations take longer than the step
        self.assertAlmostEqual(sum(measured for _, measured in bars.values()), 100)
        for bound, measured in bars.values():
            self.assertLessEqual(bound, measured)

    def test_picture_of_a_layer(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is missing")
        report = self.write("layer.json", {"layer": [{"which": "gpt", "precision": "fp8", "profile": PROFILE}]})
        picture = self.folder / "layer.png"
        result = self.run_script("plot_step_time.py", report, "--output", str(picture))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(picture.stat().st_size, 1000)

    def test_one_line_for_a_mistake(self):
        for report in (
            self.write("text.json", "no report"),
            self.write("bare.json", [{"config": "tiny"}]),
            self.write("other.json", {"layer": [{"profile": 3}]}),
            self.write("empty.json", [{"config": "tiny", "profile": {}}]),
            self.write("zero.json", [{"config": "tiny", "profile": {**PROFILE, "run_ms": 0}}]),
            self.write("row.json", [{"config": "tiny", "profile": {**PROFILE, "operations": [{"group": "norm"}]}}]),
            str(self.folder / "missing.json"),
        ):
            result = self.run_script("plot_step_time.py", report, "--markdown")
            self.assertEqual(result.returncode, 2, report)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertTrue(result.stderr.startswith(f"plot_step_time.py: error: {report}"), result.stderr)

    def test_figure_that_cannot_be_written(self):
        report = self.write("step.json", [{"config": "tiny", "profile": PROFILE}])
        for output in (self.folder / "missing" / "x.png", self.folder / "x.weird", self.folder):
            result = self.run_script("plot_step_time.py", report, "--output", str(output))
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertTrue(result.stderr.startswith(f"plot_step_time.py: error: --output {output}: "), result.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["step.json"])

    def test_figure_with_a_full_standard_output(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is missing")
        report, picture = self.write("step.json", [{"config": "tiny", "profile": PROFILE}]), self.folder / "step.png"
        command = [sys.executable, "-B", "-u", SCRIPTS / "plot_step_time.py", report, "--markdown", "--output", picture]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (2, "plot_step_time.py: error: No space left on device\n"))
        self.assertTrue(picture.exists())

    def test_ratios_to_peers(self):
        self.write("te_layer-gpt.json", {"layer": [
            {"precision": "bf16", "ms": 20.0, "sustained_ms": 25.0}, {"precision": "fp8", "ms": 10.0, "sustained_ms": 12.0}]})
        self.write("te_train-llama_1b.json", [{"fp8": "hybrid", "tokens_per_s": 3000.0}])
        lines = [
            {"bench": "layer", "which": "gpt", "fp8": False, "ms": 30.0, "sustained_ms": 50.0},
            {"bench": "layer", "which": "gpt", "fp8": True, "ms": 15.0},
            {"bench": "train", "model": "llama_1b", "fp8": True, "tokens_per_s": 2000},
        ]
        self.write("peer_torch.jsonl", "a warning\n" + "\n".join(json.dumps(line) for line in lines))
        result = self.run_script("peers/table.py", str(self.folder))
        self.assertEqual(result.returncode, 0, result.stderr)
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines()]
        self.assertEqual(cells[0], ["row", "precision", "te-train", "torch", "ratio"])
        self.assertIn(["layer-gpt", "BF16", "20.00 ms", "30.00 ms", "1.50"], cells)
        self.assertIn(["layer-gpt, power-limited", "BF16", "25.00 ms", "50.00 ms", "2.00"], cells)
        self.assertIn(["layer-gpt", "FP8", "10.00 ms", "15.00 ms", "1.50"], cells)
        self.assertIn(["layer-gpt, power-limited", "FP8", "12.00 ms", "-", "-"], cells)
        self.assertIn(["train-llama_1b", "FP8", "3,000 tokens/s", "2,000 tokens/s", "1.50"], cells)

    def test_rows_of_the_speed_table(self):
        def step(fp8, rate):
            return {"fp8": fp8, "tokens_per_s_per_gpu": rate, "tflops": 500.4, "memory_bytes": 2**31, "device": "NVIDIA H200"}

        def peer(fp8, rate):
            return json.dumps({"bench": "train", "model": "x", "fp8": fp8, "tokens_per_s": rate})

        for name in ("gpt2_124m", "llama_1b"):
            (self.folder / name).mkdir()
            self.write(f"{name}/te_train-{name}.json", [step("off", 100.4), step("hybrid", 200.6)])
            self.write(f"{name}/peer_torch.jsonl", "a warning\n" + peer(False, 90) + "\n" + peer(True, 110))
        for name in ("8b_dp", "7b_dp"):
            self.write(f"{name}.json", [step("off", 10), step("hybrid", 20)])
        for name in ("7b_zero3", "7b_tp"):
            self.write(f"{name}.json", [step("hybrid", 30)])
        self.write("fsdp2.jsonl", peer(False, 5) + "\n" + peer(True, 6))
        arguments = ["peers/speed_rows.py", str(self.folder), "--ranks", "2", "--commit", "abc",
                     "--output", str(self.folder / "speed.json")]
        result = self.run_script(*arguments)
        self.assertEqual(result.returncode, 2)
        self.assertIn("a row is missing", result.stderr)  # the layer
        self.assertFalse((self.folder / "speed.json").exists())
        self.write("layer_70b.json", {"device": "NVIDIA H200", "layer": [
            {"precision": "bf16", "recipe": "off", "ms": 22.7, "tflops": 499.6},
            {"precision": "fp8", "recipe": "delayed", "ms": 16.04, "tflops": 707.2},
            {"precision": "fp8", "recipe": "blockwise", "ms": 17, "tflops": 650}]})
        result = self.run_script(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        one, several, layer = json.loads((self.folder / "speed.json").read_text())["sessions"]
        self.assertEqual(one["hardware"], "1x H200")
        self.assertEqual(one["rows"][0], {"model": "GPT-2 124M", "layout": "", "bf16": 100, "bf16_tflops": 500, "fp8": 201,
                                          "fp8_tflops": 500, "planned_gib": [2.0, 2.0], "pytorch_bf16": 90, "pytorch_fp8": 110})
        self.assertEqual([row.get("pytorch_fp8") for row in several["rows"]], [None, None, 6, None])
        self.assertEqual(several["rows"][2]["planned_gib"], [None, 2.0])
        self.assertEqual(several["rows"][2]["layout"], "ZeRO-3 over 2")
        self.assertEqual(layer["hardware"], "2x H200")
        self.assertEqual(layer["rows"][0]["fp8"], 16.04)

        # Later on four GPUs, without the rows of one: their table stays; all rows of four GPUs are needed.
        for name in ("gpt2_124m", "llama_1b"):
            shutil.rmtree(self.folder / name)
        arguments[3] = "4"
        self.assertEqual(self.run_script(*arguments).returncode, 2)
        for name in ("7b_pp", "7b_tp_pp", "8b_context", "8b_context_long"):
            self.write(f"{name}.json", [step("hybrid", 40)])
        result = self.run_script(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        kept, several, layer = json.loads((self.folder / "speed.json").read_text())["sessions"]
        self.assertEqual(kept, one)
        self.assertEqual([row["fp8"] for row in several["rows"]], [20, 20, 30, 30, 40, 40, 40, 40])
        self.assertEqual([several["hardware"], layer["hardware"]], ["4x H200", "4x H200"])


if __name__ == "__main__":
    unittest.main()
