"""Tables and numbers that are written by hand on the pages of docs/results match the losses and reports in its folders."""

import csv
import io
import itertools
import json
import math
import re
import statistics
import sys
import tarfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "scripts"))
import results_summary
from results_data import arms

MILLION = 1e6


def page(name):
    return (RESULTS / "convergence" / f"{name}.md").read_text()


def table(text, header):
    """{first cell: other cells} of the rows below a line that begins so; a repeated or empty first cell gets a number."""
    lines = text.split("\n" + header, 1)[1].split("\n\n")[0].splitlines()[2:]
    rows = {}
    for line in lines:
        name, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        rows[name if name and name not in rows else f"{name}{len(rows)}"] = cells
    return rows


def read(experiment, run):
    with (RESULTS / experiment / f"{run}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def losses(experiment, run):
    return {int(row["consumed_tokens"]): float(row["loss"]) for row in read(experiment, run)}


def last(experiment, run, column="valid_loss"):
    return [float(row[column]) for row in read(experiment, run) if row[column]][-1]


def gap(experiment, run, low, high, base="bf16"):
    """Mean difference to BF16 of the same seed between two token counts, low excluded."""
    seed = re.search(r"_seed\d+$", run)[0]
    one, other = losses(experiment, run), losses(experiment, base + seed)
    return statistics.fmean(one[at] - other[at] for at in one if low < at <= high)


def archived(experiment):
    """{run: {consumed tokens: loss}} of the folder's curves.tar.xz."""
    with tarfile.open(RESULTS / experiment / "curves.tar.xz") as archive:
        files = {Path(item.name).stem: io.TextIOWrapper(archive.extractfile(item)) for item in archive.getmembers()}
        return {run: {int(row["consumed_tokens"]): float(row["loss"]) for row in csv.DictReader(file)} for run, file in files.items()}


def mean(experiment, run, low, high):
    return statistics.fmean(loss for at, loss in losses(experiment, run).items() if low < at <= high)


class Pages(unittest.TestCase):
    def same(self, cell, value, where):
        """A cell such as +0.0012, **-0.99%** or 5.2130 is the value, up to its last digit."""
        text = cell.strip("* ")
        digits = len(text.rstrip("%").partition(".")[2])
        self.assertAlmostEqual(float(text.rstrip("%")), value, delta=0.51 * 10**-digits, msg=where)

    def same_cells(self, cells, values, where):
        for cell, value in zip(cells, values, strict=True):
            self.same(cell, value, f"{where}: {cell}, not {value}")

    def test_index_has_the_models_tokens_and_pairs(self):
        parameters = {"Llama 1.3B": results_summary.LLAMA_1B_GPT2_TOKENS, "Llama 8M": 8_456_960,
                      "Llama 16M": 15_880_320, "Llama 31M": 31_008_960, "Llama 51M": results_summary.LLAMA_51M,
                      "Llama 127M": 127_481_600,
                      "Mixture of experts 87M": results_summary.EXPERTS_87M,
                      "GPT-2 124M": results_summary.GPT2, "GPT-2 30M": 30_400_000, "Llama 2 7B": 6_738_415_616}
        cost = json.loads((RESULTS / "cost.json").read_text())["rows"]
        lines = [line for line in (RESULTS / "README.md").read_text().splitlines() if line.startswith("|")][2:]
        for line, row in zip(lines, cost, strict=True):
            _, _, model, tokens, per_parameter, pairs, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            experiment = row["experiments"][-1]
            if experiment == "gpt2_124m_twice_the_rate":
                experiment, pairs = "gpt2_124m_learning_rates", "1"  # the row has both
            path = next(iter(sorted((RESULTS / experiment).glob("*_seed1.csv"))), RESULTS / experiment / "bf16.csv")
            trained = max(losses(experiment, path.stem))
            million = tokens.split(", ")[0].replace(",", "")
            rounding = max(0.51 * 10 ** -len(million.partition(".")[2]), 0.012 * float(million))
            self.assertAlmostEqual(float(million), trained / MILLION, delta=rounding, msg=line)
            self.assertAlmostEqual(float(per_parameter), trained / parameters[model], delta=0.03 * float(per_parameter), msg=line)
            runs = len(list((RESULTS / experiment).glob("bf16_seed?.csv")) or [1])
            expected = int(re.split("[,;]", pairs)[-1 if "lora" in experiment else 0])
            if experiment not in ("llama7b_calm", "gpt2_124m_learning_rates", "gpt2_124m", "gpt2_124m_lora"):
                self.assertEqual(runs, expected, line)

    def test_100_million_tokens_by_epoch(self):
        experiment = "llama_1b_100m"
        parts = [(20, 28), (33, 57), (63, 86), (92, 101)]
        for name, cells in table(page("llama-1b-100m-tokens"), "| Recipe | Epoch 1").items():
            recipe = name.split("`")[1]
            runs = sorted(path.stem for path in (RESULTS / experiment).glob(f"fp8_{recipe}_seed?.csv"))
            self.assertIn(f"{len(runs)} pairs", name)
            values = [statistics.fmean(gap(experiment, run, low * MILLION, high * MILLION) for run in runs) for low, high in parts]
            self.same_cells(cells, values, name)

    def test_largest_gradient_norm_and_control_of_five_seeds(self):
        experiment, text = "llama_1b_unit_embeddings", page("llama-1b-seeds")
        early = [path.stem for path in (RESULTS / experiment).glob("*_seed[123].csv") if "rowwise" not in path.stem]
        later = [row for run in early for row in read(experiment, run) if int(row["step"]) > 10]
        largest = max(float(row["grad_norm"]) for row in later)
        self.assertIn(f"after step 10 ({largest:.1f})", text)
        control = next(arm for arm in arms(experiment) if arm["name"] == "bf16_other_order")["measures"][0]["pairs"]
        self.assertLess(max(map(abs, control)), 0.0005)

    def test_gaps_with_and_without_repetition(self):
        parts = [(33, 57), (63, 86), (92, 101)]
        rows = table(page("llama-1b-repeated-data"), "| Data | 33 to 57")
        for name, experiment in (("not repeated", "llama_1b_100m_once"), ("repeated 3.4 times", "llama_1b_100m")):
            run = "fp8_delayed_seed1"
            values = [gap(experiment, run, low * MILLION, high * MILLION) for low, high in parts]
            values += [last(experiment, run, column) - last(experiment, "bf16_seed1", column)
                       for column in ("valid_loss.corpus", "valid_loss.books")]
            self.same_cells(rows[name], values, name)

    def test_switches(self):
        experiment, tokens = "gpt2_124m_switch", 65_536
        rows = list(table(page("gpt2-124m-switch"), "| Run | Switch").values())
        runs = ["delayed_from_101", "delayed_101_to_200", "blockwise_101_to_200", "blockwise_101_to_200"]
        for run, step, cells in zip(runs, (100, 200, 100, 200), rows, strict=True):
            for seed in (0, 1):
                def part(first, end, name=f"{run}_seed{seed + 1}"):
                    return gap(experiment, name, first * tokens, end * tokens)
                values = [part(step, step + 1) - part(step - 1, step), part(step - 20, step), part(step, step + 20), part(270, 300)]
                for cell, value in zip(cells[1:], values, strict=True):
                    if cell:
                        self.same(cell.split(";")[seed], value, f"{run} seed {seed + 1} after {step}: {cell}, not {value}")

    def test_losses_of_the_saturation_runs(self):
        experiment, end = "llama_1b_recipes", 14_745_600
        rows = table(page("llama-1b-saturation"), "| Run | Training loss")
        base = mean(experiment, "bf16_seed1", 0.9 * end, end), last(experiment, "bf16_seed1")
        self.same_cells(rows.pop("BF16"), base, "BF16")
        for name, cells in rows.items():
            run = f"fp8_{name.strip('`')}_seed1"
            found = mean(experiment, run, 0.9 * end, end), last(experiment, run)
            self.same_cells(cells, [100 * (x / y - 1) for x, y in zip(found, base)], name)

    def test_learning_rates(self):
        found = json.loads((RESULTS / "gpt2_124m_learning_rates" / "report.json").read_text())["arms"]
        report = {arm["name"]: arm["measures"][0] for arm in found}
        rows = table(page("gpt2-124m-learning-rates"), "| Learning rate | BF16 loss")
        for cells, name in zip(rows.values(), ("half", "1x", "2x", "4x"), strict=True):
            delayed, blockwise = report[f"delayed_{name}"], report[f"blockwise_{name}"]
            self.assertAlmostEqual(float(cells[0]), blockwise["gap"] / blockwise["gap_share"], delta=1e-4, msg=name)
            for found, part in ((delayed, cells[1:3]), (blockwise, cells[3:5])):
                self.same_cells(part, [found["gap"], 100 * found["gap_share"]], name)

    def test_variants_against_their_neighbors(self):
        pairs = {arm["name"]: arm["measures"][0]["pairs"] for arm in arms("gpt2_30m_ablations_calm")}
        neighbors = [("delayed_e4m3", "delayed_hybrid"), ("tensorwise_e4m3", "tensorwise_hybrid"),
                     ("rowwise_e4m3", "rowwise_hybrid"), ("blockwise_e4m3", "blockwise_hybrid"),
                     ("tensorwise_power_of_two", "tensorwise_hybrid"), ("most_recent", "delayed_hybrid"),
                     ("output_layer_fp8", "delayed_hybrid"), ("moments_fp8", "delayed_hybrid")]
        rows = table(page("gpt-30m-variants"), "| Variant minus neighbor")
        for (one, other), (name, cells) in zip(neighbors, rows.items(), strict=True):
            differences = [x - y for x, y in zip(pairs[one], pairs[other], strict=True)]
            half = results_summary.STUDENT[len(differences)] * statistics.stdev(differences) / len(differences) ** 0.5
            center = statistics.fmean(differences)
            self.same_cells(re.findall(r"[+-][\d.]+", cells[0]), [center, center - half, center + half], name)

    def test_reports_match_the_archived_curves(self):
        """curves.tar.xz has every step of every run, also of decays that branch off; branches start after that step."""
        for experiment in ("gap_law_16m", "gap_law_30m", "gap_law_50m", "gap_law_127m", "gap_gemms_16m",
                           "gap_parts_16m", "gpt2_124m_lora"):
            curves = archived(experiment)
            for arm in arms(experiment):
                seeds = sorted(name for name in curves if re.fullmatch(re.escape(arm["name"]) + r"_seed\d", name))
                for seed, pair in zip(seeds, arm["measures"][0]["pairs"], strict=True):
                    base = curves[arm.get("baseline", "bf16") + seed[-6:]]
                    common = base.keys() & curves[seed].keys()
                    first, end = min(common), max(common)
                    kept = [at for at in common if at >= end - 0.1 * (end - first)]
                    found = statistics.fmean(curves[seed][at] - base[at] for at in kept)
                    self.assertAlmostEqual(found, pair, delta=1e-5, msg=f"{experiment} {seed}")

    def test_law_of_the_gap(self):
        """The fits on the page have their chi-squared, which other exponents and factors do not lower."""
        text = page("llama-tokens-per-parameter").replace("\n  ", " ")
        fit = re.search(r"as registered: ([\d.]+) nats x .*?\^([+-][\d.]+) x .*?\^([+-][\d.]+)", text)
        a, b, c = (float(x) for x in fit.groups())
        sizes = {"gap_law_8m": (8_456_960, 65_536), "gap_law_16m": (15_880_320, 122_880),
                 "gap_law_30m": (31_008_960, 239_616), "gap_law_50m": (50_929_920, 387_072)}
        points = []
        for experiment, (parameters, batch) in sizes.items():
            for suffix, steps in (("_5", 650), ("_10", 1300), ("", 2600)):
                pairs = next(x for x in arms(experiment) if x["name"] == "delayed" + suffix)["measures"][0]["pairs"]
                error = results_summary.STUDENT[len(pairs)] / 1.96 * statistics.stdev(pairs) / len(pairs) ** 0.5
                length = steps * batch / (20 * parameters)
                points.append((length, parameters / 8_456_960, statistics.fmean(pairs), error))

        def chi_squared(a, b, c):
            return sum(((a * length**b * size**c - gap) / error) ** 2 for length, size, gap, error in points)

        least = chi_squared(a, b, c)
        self.assertIn(f"(chi-squared {least:.1f}, nine degrees", text)
        for change in ((0.0002, 0, 0), (0, 0.03, 0), (0, 0, 0.03)):
            for sign in (1, -1):
                self.assertGreater(chi_squared(*(x + sign * y for x, y in zip((a, b, c), change))), least)
        ends = [gap for experiment in list(sizes)[1:] for arm in arms(experiment) if arm["name"] == "delayed"
                for gap in arm["measures"][0]["pairs"]]
        error = statistics.stdev(ends) / len(ends) ** 0.5
        self.assertEqual(len(ends), 11)
        self.assertIn(f"fit one constant, {statistics.fmean(ends):.4f} ± {error:.4f} nats", text.replace("\n", " "))
        # A registered ratio at 51M, of a constant with a part that vanishes (0.0047) to the law (0.0010).
        last = next(x for x in arms("gap_law_50m") if x["name"] == "delayed")["measures"][0]
        error = max(statistics.stdev(last["pairs"]), 0.0034) / len(last["pairs"]) ** 0.5
        ratio = math.exp(((last["gap"] - 0.0010) ** 2 - (last["gap"] - 0.0047) ** 2) / (2 * error**2))
        upper = math.exp(((last["gap"] - 0.0021) ** 2 - (last["gap"] - 0.0047) ** 2) / (2 * error**2))
        ratios = f"registered likelihood ratio {ratio:.0f} (10 decides); {upper:.0f} with the law's upper limit"
        self.assertIn(ratios, text)

    def test_recipes_next_to_delayed(self):
        """Where recipes differ significantly from delayed: tensorwise, below it at 16M and 10, above it at 31M, 10 and 20."""
        pairs = {arm["name"]: arm["measures"][0]["pairs"] for arm in arms("gap_law_16m")}
        eight = {arm["name"]: arm["measures"][0]["pairs"] for arm in arms("gap_law_8m")}
        larger = {arm["name"]: arm["measures"][0]["pairs"] for arm in arms("gap_law_30m")}
        text = page("llama-tokens-per-parameter").replace("\n  ", " ")
        for size, found in (("8M", eight), ("16M", pairs), ("31M", larger)):
            for recipe, length in itertools.product(("tensorwise", "blockwise"), ("_5", "_10", "")):
                if recipe + length not in found:
                    continue
                differences = [x - y for x, y in zip(found[recipe + length], found["delayed" + length])]
                error = statistics.stdev(differences) / len(differences) ** 0.5
                significant = abs(statistics.fmean(differences)) > results_summary.STUDENT[len(differences)] * error
                different = {("16M", "tensorwise_10"), ("31M", "tensorwise_10"), ("31M", "tensorwise")}
                self.assertEqual(significant, (size, recipe + length) in different, f"{size} {recipe}{length}")
                if (size, recipe + length) == ("31M", "tensorwise"):
                    self.assertIn(f"`tensorwise` minus `delayed`: {results_summary.interval_text(differences)} at 20", text)
        beside = []
        for found in (eight, pairs, larger):
            beside.append(statistics.fmean(x - y / 2 for x, y in zip(found["delayed"], found["bf16_control"])))
        means = "BF16 and control at 20, `delayed`: {:+.4f} (8M), {:+.4f} (16M), {:+.4f} (31M)"
        self.assertIn(means.format(*beside), text)
        same_gpu, own = archived("gap_gemms_16m"), archived("gap_law_16m")
        for recipe in ("tensorwise", "blockwise", "bf16_control"):
            gaps = []
            for seed in range(1, len(pairs[recipe]) + 1):
                curves = own[f"{recipe}_seed{seed}"], same_gpu[f"bf16_seed{seed}"]
                last, base = (statistics.fmean(list(curve.values())[-260:]) for curve in curves)
                gaps.append(last - base)
            control = f"control {statistics.fmean(gaps):+.4f}"
            self.assertIn(control if recipe == "bf16_control" else results_summary.interval_text(gaps), text)

    def test_pairs_of_127_million_parameters(self):
        text = page("llama-tokens-per-parameter").replace("\n  ", " ")
        found = {arm["name"]: arm["measures"][0] for arm in arms("gap_law_127m")}
        ends = [found[name]["gap"] for name in ("delayed_2", "delayed_4", "delayed")]
        share = 100 * found["delayed"]["gap_share"]
        self.assertIn(f"{ends[0]:+.4f}, {ends[1]:+.4f} and {ends[2]:+.4f} nats ({share:+.2f}%)", text)
        self.assertIn(f"in BF16: {-found['delayed_end']['gap']:.4f} less", text)
        # The registered standard error of three pairs is larger than the one found.
        gap, error = ends[2], max(statistics.stdev(found["delayed"]["pairs"]), 0.0034) / 3**0.5
        ratio = math.exp((gap**2 - (gap - 0.0054) ** 2) / (2 * error**2))
        self.assertIn(f"The registered constant, 0.0054, is {ratio:.0f} times as likely as no gap", text)
        self.assertIn(f"the last ({found['delayed']['low']:+.4f} to {found['delayed']['high']:+.4f})", text)
        curves = archived("gap_law_127m")
        losses = {name: list(curve.values()) for name, curve in curves.items()}
        changes = []
        for steps in (40, 260):
            pairs = [zip(losses[f"delayed_end_seed{seed}"][-steps:], losses[f"delayed_seed{seed}"][-steps:])
                     for seed in (1, 2, 3)]
            changes.append(statistics.fmean(x - y for pair in pairs for x, y in pair))
        self.assertIn(f"last 40 steps ({changes[0]:.5f}; last 260: {changes[1]:.5f})", text)

    def test_parts_of_the_gap(self):
        """Numbers in the text, from all steps; the table is written from the reports."""
        text, step = page("llama-16m-parts").replace("\n", " "), 122_880
        curves = {name: archived(name) for name in ("gap_gemms_16m", "gap_parts_16m")}

        def gap_of(experiment, arm, first, last):
            runs, seeds = curves[experiment], (1, 2, 3, 4) if experiment == "gap_gemms_16m" else (1, 2, 3)
            return statistics.fmean(runs[f"{arm}_seed{seed}"][at] - runs[f"bf16_seed{seed}"][at]
                                    for seed in seeds for at in range(first * step, (last + 1) * step, step))

        linears = {arm: gap_of("gap_parts_16m", arm, 1101, 1110) for arm in ("qkv", "proj", "fc1", "fc2")}
        for arm, value in linears.items():
            self.assertIn(f"`linear_{arm}` {value:+.4f}", text)
        fprop = gap_of("gap_gemms_16m", "fprop", 1101, 1110)
        self.assertLess(abs(sum(linears.values()) - fprop), 0.0001)
        before, after = (gap_of("gap_parts_16m", "fp8_first", *steps) for steps in ((2191, 2200), (2201, 2210)))
        found = f"is {before:.4f} in the last ten steps before, {after:.4f} in the first ten after it"
        self.assertIn(found, text.replace("  ", " "))
        self.assertIn(f"a fall by at most 0.0034 ({before - after:.4f})", text)
        self.assertIn(f"under half in 100 steps ({gap_of('gap_gemms_16m', 'delayed', 1101, 1200):.4f})", text)
        found = {arm["name"]: arm["measures"] for arm in arms("gap_gemms_16m")}
        ends = {name: measures[0]["gap"] for name, measures in found.items()}
        for name, share in (("fprop", 89), ("dgrad", 12), ("wgrad", 3)):
            self.assertAlmostEqual(100 * ends[name] / ends["delayed"], share, delta=0.6)
        training, validation = (measure["baseline"] for measure in found["delayed"])
        self.assertIn(f"BF16 ends at {training:.3f} (training) and {validation:.3f}", text)
        for seed in (1, 2, 3):
            self.assertEqual(*(curves[name][f"bf16_seed{seed}"] for name in curves))

    def test_longest_run(self):
        """Every fifth step's loss is stored, so the training losses differ slightly."""
        text = page("gpt2-124m-328m-tokens")
        rows = table(text, "| Run | Training loss")
        runs = {"BF16, seed 1234": "bf16", "FP8 `delayed`, seed 1234": "fp8", "BF16, seed 2": "bf16_seed2", "BF16, seed 3": "bf16_seed3"}
        for name, run in runs.items():
            self.same(rows[name][2], last("gpt2_124m", run), name)
            self.assertAlmostEqual(float(rows[name][0]), mean("gpt2_124m", run, 317e6, 328e6), delta=0.015, msg=name)
        validation = [last("gpt2_124m", run) for run in runs.values()]
        self.same(rows["FP8 `delayed`, seed 1234"][3], 100 * (validation[1] / validation[0] - 1), "validation gap")
        row = next(x for x in results_summary.summary()["evidence"] if x["experiment"] == "gpt2_124m")
        self.same(rows["FP8 `delayed`, seed 1234"][1], row["gap_percent"], "training gap")
        seeds = [100 * (x / validation[0] - 1) for x in (validation[0], *validation[2:])]
        center, spread = statistics.fmean(seeds), 2 * statistics.stdev(seeds)
        self.same_cells(re.findall(r"[+-][\d.]+%", rows["Band of BF16 seeds"][3]), [center - spread, center + spread], "band")


if __name__ == "__main__":
    unittest.main()
