"""A run folder for the tests of export_metrics.py."""

import json

from folder_testing import InFolder


def line(step, loss, **more):
    return json.dumps({"step": step, "consumed_tokens": 10 * step, "loss": loss, "step_ms": 500.0, **more}) + "\n"


def lines(first, last, loss=1.0):
    return "".join(line(step, loss) for step in range(first, last + 1))


class InRun(InFolder):
    def setUp(self):
        super().setUp()
        self.folder = self.folder / "runs" / "fp8_seed1"
        self.folder.mkdir(parents=True)
        self.log = self.folder / "metrics.jsonl"
        self.write_config()

    def write_config(self, **more):
        config = {"training.train_steps": "20", "precision.fp8": "hybrid", "model.family": "llama", **more}
        start = {"time": "2026-01-01T00:00:00Z", "commit": "abc", "host": "h", "device": "CPU"}
        (self.folder / "run.json").write_text(json.dumps({"config": config, "starts": [start]}))
