#!/usr/bin/env python3
"""Tests of scripts/monitor: logs that grow and are truncated, downsampled curves, the state of runs, the dashboard's API."""

import json
import math
import os
import socket
import sys
import threading
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from folder_testing import InFolder
from monitor import curves, divergence, records, run_status
from monitor.board import Board
from monitor.follow import Follower
from monitor.server import Server


class WithRuns(InFolder):
    def write_run(self, name, steps, total=100, **config):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        texts = {"training.train_steps": str(total), "logging.directory": str(folder), **config}
        (folder / "run.json").write_text(json.dumps({"config": texts, "starts": [{"host": "h", "device": "CPU"}]}))
        (folder / "metrics.jsonl").write_text("".join(line(s) for s in range(1, steps + 1)))
        return folder


def line(step, loss=None, **more):
    loss = 5 - step / 100 if loss is None else loss
    return json.dumps({"step": step, "consumed_tokens": 10 * step, "loss": loss, "step_ms": 500.0, **more}) + "\n"


class Following(WithRuns):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "log"
        self.follower = Follower(self.path)

    def read(self):
        news = self.follower.read()
        return news.kept, news.lines

    def test_returns_complete_lines_once(self):
        self.assertEqual(self.read(), (0, []))
        self.path.write_text("a\nb\nc")
        self.assertEqual(self.read(), (0, ["a", "b"]))
        self.assertEqual(self.read(), (2, []))
        with open(self.path, "a") as file:
            file.write("c\nd\n")
        self.assertEqual(self.read(), (2, ["cc", "d"]))

    def test_a_truncated_log(self):
        self.path.write_text("".join(f"{i}\n" for i in range(1000)))
        self.read()
        os.truncate(self.path, len("".join(f"{i}\n" for i in range(700))))
        self.assertEqual(self.read(), (700, []))

    def test_a_truncated_log_that_has_grown_again(self):
        self.path.write_text("".join(f"{i} old\n" for i in range(1000)))
        self.read()
        with open(self.path, "r+") as file:  # the same file, as in te-train
            file.truncate(len("".join(f"{i} old\n" for i in range(421))))
            file.seek(0, os.SEEK_END)
            file.write("".join(f"{i} new, and longer\n" for i in range(421, 2000)))
        kept, lines = self.read()
        self.assertEqual((kept, len(lines), lines[0]), (421, 1579, "421 new, and longer"))

    def test_another_file_under_the_name(self):
        self.path.write_text("a\nb\n")
        self.read()
        self.path.rename(self.folder / "aside")
        self.path.write_text("a\nb\nc\n")
        self.assertEqual(self.read(), (0, ["a", "b", "c"]))
        self.path.unlink()
        self.assertEqual(self.read(), (0, []))

    def test_reads_in_parts(self):
        self.path.write_text("".join("x" * 50 + f"{i}\n" for i in range(100)))
        lines = self.follower.read(limit=120).lines
        self.assertEqual(len(lines), 2)
        self.assertTrue(self.follower.behind())
        while self.follower.behind():
            lines += self.follower.read(limit=7).lines  # lines are longer than the limit
        self.assertEqual([text[50:] for text in lines], [str(i) for i in range(100)])


class Records(unittest.TestCase):
    def test_numbers(self):
        operands = [{"saturated": 1e-5, "flushed": 0.0, "linear": "a", "role": "input", "format": "e4m3"}]
        operands.append({"saturated": 3e-5, "flushed": 2e-3, "linear": "b", "role": "weight", "format": "e4m3"})
        record = {"step": 3, "loss": None, "skipped": True, "valid": {"books": {"loss": 2.5}}, "fp8": operands, "who": "x"}
        expected = {"step": 3, "skipped": 1, "valid.books.loss": 2.5, "fp8.saturated": 3e-5, "fp8.flushed": 2e-3}
        self.assertEqual(records.numbers(record), expected)
        self.assertEqual(records.worst_operands(record)[0]["operand"], "b weight")

    def test_numbers_and_maps_beyond_all_limits(self):
        record = {"step": 1, "big": 10**400, "fp8": [{"saturated": 10**400}], "loss": 2.0}
        self.assertEqual(records.numbers(record), {"step": 1, "loss": 2})
        reader, depth = records.Reader("metrics.jsonl"), 100_000
        self.assertIsNone(reader.record('{"step": 1, "deep": ' + '{"a": ' * depth + "1" + "}" * depth + "}"))
        deep = {"step": 1}
        for _ in range(5000):
            deep = {"step": 1, "deep": deep}
        self.assertEqual(records.numbers(deep)["deep.step"], 1)

    def test_csv(self):
        reader = records.Reader("loss.csv")
        self.assertIsNone(reader.record("step,consumed_tokens,loss,valid_loss"))
        self.assertEqual(reader.record("3,30,2.5,"), {"step": 3, "consumed_tokens": 30, "loss": 2.5})
        self.assertEqual(reader.record("4,40,nan,2"), {"step": 4, "consumed_tokens": 40, "valid_loss": 2})
        self.assertIsNone(reader.record("5,50"))
        self.assertIsNone(records.Reader("metrics.jsonl").record("{broken"))


