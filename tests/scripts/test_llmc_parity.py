"""Tests of scripts/peers/llmc_parity.py. With PyTorch and te-train, a tiny run is repeated step by step.

    TE_APPS=build/cpu/apps python3 tests/scripts/test_llmc_parity.py     # with a Python that has PyTorch
"""

import importlib.util
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/peers/llmc_parity.py"
APPS = Path(os.environ.get("TE_APPS", ROOT / "build/cpu/apps")).resolve()
sys.path.insert(0, str(SCRIPT.parent))
from training_order import Permutation, TrainingOrder, philox, stream_of  # noqa: E402

MODEL = """\
extends: preset:gpt2
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, vocab_size: 257, seq_length: 64}
training: {micro_batch_size: 4, global_batch_size: 8, train_steps: 30}
optimizer: {lr: 3.0e-3, min_lr: 3.0e-4, warmup_steps: 5, weight_decay: 1}
data: {train: text}
"""


class Parity(InFolder):
    def run_script(self, *arguments):
        command = [sys.executable, "-B", str(SCRIPT), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)

    def curve(self, name, losses, lr=1e-3):
        """A curve as te-train and as `train` write it; returns both paths."""
        rows = [
            {"step": i + 1, "loss": loss, "lr": lr, "grad_norm": 1, "tokens_per_s": 100 + i} for i, loss in enumerate(losses)
        ]
        self.write(f"{name}/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        return self.folder / name, self.write(f"{name}.csv", "\n".join(lines) + "\n")


class Compare(Parity):
    def test_differences_to_the_reference(self):
        _, reference = self.curve("a", [4.0, 3.0, 2.0, 2.0])
        run, _ = self.curve("b", [4.0, 3.1, 1.9, 2.1])
        result = self.run_script("compare", "--reference", reference, "--last", 2, "--json", "out.json", f"bf16={run}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| bf16 | 4.00000 | 2.00000 | +0.00000 (+0.000%) | 0.07500 | 0.10000 | 102 | 1.00 |", result.stdout)
        row = json.loads((self.folder / "out.json").read_text())["runs"]["bf16"]
        self.assertEqual(row["steps"], 4)
        self.assertAlmostEqual(row["mean_absolute_difference"], 0.075)
        self.assertAlmostEqual(row["end_difference"], 0.0)

    def test_other_runs_are_refused(self):
        _, reference = self.curve("a", [4.0, 3.0])
        for name, run, rule in (
            ("fewer steps", self.curve("b", [4.0])[0], "has 1 steps, the reference 2"),
            ("another rate", self.curve("c", [4.0, 3.0], lr=2e-3)[0], "step 1: lr is 0.002, in the reference 0.001"),
            ("no run", self.folder / "none", "not found"),
        ):
            with self.subTest(name):
                result = self.run_script("compare", "--reference", reference, f"x={run}")
                self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                self.assertIn(rule, result.stderr)


class Order(unittest.TestCase):
    def test_philox_and_names(self):
        """Known answers: Random123's for zeros, FNV's for "a"."""
        self.assertEqual(philox(0, 0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
        self.assertEqual(stream_of("a"), 0xAF63DC4C8601EC8C)

    def test_every_epoch_has_every_sample_once(self):
        self.assertEqual(sorted(map(Permutation(1000, 5, "data.samples", 0), range(1000))), list(range(1000)))
        order = TrainingOrder([0, 3, 3, 50, 61, 101], seq_length=10, seed=7)
        self.assertEqual(order.samples, 10)
        for epoch in range(2):
            targets = []
            for index in range(10 * epoch, 10 * epoch + 10):
                tokens = [token for begin, end in order.extents(index) for token in range(begin, end)]
                self.assertEqual(len(tokens), 11)
                targets += tokens[1:]
            self.assertEqual(len(set(targets)), 100)


@unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch")
@unittest.skipUnless((APPS / "te-train").is_file(), "no te-train")
class RepeatedRun(Parity):
    def app(self, name, *arguments):
        subprocess.run([str(APPS / name), *map(str, arguments)], check=True, capture_output=True, cwd=self.folder)

    def test_losses_of_30_steps_agree(self):
        """FP32, three epochs of documents of various lengths."""
        separator = "<|endoftext|>"
        lines = (f"line {i} {i * i % 977}\n" + (separator + "\n" if i % (37 + i % 5) == 0 else "") for i in range(800))
        self.write("text.txt", "".join(lines))
        self.app("te-data", "tokenize", "--tokenizer", "bytes", "--document-separator", separator, "--input", "text.txt",
                 "--output", "text")
        self.write("run.yaml", MODEL)
        train = ("--config", "run.yaml", "--set", "precision.dtype=fp32", "--set")
        self.app("te-train", *train, "logging.directory=run")
        self.app("te-train", *train, "logging.directory=initial", "--set", "training.train_steps=1", "--set",
                 "optimizer.lr=1e-30", "--set", "optimizer.min_lr=0", "--set", "optimizer.warmup_steps=0")
        self.app("te-convert", "export", "initial", "--out", "weights", "--dtype", "fp32")
        result = self.run_script("train", "--run", "run", "--weights", "weights", "--out", "torch.csv", "--micro-batch", 2,
                                 "--fp32", "--eager", "--device", "cpu")
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_script("compare", "--reference", "torch.csv", "--json", "out.json", "te=run")
        self.assertEqual(result.returncode, 0, result.stderr)
        row = json.loads((self.folder / "out.json").read_text())["runs"]["te"]
        self.assertLess(row["end_loss"], row["first_loss"] - 1)
        self.assertLess(row["largest_difference"], 1e-4)


if __name__ == "__main__":
    unittest.main()
