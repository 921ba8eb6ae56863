"""Tests of scripts/report/runs.py and foreign.py: te-train's folders, Megatron's console log, event files."""

import json
import struct
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "fixtures" / "logs"
sys.path.insert(0, str(ROOT / "scripts"))
try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
from folder_testing import InFolder
from report import UserError, details, foreign
from report.foreign import Options
from report.runs import read_run


class TeTrain(InFolder):
    def test_time_norms_seed_and_config(self):
        self.write(
            "a/loss.csv", "step,consumed_tokens,loss,valid_loss,grad_norm,step_ms\n1,10,4,,2.5,1000\n2,20,3,,1.5,100\n"
        )
        self.write("a/run.json", json.dumps({"config": {"training.seed": "7", "precision.fp8": "off"}}))
        run = read_run(self.folder / "a")
        self.assertEqual((run.label, run.seed, run.config["precision.fp8"]), ("a", 7, "off"))
        np.testing.assert_allclose(run.grad_norm, [2.5, 1.5])
        np.testing.assert_allclose(run.seconds, [1.0, 1.1])

    def test_a_record_stands_for_skipped_steps_before_it(self):
        run = read_run(
            self.write("t.csv", "step,consumed_tokens,loss,step_ms\n1,10,4,1000\n5,50,3,100\n10,100,2,200\n")
        )
        np.testing.assert_allclose(run.seconds, [1.0, 1.0 + 4 * 0.1, 1.4 + 5 * 0.2])

    def test_a_log_without_the_start_has_no_time(self):
        rows = "step,consumed_tokens,loss,step_ms\n41,410,4,100\n42,420,3,100\n"
        self.assertTrue(np.isnan(read_run(self.write("branch.csv", rows)).seconds).all())
        sparse = "step,consumed_tokens,loss,step_ms\n10,100,4,100\n15,150,3,100\n20,200,3,100\n30,300,3,100\n"
        np.testing.assert_allclose(read_run(self.write("sparse.csv", sparse)).seconds, [0.1, 0.6, 1.1, 2.1])

    def test_times_of_branches_count_the_first_step_after_a_start_once(self):
        # Branches of step 1005. The second one is resumed after step 1016; every tenth step is logged.
        sides = []
        for name, rows in (("a", ((1006, 9000), (1010, 100), (1020, 100), (1030, 100))),
                           ("b", ((1006, 9000), (1010, 100), (1017, 5000), (1020, 100), (1030, 100)))):  # fmt: skip
            self.write(f"{name}/run.json", json.dumps({"config": {"logging.every": "10"}}))
            lines = [f"{step},{10 * step},4,{ms}\n" for step, ms in rows]
            self.write(f"{name}/loss.csv", "step,consumed_tokens,loss,step_ms\n" + "".join(lines))
            sides.append(read_run(self.folder / name))
        first, second = details.common_times(SimpleNamespace(baseline=sides[0], run=sides[1]))
        np.testing.assert_allclose(first, [9.0, 9.4, 10.4, 11.4])
        np.testing.assert_allclose(second, [9.0, 9.4, 9.4 + 6 * 0.1 + 5.0, 15.3, 16.3])

    def test_speed_if_the_batch_size_changes_on_a_resume(self):
        # 30 steps of 100 tokens in 10 ms, then 10 of 800 tokens in 100 ms: 10,000 and 8,000 tokens per second.
        steps = [(step, 100 * step, 10) for step in range(1, 31)]
        steps += [(step, 800 * step - 21000, 100) for step in range(31, 41)]
        config = {"training.global_batch_size": "8", "model.seq_length": "100"}
        self.write("a/run.json", json.dumps({"config": config}))
        for every in (1, 2):
            rows = [f"{step},{tokens},4,{ms}" for step, tokens, ms in steps if step % every == 0 or step == 1]
            self.write("a/loss.csv", "step,consumed_tokens,loss,step_ms\n" + "\n".join(rows) + "\n")
            found = details.speed(read_run(self.folder / "a"))
            self.assertAlmostEqual(found["tokens_per_s"], 10000)
            self.assertEqual(found["step_ms"], 10)
        self.write("a/loss.csv", "consumed_tokens,loss,step_ms\n800,4,100\n8000,3,100\n")  # steps are unknown
        self.assertAlmostEqual(details.speed(read_run(self.folder / "a"))["tokens_per_s"], 8000)

    def test_without_times_seconds_are_unknown(self):
        self.assertTrue(np.isnan(read_run(self.write("t.csv", "consumed_tokens,loss\n10,4\n20,3\n")).seconds).all())

    def test_metrics_only_resumed_and_truncated(self):
        lines = [
            {"step": 1, "consumed_tokens": 10, "loss": 4.0, "step_ms": 5.0},
            {"step": 2, "consumed_tokens": 20, "loss": None},
            {"step": 3, "consumed_tokens": 30, "loss": 9.0},
            {"step": 3, "consumed_tokens": 30, "loss": 3.0, "valid_loss": 3.5},
        ]
        self.write("m/metrics.jsonl", "\n".join(json.dumps(x) for x in lines) + '\n{"step": 4, "cons')
        run = read_run(self.folder / "m")
        self.assertEqual((run.tokens.tolist(), run.loss.tolist(), run.dropped), ([10, 30], [4.0, 3.0], 1))
        self.assertEqual((run.valid_tokens.tolist(), run.valid_loss.tolist()), ([30], [3.5]))
        with self.assertRaisesRegex(UserError, "metrics.jsonl: line 1: not valid JSON"):
            read_run(self.write("bad/metrics.jsonl", "{oops}\n").parent)


    def test_values_of_other_types_are_one_line_errors(self):
        record = {"step": 1, "consumed_tokens": 10, "loss": 4.0}
        for change, message in (
            ({"consumed_tokens": None}, "consumed_tokens is empty"),
            *(({name: "x"}, f"{name} is 'x', must be a number") for name in (*record, "step_ms", "valid_loss")),
            ({"loss": [1]}, r"loss is \[1\], must be a number"),
        ):
            lines = [json.dumps(record), json.dumps({**record, **change})]
            with self.assertRaisesRegex(UserError, f"a/metrics.jsonl: line 2: {message}; correct the line$"):
                read_run(self.write("a/metrics.jsonl", "\n".join(lines)).parent)
        self.write("a/metrics.jsonl", json.dumps(record) + "\n")
        for name in ("run.json", "state.json"):
            with self.assertRaisesRegex(UserError, f"a/{name}: is not a JSON object"):
                read_run(self.write(f"a/{name}", "[1]").parent)
            (self.folder / "a" / name).unlink()
        for config, expected in ((None, {}), ({"training.seed": 5}, {"training.seed": "5"})):
            run = read_run(self.write("a/run.json", json.dumps({"config": config})).parent)
            self.assertEqual((run.config, run.seed), (expected, 5 if expected else None))

    def test_skipped_steps_may_have_a_loss(self):
        rows = "step,consumed_tokens,loss,skipped\n1,10,4,0\n2,20,4,1\n3,30,nan,1\n4,40,nan,0\n5,50,nan,\n6,60,3,\n"
        run = read_run(self.write("a/loss.csv", rows).parent)
        self.assertEqual((run.skipped, run.dropped), (3, 3))  # steps 2, 3, 5; steps 3 to 5
        records = ((10, 4.0, True), (20, 3.0, False))
        lines = [{"consumed_tokens": t, "loss": loss, "skipped": skipped} for t, loss, skipped in records]
        run = read_run(self.write("b/metrics.jsonl", "\n".join(map(json.dumps, lines))).parent)
        self.assertEqual((run.skipped, run.dropped), (1, 0))

    def test_validation_losses_that_are_not_finite(self):
        rows = "step,consumed_tokens,loss,valid_loss\n1,10,4,\n2,20,4,3.5\n3,30,4,nan\n"
        run = read_run(self.write("a/loss.csv", rows).parent)
        self.assertEqual((run.valid_tokens.tolist(), run.bad_valid.tolist()), ([20], [30]))
        lines = [{"consumed_tokens": 10, "loss": 4.0}, {"consumed_tokens": 20, "loss": 4.0, "valid_loss": None}]
        run = read_run(self.write("b/metrics.jsonl", "\n".join(map(json.dumps, lines))).parent)
        self.assertEqual((run.valid_tokens.tolist(), run.bad_valid.tolist()), ([], [20]))