class Curves(unittest.TestCase):
    @staticmethod
    def filled(steps, value=float):
        made = curves.Curves()
        for step in range(1, steps + 1):
            made.add({"step": step, "consumed_tokens": 10.0 * step, "step_ms": 500.0, "loss": value(step)})
        return made

    def test_few_steps_are_not_joined(self):
        picture = self.filled(5).picture()
        self.assertEqual(picture["step"], [1, 2, 3, 4, 5])
        self.assertEqual(picture["seconds"], [0.5, 1, 1.5, 2, 2.5])
        self.assertEqual(picture["series"]["loss"], {"mean": [1, 2, 3, 4, 5]})

    def test_many_steps_are_joined_and_a_spike_remains(self):
        made = self.filled(5000, lambda step: 100.0 if step == 3333 else 1.0)
        self.assertEqual(made.level, 3)  # 625 buckets of 8
        loss = made.picture()["series"]["loss"]
        self.assertEqual(len(loss["mean"]), 625)
        self.assertEqual(loss["high"][3332 // 8], 100.0)
        self.assertAlmostEqual(loss["mean"][3332 // 8], (7 + 100) / 8)
        self.assertEqual(max(loss["low"]), 1.0)

    def test_increments_add_up(self):
        made, shown, generation = self.filled(10), [], -1
        for step in range(11, 3000):
            made.add({"step": step, "loss": float(step % 7), "step_ms": 500.0, "consumed_tokens": 10.0 * step})
            if step % 13 == 0:
                start = max(0, len(shown) - 1) if generation == made.generation else 0
                shown[start:] = made.picture(start)["series"]["loss"]["mean"]
                generation = made.generation
                self.assertEqual(shown, made.picture()["series"]["loss"]["mean"])

    def test_a_repeated_step_replaces_later_steps(self):
        made = self.filled(3000)
        before = made.generation
        made.add({"step": 1501, "loss": -1.0, "step_ms": 500.0, "consumed_tokens": 15010.0})
        self.assertEqual(len(made), 1501)
        self.assertGreater(made.generation, before)
        whole = curves.Curves()
        for step in range(1, 1502):
            whole.add({"step": step, "loss": -1.0 if step == 1501 else float(step)})
        whole.level, whole.columns["loss"].full = made.level, []
        self.assertEqual(made.picture()["series"]["loss"], whole.picture()["series"]["loss"])
        self.assertEqual(made.last("loss"), -1.0)

    def test_the_slow_first_step_after_a_start_counts_once(self):
        made = curves.Curves(every=50)
        for step, seconds in ((1, 30), (50, 0.5), (81, 30), (95, 30), (100, 0.5), (120, 0.5), (150, 1)):
            made.add({"step": step, "step_ms": 1e3 * seconds})
        # The steps between take 0.5 s each.
        self.assertEqual(list(made.seconds), [30, 54.5, 99.5, 136, 138.5, 148.5, 178.5])
        made.add({"step": 91, "step_ms": 30e3})  # a rollback to step 90
        self.assertEqual(list(made.seconds), [30, 54.5, 99.5, 134])

    def test_sparse_numbers(self):
        made = curves.Curves()
        for step in range(1, 4001):
            made.add({"step": step, "loss": 1.0, **({"valid_loss": float(step)} if step % 1000 == 0 else {})})
        found = [v for v in made.picture()["series"]["valid_loss"]["mean"] if v is not None]
        self.assertEqual(found, [1000, 2000, 3000, 4000])

    def test_a_part_is_finer(self):
        made = self.filled(5000)
        part = made.part("tokens", 20000, 20500)
        self.assertEqual(part["step"][0], 1999)  # one row more on both sides, so that lines reach the edges
        self.assertEqual(part["series"]["loss"]["mean"][1], 2000)
        self.assertEqual(part["step"][-1], 2051)
        self.assertEqual(made.part("step", 9000, 9100)["step"], [5000])
        self.assertEqual(curves.Curves().part("step", 0, 1)["step"], [])


class Divergence(unittest.TestCase):
    @staticmethod
    def of(losses, skipped=(), ended=True):
        made = divergence.Losses()
        for step, loss in enumerate(losses, 1):
            made.add(step, loss, step in skipped)
        return made.diverged(ended)

    def test_a_permanent_rise_of_the_loss(self):
        falling = [8 - i / 50 for i in range(200)]
        self.assertIsNone(self.of(falling))
        after, why = self.of(falling + [7.5] * 50)
        self.assertEqual((after, why), (200, "its loss is 3.39 above its lowest"))
        self.assertIsNotNone(self.of(falling + [7.5] * 50, ended=False))

    def test_no_divergence(self):
        falling = [8 - i / 50 for i in range(200)]
        self.assertIsNone(self.of(falling + [30.0] * 4))  # a spike
        self.assertIsNone(self.of(falling + [30.0] * 4 + [4.0] * 10))
        self.assertIsNone(self.of(falling + [5.5] * 50))  # other data
        self.assertIsNone(self.of([2.0] * 50 + [2.9] * 50))  # fine-tuning improves little
        self.assertIsNone(self.of([]))
        self.assertIsNone(self.of([math.nan] * 20))

    def test_a_run_that_ends_with_skipped_steps(self):
        losses = [4.0] * 20 + [math.nan] * 3
        self.assertEqual(self.of(losses, (21, 22, 23)), (20, "its last 3 logged steps were skipped"))
        self.assertIsNone(self.of(losses, (21, 22, 23), ended=False))
        self.assertIsNone(self.of([*losses, 4.0], (21, 22, 23)))


class Status(WithRuns):
    def state(self, folder, step, now=None):
        return run_status.status(folder, step, 100, [0.5], now)[0]

    def lock(self, folder, process, host=None):
        text = f"host {host or socket.gethostname()} pid {process} since 2026-01-01 00:00:00\n"
        (folder / "run.lock").write_text(text)

    def test_states(self):
        folder = self.write_run("a", 50)
        self.assertEqual(self.state(folder, 50), "stopped")
        self.assertEqual(self.state(folder, 100), "finished")
        self.lock(folder, os.getpid())
        self.assertEqual(self.state(folder, 50), "running")
        self.assertEqual(self.state(folder, 50, time.time() + 1000), "stale")
        child = os.spawnlp(os.P_NOWAIT, "true", "true")
        os.waitpid(child, 0)
        self.lock(folder, child)
        self.assertEqual(self.state(folder, 50), "failed")
        self.lock(folder, child, "elsewhere")  # processes of other hosts are unknown
        self.assertEqual(self.state(folder, 50), "running")
        self.assertEqual(self.state(folder, 50, time.time() + 1000), "stale")
        # Steps of a minute each are not stale.
        self.assertEqual(run_status.status(folder, 50, 100, [60.0], time.time() + 1000)[0], "running")
        (folder / "run.lock").unlink()
        self.assertEqual(run_status.status(folder, 50, 100, [], early="why"), ("finished", "why"))
        for state in ("failed", "diverged"):
            (folder / "state.json").write_text(json.dumps({"state": state}))
            self.assertEqual(run_status.status(folder, 50, 100, [], early="why"), (state, "te-experiment noted it"))
        (folder / "state.json").unlink()
        self.assertEqual(run_status.status(folder, 100, 100, [], diverged="why"), ("diverged", "why"))
        self.lock(folder, os.getpid())
        self.assertEqual(run_status.status(folder, 50, 100, [], diverged="why"), ("running", "why"))

    def test_pipes_in_the_place_of_files_do_not_block(self):
        for name in ("run.json", "metrics.jsonl", "run.lock"):
            folder = self.write_run(f"run of {name}", 3)
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)
            self.assertEqual(run_status.read_json(folder / name), {})
            self.assertIsNone(run_status.holder(folder))
            self.assertEqual(Follower(folder / name).read().lines, [])

    def test_a_folder_without_permission_is_no_run(self):
        self.write_run("a", 3)
        secret, stat = self.write_run("secret", 3), os.stat

        def refuse(path, **options):
            if str(path).startswith(str(secret) + os.sep):
                raise PermissionError(13, "Permission denied", str(path))
            return stat(path, **options)

        with unittest.mock.patch("os.stat", refuse):
            self.assertEqual([f.name for f in run_status.find_runs([self.folder, secret])], ["a"])
            self.assertEqual(run_status.log_of(secret), secret / "metrics.jsonl")

    def test_differing_keys(self):
        configs = [{"a.x": "1", "logging.directory": "p", "c.z": "3"}, {"a.x": "2", "logging.directory": "q"}, {}]
        self.assertEqual(run_status.differing_keys(configs), {"a.x": ["1", "2", "?"], "c.z": ["3", "-", "?"]})

    def test_the_most_important_differing_keys_come_first(self):
        names = ["checkpoint.keep", "data.train", "optimizer.lr", "precision.dtype", "precision.fp8", "training.seed"]
        one = {name: "1" for name in names} | {"training.train_steps": "1", "precision.fp8_recipe": "1", "a.new": "1"}
        found = list(run_status.differing_keys([one, {key: "2" for key in one}]))
        self.assertEqual(found[:4], ["precision.fp8", "precision.dtype", "precision.fp8_recipe", "training.seed"])
        self.assertEqual(found[4:], ["optimizer.lr", "training.train_steps", "data.train", "a.new", "checkpoint.keep"])

    def test_runs_are_found_below_a_folder(self):
        for name in ("one", "more/two", "more/deep/three"):
            self.write_run(name, 1)
        (self.folder / "checkpoints").mkdir()
        names = [f.name for f in run_status.find_runs([self.folder / "more", self.folder])]
        self.assertEqual(names, ["two", "three", "one"])


class Dashboard(WithRuns):
    def setUp(self):
        super().setUp()
        self.runs = [self.write_run(name, 50, **{"precision.fp8": fp8}) for name, fp8 in (("a", "off"), ("b", "hybrid"))]
        (self.folder / "secret").write_text("secret")
        self.board = Board(self.runs)
        self.server = Server(("127.0.0.1", 0), self.board)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.catch_up()

    def catch_up(self):
        while self.board.update():
            pass

    def get(self, path, **headers):
        """(status, body)"""
        request = urllib.request.Request(self.address + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def runs_of(self, have=""):
        code, body = self.get("/api/runs?have=" + have)
        self.assertEqual(code, 200)
        return json.loads(body)["runs"]

    def test_runs_and_increments(self):
        first, second = self.runs_of()
        self.assertEqual((first["name"], first["now_step"], first["steps"], first["state"]), ("a", 50, 100, "stopped"))
        self.assertEqual(second["config"], {"precision.fp8": "hybrid"})
        self.assertEqual(first["series"]["loss"]["mean"][-1], 4.5)
        have = ",".join(f"{r['id']}:{r['cursor']}" for r in (first, second))
        with open(self.runs[0] / "metrics.jsonl", "a") as file:
            file.write(line(51) + line(52))
        self.catch_up()
        first, second = self.runs_of(have)
        self.assertEqual((first["from"], first["step"]), (49, [50, 51, 52]))
        self.assertEqual((second["from"], second["step"]), (49, [50]))

    def test_a_resume_that_truncates_the_log(self):
        (before, _) = self.runs_of()
        text = "".join(line(s) for s in range(1, 21)) + "".join(line(s, loss=1.0) for s in range(21, 81))
        with open(self.runs[0] / "metrics.jsonl", "r+") as file:
            file.truncate(0)
            file.write(text)
        self.catch_up()
        (after, _) = self.runs_of(f"0:{before['cursor']}")
        self.assertEqual((after["from"], len(after["step"])), (0, 80))
        self.assertEqual(after["series"]["loss"]["mean"][19:21], [4.8, 1.0])

    def test_time_if_not_every_step_is_logged(self):
        folder = self.write_run("c", 1, **{"logging.every": "50"})
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(line(50) + line(81, step_ms=30e3))
        self.board = Board([folder])
        self.catch_up()
        self.assertEqual(list(self.board.runs[0].curves.seconds), [0.5, 25, 70])

    def test_a_run_that_diverged_and_was_resumed(self):
        self.assertIsNone(self.runs_of()[0]["diverged_after"])
        with open(self.runs[0] / "metrics.jsonl", "a") as file:
            file.write("".join(line(s, loss=9.0) for s in range(51, 71)))
        self.catch_up()
        (found, other) = self.runs_of()
        self.assertEqual((found["state"], found["diverged_after"]), ("diverged", 50))
        self.assertIn("above its lowest", found["why"])
        self.assertEqual((other["state"], other["diverged_after"]), ("stopped", None))
        with open(self.runs[0] / "metrics.jsonl", "a") as file:  # a rollback repeats steps
            file.write("".join(line(s) for s in range(51, 71)))
        self.catch_up()
        self.assertEqual((self.runs_of()[0]["state"], self.runs_of()[0]["diverged_after"]), ("stopped", None))

    def test_a_run_that_ended_with_skipped_steps(self):
        with open(self.runs[0] / "metrics.jsonl", "a") as file:
            file.write("".join(line(s, skipped=True).replace('"loss": 1', '"loss": null') for s in range(51, 54)))
        self.catch_up()
        self.assertEqual((self.runs_of()[0]["state"], self.runs_of()[0]["diverged_after"]), ("diverged", 50))

    def test_a_damaged_run_does_not_stop_the_others(self):
        with open(self.runs[0] / "metrics.jsonl", "a") as file:
            file.write('{"step": 51, "fp8": 3}\n')
        with open(self.runs[1] / "metrics.jsonl", "a") as file:
            file.write(line(51))
        self.catch_up()
        first, second = self.runs_of()
        self.assertEqual((second["now_step"], second["why"]), (51, "ended before its last step"))
        self.assertEqual(first["state"], "stopped")
        self.assertIn("cannot be read further: TypeError: ", first["why"])

    def test_an_unavailable_file_system_is_read_again(self):
        with unittest.mock.patch.object(Follower, "read", side_effect=OSError(116, "Stale file handle")):
            self.catch_up()
            self.assertIn("Stale file handle", self.runs_of()[0]["why"])
        self.catch_up()
        self.assertEqual(self.runs_of()[0]["why"], "ended before its last step")

    def test_later_runs_do_not_move_the_others(self):
        board = Board([self.folder])
        self.write_run("0_first_by_name", 3)
        self.write_run("more/a", 3)
        board.find()
        self.assertEqual([r.name for r in board.runs], ["a", "b", "0_first_by_name", "more/a"])

    def test_samples(self):
        sample = {"step": 10, "prompt": "In the", "text": " <b>end", "ending": "tokens", "tokens": 2}
        (self.runs[1] / "samples.jsonl").write_text(json.dumps(sample) + "\nbroken\n")
        self.catch_up()
        self.assertEqual(json.loads(self.get("/api/samples?run=1")[1])["samples"], [sample])
        self.assertEqual(json.loads(self.get("/api/samples?run=0")[1])["samples"], [])

    def test_a_part(self):
        code, body = self.get("/api/part?axis=step&low=10&high=20")
        self.assertEqual((code, json.loads(body)["runs"][1]["step"][0]), (200, 9))
        for query in ("axis=x&low=1&high=2", "axis=step&low=nan&high=2", "axis=step&low=1"):
            self.assertEqual(self.get("/api/part?" + query)[0], 400, query)

    def test_no_path_is_a_file(self):
        for path in ("/../secret", "/secret", "/%2e%2e/secret", "/api/../../secret", "/a/metrics.jsonl", "//etc/passwd",
                     "/api/samples?run=9", "/api/samples?run=-1", "/page.js", "/api"):  # fmt: skip
            code, body = self.get(path)
            self.assertEqual(code, 404, path)
            self.assertNotIn(b"secret", body)
        with socket.create_connection(self.server.server_address) as raw:  # without urllib's normalization
            raw.sendall(b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertIn(b" 404 ", raw.recv(200).split(b"\r\n")[0])
        self.assertEqual(self.get("/api/samples?run=x")[0], 400)

    def test_only_local_host_names_are_accepted(self):
        self.assertEqual(self.get("/api/runs", Host="evil.example")[0], 403)
        self.assertEqual(self.get("/api/runs", Host="localhost:8420")[0], 200)

    def test_the_page_is_self_contained(self):
        code, body = self.get("/")
        text = body.decode()
        self.assertEqual(code, 200)
        self.assertIn("function drawLine", text)
        self.assertIn(".progress", text)
        self.assertNotIn("/*page.", text)
        for outside in ("src=", "@import", "url("):
            self.assertNotIn(outside, text)
        self.assertEqual(text.replace("http://www.w3.org/2000/svg", "").count("http"), 0)

    def test_strange_numbers(self):
        with open(self.runs[0] / "metrics.jsonl", "a") as file:
            file.write('{"step": 51, "loss": NaN, "lr": 1e400, "valid": {"x": {"loss": Infinity}}}\n[1]\n{"step": "x"}\n')
            file.write('{"step": 52, "loss": 1e300, "fp8": [3, {"saturated": NaN}]}\n')
        self.catch_up()
        found = self.runs_of()[0]
        self.assertEqual(found["now_step"], 52)
        self.assertIsNone(found["series"]["loss"]["mean"][50])
        self.assertIsNone(found["last"]["loss"])  # not representable in a curve (FP32)


if __name__ == "__main__":
    unittest.main()
