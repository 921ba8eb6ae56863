"""Tests of scripts/fp8_figures.py: rounding, simulation and output files."""

import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import fp8_figures  # noqa: E402


class Rounding(unittest.TestCase):
    def test_to_nearest_even_and_saturating(self):
        for value, rounded in ((1.0, 1.0), (1.0625, 1.0), (1.1875, 1.25), (460, 448), (-1e6, -448), (2**-9, 2**-9), (2**-10, 0), (3 * 2**-10, 2**-8)):
            self.assertEqual(fp8_figures.quantize(value, 1.0), rounded)
        self.assertEqual(fp8_figures.quantize(65504, 1.0, "E5M2"), 57344)
        self.assertEqual(fp8_figures.quantize(3, 2.0, "E5M2"), 3)

    def test_numbers_of_an_octave(self):
        self.assertEqual(fp8_figures.numbers_of("E5M2", 1, 2), [1, 1.25, 1.5, 1.75, 2])


class Simulation(unittest.TestCase):
    def test_delayed_scale_lags_by_one_step(self):
        run = fp8_figures.simulate()
        for step in range(1, fp8_figures.STEPS):
            self.assertEqual(run["limit"][step], max(run["amax"][max(0, step - fp8_figures.HISTORY):step]))
        jump = fp8_figures.JUMP
        self.assertLess(run["saturating"][jump], 10)
        self.assertAlmostEqual(run["requantizing"][jump], run["current"][jump])


class Figures(InFolder):
    def test_are_written(self):
        subprocess.run([sys.executable, "-B", str(SCRIPTS / "fp8_figures.py"), "--folder", str(self.folder)], check=True, capture_output=True)
        for name in ("fp8_formats.png", "fp8_scaling.png"):
            self.assertGreater((self.folder / name).stat().st_size, 10000)


if __name__ == "__main__":
    unittest.main()
