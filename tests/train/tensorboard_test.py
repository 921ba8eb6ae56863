"""A run's TensorBoard event files, read back by TensorBoard and by scripts/report: numbers, histograms, text, and the steps
that a resumed run repeats.

    tensorboard_test.py TE_TRAIN

Exits with 77 (skipped) without the tensorboard package; scripts/install_deps.sh --dev installs it in .deps/tensorboard."""

import csv
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / ".deps" / "tensorboard")]
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PageAccumulator
except ImportError as missing:
    print(f"skipped: {missing}; scripts/install_deps.sh --dev installs it")
    sys.exit(77)
from report.foreign import Options
from report.runs import read_run

TRAIN = sys.argv.pop(1) if len(sys.argv) > 1 else sys.exit("the path of te-train is missing")

CONFIG = """
model: {family: llama, num_layers: 2, hidden_size: 32, ffn_hidden_size: 48, num_attention_heads: 4, vocab_size: 257,
        seq_length: 16}
precision: {fp8: hybrid}
training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 6, device: cpu}
optimizer: {lr: 5.0e-3, min_lr: 5.0e-4, decay_steps: 6}
data: {synthetic: true}
logging: {fp8_stats_every: 2}
"""
UNLIMITED = {"scalars": 0, "histograms": 0, "tensors": 0}


class Run(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name) / "run"
        self.config = Path(temporary.name) / "small.yaml"
        self.config.write_text(CONFIG)

    def train(self, *keys, flags=(), code=0):
        words = [TRAIN, "--config", self.config, *flags]
        for key in (f"logging.directory={self.folder}", *keys):
            words += ["--set", key]
        done = subprocess.run(words, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"}, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def events(self):
        accumulator = EventAccumulator(str(self.folder), size_guidance=UNLIMITED)
        accumulator.Reload()
        return accumulator

    def records(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def scalar(self, events, tag):
        return {event.step: event.value for event in events.Scalars(tag)}


class EventFiles(Run):
    def test_holds_the_numbers_of_metrics_jsonl(self):
        self.train()
        events, records = self.events(), self.records()
        tags = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "perf/step_ms": "step_ms",
                "perf/tokens_per_s": "tokens_per_s", "train/consumed_tokens": "consumed_tokens"}
        for tag, key in tags.items():
            values = self.scalar(events, tag)
            self.assertEqual(list(values), [1, 2, 3, 4, 5, 6])
            for record in records:
                self.assertAlmostEqual(values[record["step"]], record[key], delta=1e-6 * abs(record[key]))
        # Every number of the log is in the event file.
        numbers = {key for record in records for key, value in record.items() if isinstance(value, (int, float))}
        shown = {tag.split("/")[1] for tag in events.Tags()["scalars"]}
        self.assertEqual(numbers - {"step"} - shown, set())

    def test_holds_fp8_health_as_histograms(self):
        self.train()
        events = self.events()
        last = self.records()[-1]["fp8"]
        for role in ("input", "weight", "grad_output"):
            operands = [item for item in last if item["role"] == role]
            self.assertEqual(len(operands), 8)  # four linears in each of two layers
            amax = events.Histograms(f"fp8/log2_amax/{role}")
            self.assertEqual([event.step for event in amax], [1, 2, 4, 6])
            logarithms = [math.log2(item["amax"]) for item in operands if item["amax"] > 0]
            values = amax[-1].histogram_value
            self.assertEqual((values.num, sum(values.bucket)), (len(logarithms), len(logarithms)))
            self.assertAlmostEqual(values.min, min(logarithms))
            self.assertAlmostEqual(values.max, max(logarithms))
            self.assertAlmostEqual(values.sum, sum(logarithms))
            for value in logarithms:
                self.assertLessEqual(value, values.bucket_limit[-1] + 1e-9)
        largest = max(item["flushed"] for item in last)
        self.assertAlmostEqual(self.scalar(events, "fp8/flushed_max")[6], largest, places=6)

    def test_holds_the_config_as_text(self):
        self.train()
        (text,) = self.events().Tensors("config")
        lines = text.tensor_proto.string_val[0].decode().splitlines()
        effective = (self.folder / "effective_config.yaml").read_text().splitlines()  # with the sources of the values
        values = [line.replace("  # ", "  ", line.startswith("  # ")).split("  # ")[0].rstrip() for line in effective]
        self.assertEqual([line[4:] for line in lines], values)
        self.assertEqual(self.events().SummaryMetadata("config").plugin_data.plugin_name, "text")

    def test_a_resumed_run_repeats_steps(self):
        """The losses after the checkpoint are only those of the second start."""
        self.train("training.train_steps=3")
        self.train("checkpoint.resume=auto", "training.train_steps=6")
        self.assertEqual(len(list(self.folder.glob("events.out.tfevents.*"))), 2)
        self.train(f"checkpoint.resume={self.folder}/checkpoints/step_00000003", "optimizer.lr=1.0e-3")
        values = self.scalar(self.events(), "train/loss")
        self.assertEqual(len(self.events().Scalars("train/loss")), 6)
        for record in self.records():
            self.assertAlmostEqual(values[record["step"]], record["loss"], places=5)
        newest = self.events().Tensors("config")[-1]
        self.assertEqual(newest.step, 4)
        self.assertIn("lr: 0.001\n", newest.tensor_proto.string_val[0].decode())
        # TensorBoard's pages use another reader, in which all values are tensors.
        pages = PageAccumulator(str(self.folder))
        pages.Reload()
        shown = {event.step: event.tensor_proto.float_val[0] for event in pages.Tensors("train/loss")}
        self.assertEqual(len(pages.Tensors("train/loss")), 6)
        self.assertEqual(shown, values)

    def test_overwrite_removes_old_events(self):
        self.train()
        self.train("training.train_steps=2", flags=["--overwrite"])
        self.assertEqual(list(self.scalar(self.events(), "train/loss")), [1, 2])
        self.assertEqual(len(list(self.folder.glob("events.out.tfevents.*"))), 1)

    def test_numbers_that_are_not_finite(self):
        self.train("optimizer.lr=1e38", "optimizer.weight_decay=1e38", "optimizer.decay=constant",
                   "checkpoint.save_last=false", "training.train_steps=4", code=3)
        lost = [record["step"] for record in self.records() if record["loss"] is None]
        self.assertTrue(lost)
        values = self.scalar(self.events(), "train/loss")
        for step in lost:
            self.assertTrue(math.isnan(values[step]))

    def test_can_be_turned_off(self):
        self.train("logging.tensorboard=false")
        self.assertEqual(list(self.folder.glob("*tfevents*")), [])

    def test_scripts_report_reads_the_same_run(self):
        self.train()
        (file,) = self.folder.glob("events.out.tfevents.*")
        found = read_run(file, Options())
        with open(self.folder / "loss.csv", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        self.assertEqual(list(found.tokens), [float(row["consumed_tokens"]) for row in rows])
        for loss, row in zip(found.loss, rows, strict=True):
            self.assertAlmostEqual(loss, float(row["loss"]), places=5)


if __name__ == "__main__":
    unittest.main()
