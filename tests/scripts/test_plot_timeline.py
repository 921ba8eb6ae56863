"""Tests of scripts/plot_timeline.py on small timelines."""

import lzma
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True
import plot_timeline  # noqa: E402
from folder_testing import InFolder  # noqa: E402


def event(start, ms, name, cat, label="", group="", rank=0, stream=0):
    arguments = {"label": label, "group": group, "bytes": 1.0, "flops": 0.0}
    times = {"ts": 1e3 * start, "dur": 1e3 * ms}
    return {"ph": "X", "name": name, "cat": cat, "pid": rank, "tid": stream, **times, "args": arguments}


def gemm(start, label, **place):
    return event(start, 1, "gemm", "GEMMs", label, **place)


def layer_forward(start):
    """Four milliseconds: a linear layer in two chunks with overlapping communication, and other operations."""
    return [
        gemm(start, "linear_qkv fprop"),
        event(start, 1.5, "all_gather", "communication", group="tensor", stream=1),
        gemm(start + 1, "linear_qkv fprop"),
        event(start + 2, 0.5, "attention_forward", "attention"),
        gemm(start + 3, "linear_fc2 fprop"),
    ]


def layer_backward(start, recomputed=False):
    """Five milliseconds, of which two recompute activations if `recomputed`."""
    recompute = [gemm(start + 3, "linear_qkv fprop"), gemm(start + 4, "linear_fc2 fprop")] if recomputed else []
    return [
        gemm(start, "linear_fc2 dgrad"),
        gemm(start + 0.2, "linear_fc2 wgrad", stream=2),
        gemm(start + 1, "linear_fc2 dgrad"),
        gemm(start + 2, "linear_qkv dgrad"),
        *recompute,
    ]


def step(layers, microbatches, recomputed=False):
    """Each microbatch: the layers forward (four ms each), the output layer (two), and the layers backward (five each)."""
    events, now = [event(0, 0.5, "fill", "copies, fills")], 1
    for _ in range(microbatches):
        for _ in range(layers):
            events += layer_forward(now)
            now += 4
        events += [gemm(now, "output_layer fprop"), gemm(now + 1, "output_layer dgrad")]
        now += 2
        for _ in range(layers):
            events += layer_backward(now, recomputed)
            now += 5
    return events


def trace(events):
    named = {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "rank 0"}}
    return {"otherData": {"config": "tiny"}, "traceEvents": [named, *events]}


