#!/usr/bin/env python3
"""export_metrics.py with a fake tracker that records calls. test_trackers.py tests the real trackers."""

import json
import os
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from export_testing import InRun, line, lines
from monitor import export, sinks


class Noting:
    """A sink that records {run id: [(step, loss)]}, and how runs ended."""

    def __init__(self):
        self.runs, self.ends, self.reasons, self.now = {}, [], [], None

    def begin(self, run_id=None):
        self.now = run_id or f"r{len(self.runs)}"
        self.runs.setdefault(self.now, [])
        return self.now

    def log(self, rows):
        self.runs[self.now] += [(step, numbers.get("loss")) for step, numbers in rows]

    def replace(self):
        self.ends.append((self.now, "superseded"))
        return self.begin()

    def end(self, state, reason):
        self.ends.append((self.now, state))
        self.reasons.append(reason)


class Sending(InRun):
    def setUp(self):
        super().setUp()
        self.sink = Noting()

    def start(self, where="noted"):
        return export.Export(self.folder, self.sink, "export_test.json", where)

    def sent(self, run="r0"):
        return self.sink.runs[run]

    def test_sends_new_records_once(self):
        made = self.start()
        self.assertFalse(made.catch_up())
        self.log.write_text(lines(1, 3))
        self.assertTrue(made.catch_up())
        with open(self.log, "a") as file:
            file.write(lines(4, 4) + '{"step": 5')  # an incomplete line is not sent
        made.catch_up()
        self.assertFalse(made.catch_up())
        self.assertEqual([step for step, _ in self.sent()], [1, 2, 3, 4])
        # Another call continues; for another destination all records are sent.
        with open(self.log, "a") as file:
            file.write(', "loss": 1}\n')
        again = self.start()
        again.catch_up()
        self.assertEqual([step for step, _ in self.sent()], [1, 2, 3, 4, 5])
        self.assertEqual((again.sent, again.step), (1, 5))
        self.start("elsewhere").catch_up()
        self.assertEqual(len(self.sent("r1")), 5)

    def export_of(self, folder):
        made = export.Export(folder, self.sink, "export_test.json", "noted")
        made.catch_up()
        return self.sink.now

    def test_a_copied_folder_starts_its_own_run(self):
        self.log.write_text(lines(1, 3))
        self.assertEqual(self.export_of(self.folder), "r0")
        copy = self.folder.with_name("copy")
        shutil.copytree(self.folder, copy)
        with open(copy / "metrics.jsonl", "a") as file:
            file.write(lines(4, 5, loss=2.0))
        self.assertEqual(self.export_of(copy), "r1")
        self.assertEqual([self.export_of(folder) for folder in (self.folder, copy)], ["r0", "r1"])
        self.assertEqual([len(self.sent(run)) for run in ("r0", "r1")], [3, 5])
        shutil.rmtree(self.folder)  # a move to another file system
        moved = copy.with_name("moved")
        shutil.copytree(copy, moved)
        shutil.rmtree(copy)
        self.assertEqual(self.export_of(moved), "r1")

    def test_a_renamed_folder_continues_its_run(self):
        self.log.write_text(lines(1, 3))
        self.export_of(self.folder)
        old = self.folder.rename(self.folder.with_name("old"))
        self.folder.mkdir()  # another run gets the old name
        self.log.write_text(lines(1, 2))
        self.assertEqual([self.export_of(folder) for folder in (self.folder, old)], ["r1", "r0"])
        link = self.folder.with_name("link")
        link.symlink_to(old)
        self.assertEqual(self.export_of(link), "r0")

    def test_a_note_of_an_earlier_version_continues(self):
        self.log.write_text(lines(1, 3))
        self.export_of(self.folder)
        note = self.folder / "export_test.json"
        content = json.loads(note.read_text())
        for name in ("folder", "device", "inode"):
            del content[name]
        note.write_text(json.dumps(content))
        copy = self.folder.with_name("copy")
        shutil.copytree(self.folder, copy)
        self.assertEqual(self.export_of(copy), "r0")
        self.assertEqual(json.loads((copy / note.name).read_text())["folder"], str(copy.resolve()))

    def test_a_note_that_cannot_be_written_starts_no_run(self):
        note = self.folder / "export_test.json"
        note.mkdir()  # also root cannot write it
        for _ in range(2):
            with self.assertRaisesRegex(export.UserError, "export_test.json: Is a directory; .* must be writable$"):
                self.start()
        self.assertEqual((self.sink.runs, [path.name for path in self.folder.glob("*.tmp")]), ({}, []))
        note.rmdir()
        self.log.write_text(lines(1, 9))
        made = self.start()
        made.catch_up()
        note.unlink()
        note.mkdir()
        self.log.write_text(lines(1, 9, loss=2.0))  # discards the steps that were sent
        with self.assertRaisesRegex(export.UserError, "must be writable$"):
            made.catch_up()
        self.assertEqual((list(self.sink.runs), self.sink.ends), (["r0"], []))

    def test_a_run_that_cannot_be_noted_is_ended(self):
        calls = []

        def write(path, text):
            calls.append(text)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            path.write_text(text)

        with mock.patch.object(export, "write_text", write):
            with self.assertRaisesRegex(export.UserError, "export_test.json: No space left on device"):
                self.start()
        self.assertEqual(self.sink.ends, [("r0", "superseded")])
        self.assertIn("No space left on device", self.sink.reasons[0])

    def test_time_if_not_every_step_is_logged(self):
        self.write_config(**{"logging.every": "10"})
        self.log.write_text(line(1, 1.0) + line(10, 1.0) + line(15, 1.0, step_ms=30e3) + line(20, 1.0))
        self.sink.log = lambda rows: self.assertEqual([n["seconds"] for _, n in rows], [0.5, 5, 37, 39.5])
        self.assertTrue(self.start().catch_up())

    def test_names_with_dots_stay_apart(self):
        self.log.write_text(line(1, 1.0, sources={"d/a.b": {"loss": 2.0}, "d/a/b": {"loss": 3.0}}))
        self.sink.log = lambda rows: self.assertEqual(
            {name: x for name, x in rows[0][1].items() if "/" in name},
            {"sources/d/a.b/loss": 2.0, "sources/d/a/b/loss": 3.0},
        )
        self.assertTrue(self.start().catch_up())

    def test_names_of_metrics_in_mlflow(self):
        for name in ("loss", "valid/books/loss", "sources/d/a.b/loss", "sources/.d/..a/b:c-d e/loss"):
            self.assertEqual(sinks.metric_name(name), name)
        first, second = (sinks.metric_name(f"sources/{'x' * 300}/{name}") for name in ("loss", "tokens"))
        self.assertEqual((len(first), len(second)), (250, 250))
        self.assertNotEqual(first, second)

    def check_superseded(self, made):
        with open(self.log, "r+") as file:  # a resume from step 4
            file.truncate(len(lines(1, 4)))
            file.seek(0, os.SEEK_END)
            file.write(lines(5, 12, loss=2.0))
        made.catch_up()
        self.assertEqual(self.sink.ends, [("r0", "superseded")])
        self.assertEqual(self.sent("r1"), [(s, 1.0) for s in range(1, 5)] + [(s, 2.0) for s in range(5, 13)])
        self.assertEqual(made.step, 12)

    def test_a_resume_that_discards_sent_steps(self):
        made = self.start()
        self.log.write_text(lines(1, 9))
        made.catch_up()
        self.check_superseded(made)

    def test_a_resume_between_two_calls(self):
        self.log.write_text(lines(1, 9))
        self.start().catch_up()
        self.check_superseded(self.start())

    def test_a_truncated_log(self):
        made = self.start()
        self.log.write_text(lines(1, 9))
        made.catch_up()
        os.truncate(self.log, len(lines(1, 4)))
        made.catch_up()
        self.assertEqual(self.sent("r1"), [(s, 1.0) for s in range(1, 5)])
        with open(self.log, "a") as file:
            file.write(lines(5, 6))
        made.catch_up()
        self.assertEqual([s for s, _ in self.sent("r1")], [1, 2, 3, 4, 5, 6])

    def test_steps_repeated_by_a_rollback_are_sent(self):
        self.log.write_text(lines(1, 5) + lines(3, 6, loss=2.0))
        self.start().catch_up()
        self.assertEqual([s for s, _ in self.sent()], [1, 2, 3, 4, 5, 3, 4, 5, 6])
        self.assertEqual(self.sink.ends, [])

    def test_following_until_the_end(self):
        (self.folder / "run.lock").write_text(f"host {os.uname().nodename} pid {os.getpid()} since now now\n")
        self.log.write_text(lines(1, 5))
        made, said, looks = self.start(), [], []

        def sleep(_):
            looks.append(len(self.sent()))
            with open(self.log, "a") as file:
                file.write(lines(6, 20) if len(looks) == 1 else "")
            if len(looks) == 2:
                (self.folder / "run.lock").unlink()

        export.follow({"a": made}, 1, said.append, sleep)
        self.assertEqual(looks, [5, 20])
        self.assertEqual(self.sink.ends, [("r0", "finished")])
        self.assertEqual(said[-1], "a: finished at step 20")

    def test_following_ends_with_a_run_that_diverged(self):
        (self.folder / "state.json").write_text('{"state": "diverged"}')
        self.log.write_text(lines(1, 5))
        export.follow({"a": self.start()}, 1, lambda _: None, lambda _: self.fail("it is waited for"))
        self.assertEqual(self.sink.ends, [("r0", "diverged")])

    def test_a_run_that_stopped_early(self):
        self.write_config(**{"training.early_stopping_patience": "2"})
        losses = {4: 3.0, 8: 2.0, 10: 2.0, 12: 2.5}
        validation = {step: {"valid_loss": loss} for step, loss in losses.items()}
        self.log.write_text("".join(line(step, 1.0, **validation.get(step, {})) for step in range(1, 13)))
        export.follow({"a": self.start()}, 1, lambda _: None, lambda _: self.fail("it is waited for"))
        self.assertEqual(self.sink.ends, [("r0", "finished")])
        self.assertEqual(self.sink.reasons, ["stopped early: no lower validation loss in 2 validations"])
        with open(self.log, "a") as file:
            file.write(line(13, 1.0))  # resumed with more patience, and interrupted
        self.assertEqual(self.state(), "stopped")
        self.write_config(**{"training.early_stopping_patience": "3"})
        self.log.write_text(self.log.read_text() + line(14, 1.0, valid_loss=2.5))
        self.assertEqual(self.state(), "finished")
        self.write_config(**{"training.early_stopping_patience": "4"})
        self.assertEqual(self.state(), "stopped")
        self.write_config(**{"training.early_stopping_patience": "0"})
        self.assertEqual(self.state(), "stopped")

    def state(self):
        made = self.start()
        made.catch_up()
        return made.status()[0]

    def test_a_run_that_diverged_without_a_note_of_its_state(self):
        skipped = "".join(line(step, None, skipped=True) for step in range(10, 14))
        self.log.write_text(lines(1, 9) + skipped)
        self.assertEqual(self.state(), "diverged")
        self.log.write_text(lines(1, 12, loss=1.0) + lines(13, 30, loss=9.0))  # also at its planned end
        self.assertEqual(self.state(), "diverged")
        self.log.write_text(lines(1, 9) + skipped + lines(5, 20))  # a rollback repeats steps
        self.assertEqual(self.state(), "finished")

    def test_a_run_with_slow_steps_is_not_stale(self):
        (self.folder / "run.lock").write_text(f"host {os.uname().nodename} pid {os.getpid()} since now now\n")
        for step_ms, state in ((500.0, "stale"), (60e3, "running")):
            self.log.write_text(line(1, 1.0, step_ms=step_ms))
            os.utime(self.log, times=(time.time() - 1000,) * 2)
            self.assertEqual(self.state(), state)

    def test_a_last_record_of_more_than_a_megabyte(self):
        self.log.write_text(lines(1, 19) + line(20, 1.0, routing=[0.125] * 300_000))
        self.assertEqual(self.state(), "finished")

    def test_a_csv(self):
        (self.folder / "loss.csv").write_text("step,loss,valid_loss,step_ms\n1,3.5,,500\n2,3.25,3.5,500\n")
        self.start().catch_up()
        self.assertEqual(self.sent(), [(1, 3.5), (2, 3.25)])

    def test_a_tracker_that_refuses_is_one_line(self):
        made = self.start()
        self.log.write_text(lines(1, 2))

        def log(_):
            raise ValueError("no\n   room")

        self.sink.log = log
        with self.assertRaisesRegex(export.UserError, "^noted: ValueError: no room$"):
            made.catch_up()
        del self.sink.log
        made = self.start()  # nothing was recorded as sent
        made.catch_up()
        self.assertEqual(made.sent, 2)