class Megatron(InFolder):
    def test_console_log(self):
        run = read_run(LOGS / "megatron.log")
        samples = np.array([2560, 5120, 10240])  # iteration 30 was skipped and has no loss
        np.testing.assert_allclose(run.tokens, samples * 2048)
        np.testing.assert_allclose(run.loss, [10.5, 9.25, 8.5])
        np.testing.assert_allclose(run.grad_norm, [12.5, 8, 4])
        self.assertEqual((run.valid_tokens.tolist(), run.valid_loss.tolist()), ([5120 * 2048.0], [9.125]))
        self.assertEqual((run.label, run.dropped), ("megatron", 1))
        # Ten steps per line; the first line stands for its last step only.
        np.testing.assert_allclose(run.seconds, [1.1005, 11.1005, 31.1005])

    def test_loss_of_the_test_set_is_not_the_validation_loss(self):
        line = " validation loss at iteration 40 on {} set | lm loss value: {} | lm loss PPL: 1.0E+00 |\n"
        text = (LOGS / "megatron.log").read_text() + line.format("validation", 2.5) + line.format("test", 9.0)
        self.assertEqual(read_run(self.write("x.log", text)).valid_loss.tolist(), [9.125, 2.5])

    def test_validations_between_logged_iterations(self):
        line = " iteration {}/ 100 | consumed samples: {} | elapsed time per iteration (ms): 100.0 | lm loss: 4.0 |\n"
        text = "".join(line.format(step, 8 * step) for step in range(10, 101, 10))
        plain = read_run(self.write("plain.log", text), None, Options(seq_length=4))
        for step in (5, 25, 50, 75, 105):
            text += f" validation loss at iteration {step} | lm loss value: 3.0 |\n"
        run = read_run(self.write("x.log", text), None, Options(seq_length=4))
        self.assertEqual(run.valid_tokens.tolist(), [32 * step for step in (5, 25, 50, 75, 105)])
        self.assertEqual(run.tokens.tolist(), plain.tokens.tolist())
        np.testing.assert_allclose(np.diff(run.seconds), np.diff(plain.seconds))

    def test_a_last_line_that_is_being_written(self):
        text = (LOGS / "megatron.log").read_text()
        for line in (
            " iteration 50/ 100 | consumed samples: 12",
            " iteration 50/ 100 | consumed samples: 12800 | elapsed time per iteration (ms): 1000.0 | lm loss: 8.0E+",
            " validation loss at iteration 40 | lm loss value: 3.0E",
        ):
            run = read_run(self.write("x.log", text + line))
            self.assertEqual((run.loss.tolist(), run.dropped, run.diverged), ([10.5, 9.25, 8.5], 1, False), line)
            self.assertEqual(run.valid_loss.tolist(), [9.125])

    def test_sequence_length_is_required(self):
        lines = (LOGS / "megatron.log").read_text().splitlines(keepends=True)
        text = "".join(line for line in lines if "seq_length" not in line)
        path = self.write("x.log", text)
        with self.assertRaisesRegex(UserError, "--seq-length"):
            read_run(path)
        np.testing.assert_allclose(read_run(path, None, Options(seq_length=2)).tokens, [5120, 10240, 20480])
        np.testing.assert_allclose(read_run(path, None, Options(tokens_per_step=7)).tokens, [70, 140, 280])


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, wire, payload):
    return varint(number << 3 | wire) + (varint(len(payload)) if wire == 2 else b"") + payload


