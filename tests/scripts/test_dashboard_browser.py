#!/usr/bin/env python3
"""dashboard.py in a real browser: a growing run, axes, scales, zoom, narrow screens."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

import headless_browser

if not headless_browser.find():
    print("SKIPPED: no Chromium (apt install chromium, or scripts/install_deps.sh --dev)")
    sys.exit(77)

READY = "document.body && Number(document.body.dataset.polls || 0) >= 1"


def record(step, fp8=False):
    values = {"step": step, "consumed_tokens": 1000 * step, "loss": 3 + 5 / step**0.5, "grad_norm": 1.0, "lr": 1e-3}
    values |= {"tokens_per_s": 2000.0, "step_ms": 500.0}
    if step % 50 == 0:
        values["valid_loss"] = values["loss"] + 0.1
    if fp8 and step % 10 == 0:
        operand = {"linear": "layers.0.mlp.linear_fc2", "role": "input", "format": "e4m3", "amax": 1.0, "scale": 2.0}
        values["fp8"] = [operand | {"saturated": 1e-5 * step, "flushed": 1e-3}]
    return json.dumps(values) + "\n"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        for name, fp8 in (("bf16", False), ("fp8", True)):
            folder = cls.folder / name
            folder.mkdir()
            config = {"training.train_steps": "400", "precision.fp8": "hybrid" if fp8 else "off"}
            (folder / "run.json").write_text(json.dumps({"config": config}))
            (folder / "metrics.jsonl").write_text("".join(record(s, fp8) for s in range(1, 401 if fp8 else 201)))
        (cls.folder / "bf16" / "run.lock").write_text(f"host {socket.gethostname()} pid {os.getpid()} since now now\n")
        sample = {"step": 100, "prompt": "Say", "text": " <img src=x onerror=document.title='bad'>", "ending": "length"}
        (cls.folder / "fp8" / "samples.jsonl").write_text(json.dumps(sample) + "\n")
        command = [sys.executable, "-B", str(ROOT / "scripts" / "dashboard.py"), str(cls.folder), "--port", "0"]
        cls.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        cls.address = re.search(r"http://\S+", cls.server.stdout.readline())[0]
        cls.browser = headless_browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.terminate()
        cls.server.wait()
        cls.server.stdout.close()
        cls.temporary.cleanup()

    def setUp(self):
        self.browser.resize(1280, 900)
        # Each test starts with the same runs, independent of earlier tests.
        (self.folder / "bf16" / "metrics.jsonl").write_text("".join(record(s, False) for s in range(1, 201)))
        self.browser.open(self.address)
        self.browser.wait(READY)
        self.browser.wait("document.getElementById('runs').innerText.includes('200 / 400')")

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])

    def points(self, name):
        return int(self.browser.value(f"document.getElementById('chart-{name}').dataset.points"))

    def ink(self, name):
        """The number of nonempty pixels of a chart."""
        return self.browser.value(
            f"(() => {{ const c = document.querySelector('[id=\"chart-{name}\"] canvas');"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()"
        )

    def test_runs_states_and_charts(self):
        text = self.browser.value("document.getElementById('runs').innerText")
        for expected in ("bf16", "running", "200 / 400", "fp8", "finished", "400 / 400", "3.2500", "fp8 hybrid"):
            self.assertIn(expected, text)
        self.assertEqual(self.browser.value("document.getElementById('chart-loss').dataset.lines"), "2")
        self.assertEqual(self.browser.value("document.getElementById('chart-fp8.saturated').dataset.lines"), "1")
        for name in ("loss", "valid_loss", "grad_norm", "lr", "tokens_per_s", "fp8.saturated", "fp8.flushed"):
            self.assertGreater(self.ink(name), 500, name)
        self.assertIn("linear_fc2", self.browser.value("document.getElementById('operands').textContent"))
        self.assertIn("precision.fp8", self.browser.value("document.getElementById('differing').textContent"))

    def test_a_run_that_grows_and_is_resumed(self):
        log = self.folder / "bf16" / "metrics.jsonl"
        before = log.read_text()
        self.addCleanup(log.write_text, before)
        with open(log, "a") as file:
            file.write("".join(record(s) for s in range(201, 251)))
        self.browser.wait("document.getElementById('runs').innerText.includes('250 / 400')")
        self.browser.wait("document.getElementById('chart-loss').dataset.points == 650")
        with open(log, "r+") as file:  # a resume from step 150
            file.truncate(len("".join(record(s) for s in range(1, 151))))
        self.browser.wait("document.getElementById('runs').innerText.includes('150 / 400')")
        self.browser.wait("document.getElementById('chart-loss').dataset.points == 550")

    def test_axes_scales_smoothing_and_hidden_runs(self):
        self.browser.value("document.querySelector('[data-axis=seconds]').click()")
        self.assertIn("x=seconds", self.browser.value("location.hash"))
        self.browser.value("document.querySelector('#chart-loss button').click()")
        pressed = "document.querySelector('#chart-loss button').getAttribute('aria-pressed')"
        self.assertEqual(self.browser.value(pressed), "true")
        self.browser.value("document.getElementById('show0').click()")
        self.assertEqual(self.browser.value("document.getElementById('chart-loss').dataset.lines"), "1")
        # The URL contains the whole state: a page that is opened with it looks the same.
        self.browser.open(self.browser.value("location.href"))
        self.browser.wait(READY)
        self.assertEqual(self.browser.value(pressed), "true")
        self.assertEqual(self.browser.value("document.getElementById('chart-loss').dataset.lines"), "1")

    def test_zoom(self):
        box = self.browser.value("JSON.stringify(document.querySelector('#chart-loss canvas').getBoundingClientRect())")
        box = json.loads(box)
        middle = box["y"] + box["height"] / 2
        self.browser.move(box["x"] + 300, middle)
        self.assertIn("steps:", self.browser.value("document.getElementById('tip').textContent"))
        self.browser.drag(box["x"] + box["width"] / 2, middle, box["x"] + box["width"] * 0.6)
        self.browser.wait("!document.getElementById('unzoom').hidden")
        self.browser.wait("document.getElementById('chart-loss').dataset.points < 100")
        self.browser.value("document.getElementById('unzoom').click()")
        self.assertEqual(self.points("loss"), 600)

    def test_texts_of_runs_are_escaped(self):
        self.browser.value("document.getElementById('samples').open = true")
        self.browser.wait("document.getElementById('texts').textContent.includes('<img')")
        self.assertNotEqual(self.browser.value("document.title"), "bad")

    def test_a_run_that_diverged_does_not_flatten_the_others(self):
        scale = "JSON.stringify(charts.get('loss').frame.range)"
        before = json.loads(self.browser.value(scale))
        folder = self.folder / "diverged"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"config": {"training.train_steps": "400", "training.seed": "2"}}))
        lines = [record(s, False) for s in range(1, 301)]
        lines[150:] = [json.dumps(json.loads(text) | {"loss": 1e4}) + "\n" for text in lines[150:]]
        (folder / "metrics.jsonl").write_text("".join(lines))
        self.addCleanup(shutil.rmtree, folder)
        self.browser.wait("document.getElementById('chart-loss').dataset.lines === '3'")
        after = json.loads(self.browser.value(scale))
        self.assertAlmostEqual(after["high"], before["high"], delta=0.5)
        self.assertIn("outside the scale", self.browser.value("document.querySelector('#chart-loss figcaption').innerText"))
        text = self.browser.value("document.querySelector('.run.diverged').innerText")
        self.assertIn("diverged", text)
        colors = [
            self.browser.value(f"getComputedStyle(document.querySelector('{where}')).{what}")
            for where, what in ((".run.diverged .state", "color"), (".run.finished .state", "color"))
        ]
        self.assertEqual(colors[0], "rgb(179, 38, 30)")
        self.assertNotEqual(*colors)

    def test_a_narrow_screen(self):
        self.browser.resize(390, 844)
        time.sleep(0.3)
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 390)
        self.assertGreater(self.ink("loss"), 300)
        wide = self.browser.value("document.querySelector('#chart-loss canvas').getBoundingClientRect().width")
        self.assertGreater(wide, 300)


if __name__ == "__main__":
    unittest.main()