class CommandLine(InRun):
    def call(self, *arguments):
        command = [sys.executable, "-B", str(ROOT / "scripts" / "export_metrics.py"), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_tags_name_the_precision(self):
        for fp8, dtype, tag in (("hybrid", "bf16", "fp8"), ("off", "bf16", "bf16"), ("off", "fp32", "fp32")):
            config = {"precision.fp8": fp8, "precision.dtype": dtype}
            self.assertEqual(sinks.About(self.folder, {}, config, tags=["mine"]).tags, [tag, "mine"])

    def test_a_damaged_record_of_starts(self):
        for starts in ([1], 3, None, {}):
            self.assertEqual(list(sinks.About(self.folder, {"starts": starts}, {}).notes), ["folder"])

    def test_mistakes_are_one_line(self):
        for arguments, expected in (
            (["--to", "mlflow", "--offline", self.folder], "--offline needs --to wandb"),
            (["--to", "wandb", "--tracking-uri", "x", self.folder], "--tracking-uri needs --to mlflow"),
            (["--to", "wandb", self.folder / "none"], "contains no run"),
            (["--to", "wandb", "--follow", "--every", "0", self.folder], "--every: 0.0 must be above 0"),
            (["--to", "wandb", "--every", "1", self.folder], "--every needs --follow"),
            (["--to", "mlflow", "--directory", "x", self.folder], "--directory needs --to wandb"),
        ):
            code, _, errors = self.call(*arguments)
            self.assertEqual((code, errors.count("\n")), (2, 1), errors)
            self.assertIn(expected, errors)

    def test_a_note_that_cannot_be_written_is_one_line(self):
        (self.folder / "export_mlflow.json").mkdir()
        code = "import sys, export_metrics; export_metrics.open_sink = lambda *_: None; sys.exit(export_metrics.main())"
        command = [sys.executable, "-B", "-c", code, "--to", "mlflow", str(self.folder)]
        done = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        note = f"{self.folder}/export_mlflow.json"
        self.assertIn(f"error: {note}: Is a directory; the next call continues from", done.stderr)

    def test_a_missing_package_says_how(self):
        for name, package in (("wandb", "wandb"), ("mlflow", "mlflow-skinny")):
            code = f"import sys; sys.modules['{name}'] = None; import export_metrics; sys.exit(export_metrics.main())"
            command = [sys.executable, "-B", "-c", code, "--to", name, str(self.folder)]
            done = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(f"{name} is missing; {sys.executable} -m pip install {package}", done.stderr)


if __name__ == "__main__":
    unittest.main()
