"""The planned memory in README and pages is what `te-train --dry-run` prints. TE_APPS is the executables' folder."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from folder_testing import InFolder

ROOT = Path(__file__).resolve().parents[2]
TE_TRAIN = Path(os.environ.get("TE_APPS", ROOT / "build/cpu/apps")).resolve() / "te-train"
SYNTHETIC = "data: {synthetic: true}\n"


def page(name):
    return (ROOT / name).read_text()


def table(name, header):
    """Cells of the rows of the table whose header line begins so."""
    lines = page(name).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(header)) + 2
    rows = []
    while first < len(lines) and lines[first].startswith("|"):
        rows.append([cell.strip() for cell in lines[first].strip().strip("|").split("|")])
        first += 1
    return rows


def number(cell):
    return float(re.match(r"-?[\d.]+", cell)[0])


def tutorial_config(name, extends):
    """The page's config with another base, without its data and without what it starts from."""
    text = re.search(r"```yaml\n(.*?)```", page(name), re.S)[1]
    text = re.sub(r"^data:\n(?: .*\n)+", SYNTHETIC, text, flags=re.M)
    text = re.sub(r"^(logging:|  (init_from|early_stopping_patience|eval_interval|directory):.*)\n", "", text, flags=re.M)
    return re.sub(r"^extends:.*", f"extends: {extends}", text, flags=re.M)


class PlannedMemory(InFolder):
    def plan(self, config, *arguments):
        """GiB that the plan needs; config is a file of configs/ or the text of one."""
        path = ROOT / "configs" / config
        if "\n" in config:
            path = self.folder / "config.yaml"
            path.write_text(config)
        command = [str(TE_TRAIN), "--config", str(path), "--dry-run", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        self.assertEqual(result.returncode, 0, f"{command}: {result.stderr}")
        found = re.search(r"^  total +([\d.]+) GiB$", result.stdout, re.M)
        self.assertIsNotNone(found, f"{command}: {result.stdout}")
        return float(found[1])

    def expect(self, where, cell, planned, places=2):
        self.assertAlmostEqual(number(cell), planned, delta=0.5001 * 10**-places, msg=where)

    def test_shipped_configs(self):
        rows = table("README.md", "| Config (each `_bf16` and `_fp8`)")
        self.assertEqual(len(rows), 6)
        for name, gpus, _, *cells in rows:
            config = re.match(r"`(\w[\w.]*)`", name)[1]
            for precision, cell in zip(("bf16", "fp8"), cells, strict=True):
                self.expect(f"{config} {precision}", cell, self.plan(f"{config}_{precision}.yaml", "--ranks", gpus))

    def test_fine_tuning(self):
        small = ["training.micro_batch_size=1", "training.recompute=selective", "optimizer.store_param_remainders=true"]
        for name, gpus, *cells in table("docs/tutorials/finetune.md", "| Model | GPUs | BF16 | FP8 |"):
            preset = "llama" + re.search(r"Llama (3\.\d \dB)", name)[1].replace(" ", "_").lower()
            keys = (small if "small" in name else []) + (["optimizer.offload=state"] if "offload" in name else [])
            config = tutorial_config("docs/tutorials/finetune.md", f"preset:{preset}")
            for fp8, cell in zip(("off", "hybrid"), cells, strict=True):
                arguments = ["--ranks", gpus, "--set", f"precision.fp8={fp8}", *keys]
                self.expect(f"{name} {fp8}", cell, self.plan(config, *arguments))

    def test_lora(self):
        config = tutorial_config("docs/tutorials/lora.md", "preset:llama3.1_8b")
        for base, *cells in table("docs/tutorials/lora.md", "| Base | 2,048 tokens"):
            for recipe in re.findall(r"`(\w+)`", base) + (["off"] if "BF16" in base else []):
                precision = ["precision.fp8=off"] if recipe == "off" else [f"precision.fp8_recipe={recipe}"]
                shapes = [(length, recompute) for length in (2048, 4096) for recompute in ("none", "selective", "full")]
                for (length, recompute), cell in zip(shapes, cells, strict=True):
                    keys = [f"model.seq_length={length}", f"training.recompute={recompute}", *precision]
                    planned = self.plan(config, "--set", *keys, "checkpoint.init_from=base")
                    self.expect(f"{recipe} {keys}", cell, planned, places=1)

    def test_ladder(self):
        """Each row of save-memory's ladder alone. Keys that the config has are compared with leaving them out."""
        config, start = "llama7b_fp8.yaml", {}
        without = {"training.recompute: selective": "training.recompute=none",
                   "optimizer.store_param_remainders: true": "optimizer.store_param_remainders=false"}
        for gpus in (1, 4):
            start[gpus] = self.plan(config, "--ranks", str(gpus))
        said = re.search(r"from ([\d.]+) on one GPU and ([\d.]+)\s+on four", page("docs/how-to/save-memory.md"))
        self.assertEqual([float(x) for x in said.groups()], [start[1], start[4]])
        for key, *cells, _ in table("docs/how-to/save-memory.md", "| Key | One GPU | Four GPUs | Cost |"):
            keys = re.findall(r"`([\w.]+): (\w+)`", key)
            if key.startswith("`optimizer.exp_avg_dtype`") or key.startswith("the same keys"):
                dtype = "fp8" if "fp8" in key else "bf16"
                keys = [("optimizer.exp_avg_dtype", dtype), ("optimizer.exp_avg_sq_dtype", dtype)]
            keys = [("parallel.sequence", value) if name == "sequence" else (name, value) for name, value in keys]
            for gpus, cell in zip((1, 4), cells, strict=True):
                if cell == "-":
                    continue
                left_out = without.get(": ".join(keys[0]))
                ranks = "2" if keys[0][0] == "parallel.tensor" else str(gpus)
                other = self.plan(config, "--ranks", ranks, "--set", *([left_out] if left_out else map("=".join, keys)))
                self.expect(f"{key}, {gpus} GPUs", cell, start[gpus] - other if left_out else other - start[gpus])

    def test_sharding(self):
        for name, *_, total, recomputed in table("docs/how-to/save-memory.md", "| `parallel.shard` | Weights"):
            shard = "parallel.shard=" + re.match(r"`(\w+)`", name)[1]
            for cell, keys in ((total, [shard]), (recomputed, [shard, "training.recompute=full"])):
                self.expect(f"{keys}", cell, self.plan("llama7b_fp8.yaml", "--ranks", "4", "--set", *keys))

    def test_offload(self):
        for name, device, *_ in table("docs/how-to/save-memory.md", "| Keys | GPU, GiB | Host, GiB"):
            keys = [f"optimizer.offload={mode}" for mode in ("moments", "state") if f"`{mode}`" in name]
            if "both moments" in name:
                keys += ["optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"]
            if "main_grad_dtype" in name:
                keys.append("optimizer.main_grad_dtype=bf16")
            arguments = ["--set", *keys] if keys else []
            self.expect(name, device, self.plan("llama2_13b_fp8.yaml", "--ranks", "1", *arguments))


if __name__ == "__main__":
    if not TE_TRAIN.exists():
        print(f"{TE_TRAIN} is not built")
        sys.exit(77)
    unittest.main()