class PlotTimeline(InFolder):
    def run_script(self, *arguments):
        command = [sys.executable, "-B", str(SCRIPTS / "plot_timeline.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def windows(self, events):
        return plot_timeline.layer_windows(plot_timeline.read_events(self.write("trace.json", trace(events)))[1])

    def test_reads_operations_in_milliseconds(self):
        late, early = gemm(4, "linear_qkv fprop", rank=1), event(1, 2.5, "all_gather", "communication", group="data", stream=3)
        path = self.write("trace.json", trace([late, early]))
        title, events = plot_timeline.read_events(path)
        (self.folder / "trace.json.xz").write_bytes(lzma.compress(Path(path).read_bytes()))
        self.assertEqual(plot_timeline.read_events(str(self.folder / "trace.json.xz")), (title, events))
        self.assertEqual(title, "tiny")
        self.assertEqual([e["lane"] for e in events], [(0, 3), (1, 0)])
        self.assertAlmostEqual(events[0]["from"], 1.0)
        self.assertAlmostEqual(events[0]["to"], 3.5)
        self.assertEqual(plot_timeline.kind_of(events[0]), "communication")
        self.assertEqual(plot_timeline.kind_of(events[1]), "GEMMs")

    def test_kinds(self):
        for cat, kind in (("quantization", "norms, activations, quantization"), ("rope", "norms, activations, quantization"),
                          ("attention", "attention"), ("optimizer", "other"), ("unheard of", "other")):  # fmt: skip
            self.assertEqual(plot_timeline.kind_of({"kind": cat}), kind)

    def test_windows_are_a_layer_in_the_middle(self):
        # Three layers from 1, 5 and 9; the output layer from 13 to 15; backward from 15, 20 and 25 to 30.
        forward, backward = self.windows(step(3, 1))
        self.assertEqual(forward, ("forward pass of a layer", 5.0, 9.0))
        self.assertEqual(backward, ("backward pass of a layer", 20.0, 25.0))
        # Recomputed activations do not shift them.
        self.assertEqual(self.windows(step(3, 1, recomputed=True)), [forward, backward])

    def test_no_window_spans_two_microbatches(self):
        # Two layers: backward from 11 and 16 to 21, then from 31 and 36. Between 16 and 31 there is a forward pass.
        _, backward = self.windows(step(2, 2))
        self.assertEqual(backward[1:], (31.0, 36.0))

    def test_a_single_layer_ends_at_what_follows(self):
        forward, backward = self.windows(step(1, 1))  # 1 to 5, output layer to 7, 7 to 12
        self.assertEqual(forward[1:], (1.0, 5.0))
        self.assertEqual(backward[1:], (7.0, 10.0))  # the end of its last operation

    def test_without_layers_the_whole_step(self):
        events = plot_timeline.read_events(self.write("trace.json", trace([event(0, 2, "fill", "copies, fills")])))[1]
        self.assertEqual(plot_timeline.chosen_windows(events, None, None), [("step", 0.0, 2.0)])
        self.assertEqual(plot_timeline.chosen_windows(events, 1.0, None), [("window", 1.0, 2.0)])
        self.assertEqual(plot_timeline.chosen_windows(events, None, 1.5), [("window", 0.0, 1.5)])

    def test_texts_fit_their_bars(self):
        fc1 = {"name": "gemm", "kind": "GEMMs", "label": "linear_fc1 fprop", "group": ""}
        self.assertEqual([plot_timeline.text_of(fc1, letters) for letters in (9, 8, 2)], ["fc1 fprop", "fc1", ""])
        gather = {"name": "all_gather", "kind": "communication", "label": "", "group": "data"}
        self.assertEqual([plot_timeline.text_of(gather, letters) for letters in (15, 14, 2, 1)],
                         ["all gather data", "all gather", "AG", ""])  # fmt: skip

    def test_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is missing")
        path = self.write("trace.json", trace(step(2, 1)))
        result = self.run_script(path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("forward pass of a layer 1.000 to 5.000 ms", result.stdout)
        self.assertIn("3 lanes", result.stdout)  # the main stream, communication, weight gradients
        self.assertGreater((self.folder / "trace.png").stat().st_size, 1000)
        result = self.run_script(path, "--from-ms", "2", "--to-ms", "3.2", "--out", str(self.folder / "other.png"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2 operations, 2 lanes", self.run_script(path, "--from-ms", "2.1", "--to-ms", "2.4").stdout)
        self.assertGreater((self.folder / "other.png").stat().st_size, 1000)
        result = self.run_script(f"BF16={path}", f"FP8={path}", "--title", "Two", "--out", str(self.folder / "two.png"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("FP8: backward pass of a layer", result.stdout)

    def test_names_and_files_may_contain_equals_signs(self):
        folder = self.folder / "lr=1"
        path = str(self.write("lr=1/step=2.json", trace(step(1, 1))))
        for argument, expected in ((path, ("", path)), (f"FP8={path}", ("FP8", path)), (f"a=b={path}", ("a=b", path)),
                                   (f"{folder}/no.json", (f"{self.folder}/lr", "1/no.json")),
                                   ("no.json", ("", "no.json"))):  # fmt: skip
            self.assertEqual(plot_timeline.name_and_path(argument), expected)
        result = self.run_script(path, "--from-ms", "5", "--to-ms", "5")  # refused after reading the file
        self.assertTrue(result.stderr.startswith("plot_timeline.py: error: --from-ms"), result.stderr)

    def test_two_files_share_their_scale(self):
        slow, fast = step(2, 1), step(1, 1)
        timelines = []
        for name, operations in (("BF16", slow), ("FP8", fast)):
            events = plot_timeline.read_events(self.write("trace.json", trace(operations)))[1]
            timelines.append((name, events, plot_timeline.layer_windows(events)))
        panels = plot_timeline.panels_of(timelines)
        self.assertEqual([what for _, (what, _, _), _ in panels],
                         ["BF16: forward pass of a layer", "FP8: forward pass of a layer",
                          "BF16: backward pass of a layer", "FP8: backward pass of a layer"])  # fmt: skip
        self.assertEqual([end - start for _, (_, start, end), _ in panels], [4.0, 4.0, 5.0, 3.0])
        self.assertEqual([span for _, _, span in panels], [4.0, 4.0, 5.0, 5.0])
        self.assertEqual(plot_timeline.lane_names([(0, 0), (0, 2)]), ["main stream", "CUDA stream 2"])
        self.assertEqual(plot_timeline.lane_names([(0, 0), (1, 2)]), ["rank 0, main stream", "rank 1, CUDA stream 2"])

    def test_one_line_for_a_mistake(self):
        for path in (
            self.write("text.json", "no timeline"),
            self.write("list.json", [1]),
            self.write("other.json", {"traceEvents": [{"ph": "X"}]}),
            self.write("empty.json", trace([])),
            str(self.folder / "missing.json"),
        ):
            result = self.run_script(path)
            self.assertEqual(result.returncode, 2, path)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertTrue(result.stderr.startswith(f"plot_timeline.py: error: {path}"), result.stderr)
        (self.folder / "bad.json.xz").write_bytes(b"no archive")
        self.assertIn("not a timeline", self.run_script(str(self.folder / "bad.json.xz")).stderr)
        path = self.write("trace.json", trace(step(1, 1)))
        result = self.run_script(path, "--output", str(self.folder / "missing" / "picture.png"))
        self.assertEqual(result.returncode, 2)
        self.assertTrue(result.stderr.startswith("plot_timeline.py: error: --output "), result.stderr)
        for window in (("--from-ms", "5", "--to-ms", "5"), ("--from-ms", "100", "--to-ms", "110"), ("--from-ms", "12")):
            result = self.run_script(path, *window)
            self.assertEqual(result.returncode, 2, window)
            self.assertTrue(result.stderr.startswith("plot_timeline.py: error: --from-ms"), result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    unittest.main()
