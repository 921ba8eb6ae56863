"""The README's numbers match the data in docs/results, and its figure can be drawn from them."""

import csv
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "scripts"))
import results_summary
from results_data import gpu_hours, label


def mean_of_last_tenth(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    end = int(rows[-1]["consumed_tokens"])
    kept = [float(row["loss"]) for row in rows if int(row["consumed_tokens"]) > 0.9 * end]
    return sum(kept) / len(kept)


def block(name):
    text = (ROOT / "README.md").read_text()
    return text.split(f"<!-- begin: {name} -->")[1].split(f"<!-- end: {name} -->")[0]


class Summary(unittest.TestCase):
    def test_tables_and_summary_match_the_data(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "results_summary.py", "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_speeds_of_tutorials_match_the_data(self):
        rows = json.loads((RESULTS / "summary.json").read_text())["tutorials"]
        tutorials = {row["page"]: row["tokens_per_s"] for row in rows}
        for page in (ROOT / "docs" / "tutorials").glob("*.md"):
            text = page.read_text()
            known = {f"{speed:,}" for speed in tutorials.get(page.name, {}).values()}
            self.assertEqual({speed for speed in known if speed not in text}, set(), page.name)
            self.assertLessEqual(set(re.findall(r"([0-9][0-9,]*) tokens/s", text)), known, page.name)

    def test_seconds_in_the_readme_are_those_of_the_install_page(self):
        readme = (ROOT / "README.md").read_text().split("## Quick start")[1]
        seconds = re.findall(r"([0-9]+) s ", readme)
        self.assertGreaterEqual(len(seconds), 4)
        known = (ROOT / "docs" / "how-to" / "install.md").read_text()
        self.assertEqual([s for s in seconds if not re.search(rf"\b{s} s\b", known)], [])

    def test_gaps_match_the_csv_files(self):
        """Recomputes the gaps of the reports from the losses."""
        rows = {row["experiment"]: row for row in json.loads((RESULTS / "summary.json").read_text())["evidence"]}
        for name, arm in (("llama_1b_100m", "fp8_delayed"), ("moe_30m_87m", "delayed"), ("gap_law_50m", "delayed")):
            row = rows[name]
            gaps = [mean_of_last_tenth(RESULTS / name / f"{arm}_seed{seed}.csv") - mean_of_last_tenth(RESULTS / name / f"bf16_seed{seed}.csv")
                    for seed in range(1, row["pairs"] + 1)]
            self.assertAlmostEqual(sum(gaps) / len(gaps), row["gap_nats"], delta=2e-4, msg=name)
            self.assertIn(f"{row['gap_nats']:+.4f}", block("evidence"))

    def test_gap_tables_match_the_csv_files(self):
        """Only experiments with every step, or means over ten, in their CSV files."""
        for name in ("llama_1b_100m", "llama_1b_unit_embeddings", "llama7b", "llama7b_calm", "gap_law_8m", "gap_law_16m",
                     "gap_law_30m", "gap_law_50m", "gpt2_30m_formats", "gpt2_124m_formats", "gpt2_124m_lora",
                     "moe_30m_87m"):
            for arm in results_summary.arms(name):
                stem = arm["name"]
                if name.startswith("gap_law") and stem[-1].isdigit():
                    continue  # the CSV files hold the runs that the decays branch off
                if not any((RESULTS / name).glob(f"{stem}_seed?.csv")):
                    stem = "fp8_" + stem
                runs = sorted((RESULTS / name).glob(f"{stem}_seed?.csv"))
                baseline = arm.get("baseline", "bf16")
                pairs = [(run, run.with_name(baseline + run.name[len(stem):])) for run in runs]
                gaps = [mean_of_last_tenth(run) - mean_of_last_tenth(other) for run, other in pairs]
                for found, expected in zip(gaps, arm["measures"][0]["pairs"], strict=True):
                    self.assertAlmostEqual(found, expected, delta=2e-4, msg=f"{name} {arm['name']}")

    def test_numbers_in_the_text_match_the_reports(self):
        def found(experiment, arm, measure=0):
            return next(x for x in results_summary.arms(experiment) if x["name"] == arm)["measures"][measure]

        page = {name: (ROOT / results_summary.CONVERGENCE / f"{name}.md").read_text()
                for name in ("llama-tokens-per-parameter", "blackwell-formats", "gpt2-124m-finetuning")}
        for experiment, model in zip(("gap_law_8m", "gap_law_16m", "gap_law_30m", "gap_law_50m"), ("8", "16", "31", "51")):
            end = found(experiment, "delayed")
            pattern = rf"{end['gap']:.4f} (nats )?\({100 * end['gap_share']:.2f}%\)[^;]*with {model} million"
            self.assertRegex(page["llama-tokens-per-parameter"], pattern)
        formats, removed = page["blackwell-formats"].replace("\n", " "), []
        for size, experiment in results_summary.FORMATS:
            nvfp4, ends = (found(experiment, name) for name in ("nvfp4", "nvfp4_ends_bf16"))
            pattern = rf"{nvfp4['gap']:.3f} nats \({100 * nvfp4['gap_share']:.2f}%\)[^,:]* with {size[:-1]} million"
            self.assertRegex(formats, pattern)
            removed.append(f"{100 * (1 - ends['gap'] / nvfp4['gap']):.0f}%")
        self.assertIn(f"remove {' and '.join(removed)} of the gap", formats)
        self.assertIn(f"NVFP4 ends {100 * nvfp4['gap_share']:.2f}% above BF16", (ROOT / "README.md").read_text())
        mxfp8, blockwise = (found("gpt2_30m_formats", name) for name in ("mxfp8", "blockwise"))
        difference = results_summary.interval_text([x - y for x, y in zip(mxfp8["pairs"], blockwise["pairs"], strict=True)])
        self.assertIn(difference.replace(" (", ", ", 1).rstrip(")"), page["blackwell-formats"])
        self.assertIn(f"{found('gpt2_124m_lora', 'lora', 1)['gap']:+.2f} nats on GSM8K", page["gpt2-124m-finetuning"])

    def test_index_names_hardware_and_gpu_hours(self):
        rows = [line for line in (RESULTS / "README.md").read_text().splitlines() if line.startswith("|")][2:]
        for line, row in zip(rows, json.loads((RESULTS / "cost.json").read_text())["rows"], strict=True):
            self.assertTrue(f"]({'convergence/' + row['page']})" in line or line.startswith("| | "), line)
            hours = results_summary.two_digits(gpu_hours(row["experiments"]))
            self.assertTrue(line.endswith(f"| {row['hardware']}, {hours} |"), f"{hours}: {line}")

    def test_tutorial_prints_what_its_report_says(self):
        printed = (ROOT / "docs" / "tutorials" / "fp8-vs-bf16.md").read_text().split("## 3.")[1].split("## 4.")[0]
        for arm in results_summary.arms("small_llama"):
            training, verdict = arm["measures"][0], results_summary.VERDICT_TEXTS[arm["verdict"]]
            gap = f"{training['gap']:+.4f} nats ({100 * training['gap_share']:+.3f}%)"
            interval = f"95% interval {training['low']:+.4f} to {training['high']:+.4f}: "
            self.assertIn(f"{arm['name']}: {verdict}\n      {training['name']}: {gap}, {interval}", printed)

    def test_fine_tuning_is_within_tolerance_on_dolly(self):
        for name in ("gpt2_124m_instructions", "gpt2_124m_lora"):
            table = results_summary.tuning_table(name)[2:]
            self.assertEqual(len(table), 4)
            for row in table:
                low, high = re.findall(r"\(([^ ]+) to ([^ ]+)\)", row)[-1]
                self.assertTrue(-0.01 < float(low) and float(high) < 0.01, row)
            for arm in results_summary.arms(name):
                self.assertEqual(arm["verdict"], "outside" if arm["name"] == "lora" else "within")

    def test_speeds_match_their_source_pages(self):
        for session in json.loads((RESULTS / "speed.json").read_text())["sessions"]:
            source = (ROOT / session["source"]).read_text()
            for row in session["rows"]:
                for key, value in row.items():
                    if isinstance(value, (int, float)):
                        written = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
                        self.assertTrue(written in source, f"{row['model']} {key}: {written} is not in {session['source']}")

    def test_no_verdict_with_fewer_than_three_pairs(self):
        for row in json.loads((RESULTS / "summary.json").read_text())["evidence"]:
            if row["pairs"] < 3:
                self.assertEqual(row["verdict"], "inconclusive")
                self.assertIsNone(row["low"])

    def test_readme_is_short(self):
        lines = (ROOT / "README.md").read_text().count("\n")
        self.assertTrue(110 <= lines <= 150, f"{lines} lines")
        self.assertLessEqual(len(re.findall(r"^\| \[", block("evidence"), re.M)), 6)

    def test_prose_and_plans_of_the_readme(self):
        readme = (ROOT / "README.md").read_text()
        rows = json.loads((RESULTS / "summary.json").read_text())["evidence"]
        longest = max(rows, key=lambda row: row["tokens_per_parameter"])
        largest = max((row for row in rows if row["model"].startswith("Llama 1.3B")), key=lambda row: row["tokens_per_parameter"])
        self.assertIn(f"The 1.3B model has {largest['tokens_per_parameter']:.3f} tokens per parameter; only models of 8 to "
                      f"{longest['parameters'] / 1e6:.0f} million parameters reach "
                      f"{longest['tokens_per_parameter']:.0f},\nand there FP8 ends {longest['gap_percent']:.1f}% above BF16", readme)
        for experiment in ("gap_law_8m", "gap_law_16m", "gap_law_30m"):
            smaller = next(arm for arm in results_summary.arms(experiment) if arm["name"] == "delayed")["measures"][0]
            self.assertEqual(f"{100 * smaller['gap_share']:.1f}", f"{longest['gap_percent']:.1f}")
        pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md") if "log" not in path.parts)
        plans = re.findall(r"([\d.]+) GiB", readme)
        self.assertEqual(len(plans), 12)
        for plan in plans:
            self.assertTrue(plan in pages, f"{plan} GiB is in the README, but on no other page")

    def test_digits(self):
        self.assertEqual([results_summary.two_digits(x) for x in (2.637, 0.5266, 0.0751, 0.000584)], ["2.6", "0.53", "0.075", "0.00058"])


class Changed(unittest.TestCase):
    def test_an_edited_number_is_found(self):
        data = results_summary.summary()
        path = ROOT / "README.md"
        text = path.read_text()
        edited = text.replace(f"{data['speed'][0]['rows'][0]['fp8']:,}", "999,999")
        self.assertNotEqual(edited, text)
        self.assertEqual(results_summary.with_block(edited, "speed", results_summary.speed_table(data), path), text)


class LostArms(InFolder):
    def test_are_rows_of_tables(self):
        report = json.loads((RESULTS / "llama7b_calm" / "report.json").read_text())
        lost = report["arms"][0] = report["arms"][0] | {"verdict": "outside", "measures": [], "excess": None}
        (self.folder / "llama7b_calm").mkdir()
        (self.folder / "llama7b_calm" / "report.json").write_text(json.dumps(report))
        before, name = results_summary.gap_table("llama7b_calm"), label("llama7b_calm", lost["name"])
        with mock.patch("results_data.RESULTS", self.folder):
            self.assertNotIn(lost["name"], [arm["name"] for arm in results_summary.arms("llama7b_calm")])
            self.assertIn(f"| {name} | 0 | - | - | outside tolerance |", results_summary.gap_table("llama7b_calm"))
            self.assertEqual(len(results_summary.gap_table("llama7b_calm")), len(before))


class Picture(InFolder):
    def test_is_drawn(self):
        output = self.folder / "overview.png"
        done = subprocess.run([sys.executable, ROOT / "scripts" / "readme_picture.py", "--output", output], capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(output.read_bytes()[:4], b"\x89PNG")
        self.assertGreater(output.stat().st_size, 50_000)


class ConvergenceFigures(InFolder):
    def draw(self, *arguments):
        program = ROOT / "scripts" / "results_pictures.py"
        done = subprocess.run([sys.executable, program, "--folder", self.folder, *arguments], capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.png")}

    def test_each_is_drawn_and_is_on_a_page(self):
        drawn = self.draw()
        stored = {"guard.png"} | {path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*.png")}
        self.assertEqual(drawn, {name for name in stored if name.split("/")[0] != "timeline"})
        pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
        for name in drawn:
            self.assertIn(f"/{name})", pages)

    def test_draws_selected_experiments(self):
        self.assertEqual(self.draw("llama_1b_calm", "llama7b"), {"llama_1b_calm/gaps.png", "llama7b/gap.png"})

    def test_uses_display_names(self):
        try:
            import results_pictures
        except SystemExit:
            self.skipTest("no matplotlib")
        for name, draw in results_pictures.PICTURES.items():
            figure = draw()
            titles = [text.get_text() for text in figure.texts]
            self.assertTrue(any("tokens" in title and any(word in title for word in ("H100", "H200", "seed 1", "CPU")) for title in titles), name)
            for axes in figure.axes:
                lines = [line for line in axes.lines if not line.get_label().startswith("_")]
                self.assertLessEqual(len({line.get_color() for line in lines}), 6, name)
                shown = [line.get_label() for line in lines] + [tick.get_text() for tick in axes.get_yticklabels()]
                for text in shown:
                    self.assertNotRegex(text.replace("linear_fc2", "").replace("guard.action", ""), r"[a-z0-9]_[a-z0-9]", name)
            results_pictures.figures.pyplot().close(figure)


if __name__ == "__main__":
    unittest.main()
