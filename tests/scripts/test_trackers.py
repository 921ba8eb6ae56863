#!/usr/bin/env python3
"""export_metrics.py with the real Weights & Biases and MLflow, offline; the test reads back the files that they write.
scripts/install_deps.sh --dev installs the trackers in .deps/trackers."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TRACKERS = ROOT / ".deps" / "trackers"
ENVIRONMENT = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "PYTHONPATH": str(TRACKERS)}

for tracker in ("wandb", "mlflow.tracking"):
    probe = [sys.executable, "-c", f"import {tracker}"]
    if subprocess.run(probe, env=ENVIRONMENT, capture_output=True).returncode != 0:
        print(f"SKIPPED: {tracker.split('.')[0]} is missing for {sys.executable} (scripts/install_deps.sh --dev)")
        sys.exit(77)

from export_testing import InRun, line, lines


EARLY = "stopped early: no lower validation loss in 2 validations"


class Trackers(InRun):
    def setUp(self):
        super().setUp()
        operand = {"linear": "l", "role": "input", "format": "e4m3", "saturated": 1e-5, "flushed": 0.25}
        self.log.write_text(lines(1, 19) + line(20, 0.5, valid_loss=2.25, valid={"books": {"loss": 2.25}}, fp8=[operand]))

    def stop_early(self):
        self.write_config(**{"training.early_stopping_patience": "2"})
        self.log.write_text("".join(line(step, 1.0, valid_loss=1.0 + step) for step in (1, 2, 3)))

    def call(self, *arguments):
        command = [sys.executable, "-B", str(ROOT / "scripts" / "export_metrics.py"), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
        return done.returncode, done.stdout, done.stderr

    def test_mlflow(self):
        store = (self.folder / "mlruns").as_uri()
        arguments = ("--to", "mlflow", "--tracking-uri", store, "--project", "p", "--tag", "mine", self.folder)
        code, output, errors = self.call(*arguments)
        self.assertEqual(code, 0, errors)
        self.assertIn("20 records sent, up to step 20 (finished)", output)
        (run,) = (self.folder / "mlruns").glob("*/*/meta.yaml")
        run = run.parent
        points = [text.split() for text in (run / "metrics" / "loss").read_text().splitlines()]
        self.assertEqual([int(p[2]) for p in points], list(range(1, 21)))
        self.assertEqual((float(points[-1][1]), int(points[-1][0])), (0.5, 1767225600000 + 10000))  # 20 steps of 0.5 s
        for name, value in (("fp8/flushed", 0.25), ("valid/books/loss", 2.25), ("valid_loss", 2.25)):
            self.assertEqual(float((run / "metrics" / name).read_text().split()[1]), value)
        self.assertEqual((run / "params" / "precision.fp8").read_text(), "hybrid")
        self.assertEqual((run / "tags" / "mlflow.runName").read_text(), "fp8_seed1")
        self.assertEqual((run / "tags" / "commit").read_text(), "abc")
        self.assertEqual([(run / "tags" / f"te_train.{i}").read_text() for i in range(3)], ["llama", "fp8", "mine"])
        self.assertIn("status: 3", (run / "meta.yaml").read_text())  # FINISHED
        self.assertEqual([(run / "tags" / name).read_text() for name in ("state", "reason")], ["finished", ""])
        # Nothing is sent twice; steps that a resume discards start another run.
        self.assertIn("0 records sent", self.call(*arguments)[1])
        self.log.write_text(lines(1, 10) + lines(11, 20, loss=3.0))
        self.assertEqual(self.call(*arguments)[0], 0)
        runs = {m.parent for m in (self.folder / "mlruns").glob("*/*/meta.yaml")}
        self.assertEqual(len(runs), 2)
        (new,) = runs - {run}
        self.assertEqual((run / "tags" / "superseded_by").read_text(), new.name)
        self.assertEqual(len((new / "metrics" / "loss").read_text().splitlines()), 20)

    def test_mlflow_with_a_run_that_stopped_early(self):
        self.stop_early()
        runs = (self.folder / "mlruns").as_uri()
        code, output, errors = self.call("--to", "mlflow", "--tracking-uri", runs, self.folder)
        self.assertEqual(code, 0, errors)
        (run,) = (self.folder / "mlruns").glob("*/*/meta.yaml")
        self.assertIn("status: 3", run.read_text())  # FINISHED
        self.assertEqual((run.parent / "tags" / "reason").read_text(), EARLY)

    def test_mlflow_with_all_names_of_datasets(self):
        names = {"/w/a": "_2fw/a", "d/../b": "d/_2e_2e/b", "./c": "_2e/c", "c++": "c_2b_2b", "web@2": "web_402"}
        names |= {"d/a.b": "d/a.b", "d/a/b": "d/a/b"}
        losses = {name: {"loss": float(i)} for i, name in enumerate(names)}
        self.log.write_text(line(1, 1.0, sources=losses))
        store = self.folder / "mlruns"
        code, _, errors = self.call("--to", "mlflow", "--tracking-uri", store.as_uri(), self.folder)
        self.assertEqual(code, 0, errors)
        (metrics,) = store.glob("*/*/metrics/sources")
        found = {str(f.parent.relative_to(metrics)): float(f.read_text().split()[1]) for f in metrics.rglob("loss")}
        self.assertEqual(found, {sent: losses[name]["loss"] for name, sent in names.items()})

    def test_mlflow_during_the_run(self):
        lock, store = self.folder / "run.lock", (self.folder / "mlruns").as_uri()
        lock.write_text(f"host {os.uname().nodename} pid {os.getpid()} since now now\n")
        whole = self.log.read_text()
        self.log.write_text(begun := lines(1, 5))

        def finish():  # appends as te-train does, without truncating the log
            end = time.monotonic() + 120
            while not list(self.folder.glob("mlruns/*/*/metrics/loss")) and time.monotonic() < end:
                time.sleep(0.1)
            with self.log.open("a") as log:
                log.write(whole.removeprefix(begun))
            lock.unlink()

        thread = threading.Thread(target=finish)
        thread.start()
        self.addCleanup(thread.join)
        code, output, errors = self.call(
            "--to", "mlflow", "--tracking-uri", store, "--follow", "--every", "0.2", self.folder
        )
        self.assertEqual(code, 0, errors)
        self.assertTrue(output.endswith("finished at step 20\n"), output)
        (metric,) = (self.folder / "mlruns").glob("*/*/metrics/loss")
        self.assertEqual(len(metric.read_text().splitlines()), 20)

    def test_wandb(self):
        code, output, errors = self.call("--to", "wandb", "--offline", "--project", "p", self.folder)
        self.assertEqual(code, 0, errors)
        self.assertIn("20 records sent, up to step 20 (finished)", output)
        (file,) = self.folder.glob("wandb/offline-run-*/run-*.wandb")
        records = self.read_wandb(file)
        (run,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
        self.assertEqual((run.project, run.display_name, run.run_group), ("p", "fp8_seed1", "runs"))
        self.assertEqual(list(run.tags), ["llama", "fp8"])
        self.assertIn(("training.train_steps", '"20"'), [(i.key, i.value_json) for i in run.config.update])
        history = [
            {"/".join([item.key, *item.nested_key]).strip("/"): json.loads(item.value_json) for item in r.history.item}
            for r in records
            if r.WhichOneof("record_type") == "history"
        ]
        self.assertEqual([h["step"] for h in history], list(range(1, 21)))
        self.assertEqual((history[-1]["loss"], history[-1]["fp8/saturated"], history[-1]["seconds"]), (0.5, 1e-5, 10.0))
        self.assertEqual([r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"], [0])
        self.assertIn("0 records sent", self.call("--to", "wandb", "--offline", "--project", "p", self.folder)[1])

    def test_wandb_with_a_run_that_stopped_early(self):
        self.stop_early()
        self.assertEqual(self.call("--to", "wandb", "--offline", "--project", "p", self.folder)[0], 0)
        (file,) = self.folder.glob("wandb/offline-run-*/run-*.wandb")
        summaries = [r.summary.update for r in self.read_wandb(file) if r.WhichOneof("record_type") == "summary"]
        found = {item.key: json.loads(item.value_json) for update in summaries for item in update}
        self.assertEqual((found["state"], found["reason"]), ("finished", EARLY))

    def read_wandb(self, file):
        """The records of a .wandb file: a LevelDB log (blocks of 32 KiB) after a header of 7 bytes."""
        sys.path.insert(0, str(TRACKERS))
        self.addCleanup(sys.path.remove, str(TRACKERS))
        from wandb.proto import wandb_internal_pb2

        data, at, part, found = file.read_bytes(), 7, b"", []
        while at + 7 <= len(data):
            if (left := 32768 - at % 32768) < 7:
                at += left
                continue
            _, size, kind = struct.unpack_from("<IHB", data, at)
            part += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # complete, or the last part
                found.append(wandb_internal_pb2.Record())
                found[-1].ParseFromString(part)
                part = b""
        return found


if __name__ == "__main__":
    unittest.main()