def record(payload):
    length = struct.pack("<Q", len(payload))
    return (
        length
        + struct.pack("<I", foreign._masked_crc32c(length))
        + payload
        + struct.pack("<I", foreign._masked_crc32c(payload))
    )


def event(step, tag, value):
    """`value`: the bytes of the field of Summary.Value with the number."""
    summary = field(1, 2, field(1, 2, tag.encode()) + value)
    return record(field(1, 1, struct.pack("<d", 50.0 + step)) + field(2, 0, varint(step)) + field(5, 2, summary))


class Events(InFolder):
    def test_file_of_another_writer(self):
        """tests/fixtures/logs/events.out.tfevents.megatron was written by tensorboardX 2.6 with Megatron's tags."""
        path = LOGS / "events.out.tfevents.megatron"
        with self.assertRaisesRegex(UserError, "--tokens-per-step"):
            read_run(path)
        run = read_run(path, "meg", Options(seq_length=128))  # 8 samples per step
        np.testing.assert_allclose(run.tokens, 8 * 128 * np.arange(1, 21))
        np.testing.assert_allclose(run.loss, 3 + 1 / np.arange(1, 21), rtol=1e-6)
        np.testing.assert_allclose(run.grad_norm, 0.5 * np.arange(1, 21))
        np.testing.assert_allclose(run.valid_tokens, [10240, 20480])
        np.testing.assert_allclose(run.valid_loss, [3.6, 3.55], rtol=1e-6)
        np.testing.assert_allclose(run.step_ms[1:], 2000)
        self.assertEqual(run.label, "meg")
        np.testing.assert_allclose(read_run(path, None, Options(tokens_per_step=10)).tokens, np.arange(10, 201, 10))

    def test_standard_checksum(self):
        # RFC 3720: CRC-32C of 32 bytes of zeros is 0x8a9136aa; rotated by 15 and offset as in TFRecord.
        crc = 0x8A9136AA
        self.assertEqual(foreign._masked_crc32c(bytes(32)), (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    def test_scalars_of_tensors_and_an_incomplete_record(self):
        number = struct.pack("<f", 2.5)
        tensors = [
            field(8, 2, field(1, 0, varint(1)) + field(4, 2, number)),  # tensor_content
            field(8, 2, field(1, 0, varint(1)) + field(5, 2, number)),  # float_val, packed
            field(8, 2, field(1, 0, varint(1)) + field(5, 5, number)),  # float_val
            field(8, 2, field(1, 0, varint(2)) + field(4, 2, struct.pack("<d", 2.5))),
            field(2, 5, number),  # simple_value
        ]
        text = field(8, 2, field(1, 0, varint(7)) + field(8, 2, b"some text"))
        data = b"".join(event(step, "train/loss", value) for step, value in enumerate(tensors, start=1))
        data += event(6, "train/loss", text) + event(7, "train/loss", tensors[0])[:-5]
        self.write("tb/events.out.tfevents.1", data)
        run = read_run(self.folder / "tb", None, Options(tokens_per_step=4))
        self.assertEqual((run.tokens.tolist(), run.loss.tolist()), ([4, 8, 12, 16, 20], [2.5] * 5))
        self.assertEqual(run.label, "tb")

    def test_resumed_and_consumed_tokens(self):
        def scalars(step, loss):
            return event(step, "loss", field(2, 5, struct.pack("<f", loss))) + event(
                step, "consumed_tokens", field(2, 5, struct.pack("<f", 32 * step))
            )

        self.write("tb/events.out.tfevents.1", scalars(1, 4.0) + scalars(2, 9.0))
        self.write("tb/events.out.tfevents.2", scalars(2, 3.0) + scalars(3, 2.0))
        run = read_run(self.folder / "tb")
        self.assertEqual((run.tokens.tolist(), run.loss.tolist()), ([32, 64, 96], [4.0, 3.0, 2.0]))

    def test_validations_between_logged_steps(self):
        def scalar(step, tag, value):
            return event(step, tag, field(2, 5, struct.pack("<f", value)))

        steps = range(10, 41, 10)
        data = b"".join(scalar(step, "loss", 4.0) + scalar(step, "consumed_tokens", 32 * step) for step in steps)
        data += b"".join(scalar(step, "val_loss", 3.0) for step in (5, 25, 45))
        run = read_run(self.write("x.tfevents", data))
        self.assertEqual(run.valid_tokens.tolist(), [32 * step for step in (5, 25, 45)])
        np.testing.assert_allclose(np.diff(run.seconds), 10)  # one second per step

    def test_a_start_discards_later_steps(self):
        def scalars(*losses):
            return b"".join(event(step, "loss", field(2, 5, struct.pack("<f", loss))) for step, loss in losses)

        def log(step, status):
            return record(field(2, 0, varint(step)) + field(7, 2, field(1, 0, varint(status))))

        start, stop = 1, 2
        self.write("tb/events.out.tfevents.1", log(1, start) + scalars((1, 4.0), (2, 9.0), (3, 9.0), (4, 9.0)))
        self.write("tb/events.out.tfevents.2", log(2, start) + scalars((2, 3.0), (3, 2.0)) + log(2, stop))
        run = read_run(self.folder / "tb", None, Options(tokens_per_step=10))
        self.assertEqual((run.tokens.tolist(), run.loss.tolist()), ([10, 20, 30], [4.0, 3.0, 2.0]))
        self.write("tb/events.out.tfevents.3", log(1, start))  # started again, without a step so far
        with self.assertRaisesRegex(UserError, r"no loss among its tags \(none\)"):
            read_run(self.folder / "tb", None, Options(tokens_per_step=10))

    def test_mistakes(self):
        with self.assertRaisesRegex(UserError, "not a record of an event file"):
            read_run(self.write("a.tfevents", b"not an event file at all, but long enough"))
        with self.assertRaisesRegex(UserError, r"no loss among its tags \(x\); set --loss-tag"):
            read_run(
                self.write("b.tfevents", event(1, "x", field(2, 5, struct.pack("<f", 1)))),
                None,
                Options(tokens_per_step=1),
            )


if __name__ == "__main__":
    unittest.main()
