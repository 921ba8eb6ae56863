#!/usr/bin/env python3
"""Compares the tokens of te-generate with those of transformers' generate(): greedy, with and without
end tokens, and with a repetition penalty, on random tiny models in FP32 on the CPU.

    pip install torch transformers safetensors
    scripts/generation_agreement.py [--te-generate build/cpu/apps/te-generate] [--models 3]
    scripts/generation_agreement.py --fixture          # regenerates tests/fixtures/generate
    scripts/generation_agreement.py --distributions    # regenerates only its distributions.json

te-generate gets prompts of several lengths in one file and in batches; transformers gets them one by one. The models have
a byte vocabulary, and their end-of-document token is swapped with a frequent one, so that texts end.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, NanoChatConfig, NanoChatForCausalLM
    from transformers import Qwen2Config, Qwen2ForCausalLM
except ImportError as error:
    sys.exit(f"generation_agreement.py: error: {error}; pip install torch transformers safetensors")

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parent.parent
FIXTURE = ROOT / "tests" / "fixtures" / "generate"
END, MAX_TOKENS = 256, 24
PROMPTS = ["the quick brown fox", "a", "Once upon a time", "0123456789 0123", "zz top"]
LLAMA = {"vocab_size": 257, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.35}
GPT2 = {"vocab_size": 257, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.35}
TOKENS = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": 0}


def variants():
    """(options of te-generate, arguments of generate())"""
    yield [], {}
    yield ["--repetition-penalty", "1.3"], {"repetition_penalty": 1.3}
    yield ["--ignore-end"], {"eos_token_id": None}


def make_model(kind, seed):
    """A random model with a frequent end-of-document token."""
    torch.manual_seed(seed)
    classes = {"llama": (LlamaForCausalLM, LlamaConfig, LLAMA), "qwen2": (Qwen2ForCausalLM, Qwen2Config, LLAMA),
               "gpt2": (GPT2LMHeadModel, GPT2Config, GPT2), "nanochat": (NanoChatForCausalLM, NanoChatConfig, LLAMA)}
    model_class, config_class, shape = classes[kind]
    model = model_class(config_class(**shape, **TOKENS)).eval()
    texts = [generate(model, prompt, {"eos_token_id": None, "num_beams": 3}) for prompt in PROMPTS]
    generated = torch.tensor([token for text in texts for token in text])
    ids, counts = generated.unique(return_counts=True)
    often = ids[counts.argsort(descending=True)[min(2, len(ids) - 1)]].item()
    with torch.no_grad():
        tables = {id(t): t for t in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)}
        for table in tables.values():
            table[[often, END]] = table[[END, often]]
    return model


def generate(model, prompt, arguments):
    """The new tokens, including the end token."""
    ids = torch.tensor([list(prompt.encode())])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_TOKENS,
                             **({"eos_token_id": END} | arguments))
    return out[0, ids.shape[1]:].tolist()


def te_generate(program, folder, prompts, options):
    """The new tokens of te-generate for all prompts."""
    lines = Path(folder) / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    output = Path(folder) / "results.jsonl"
    subprocess.run([program, "--checkpoint", folder, "--tokenizer", "bytes", "--device", "cpu", "--dtype", "fp32", "--quiet",
                    "--prompts", lines, "--output", output, "--max-tokens", str(MAX_TOKENS), "--batch", "3", *options],
                   check=True)
    return [json.loads(line)["tokens"] for line in output.read_text().splitlines()]


def compare(program, models):
    """Prints the number of equal texts; returns the number of differing texts."""
    differing = total = ended = 0
    for seed in range(models):
        for kind in ("llama", "qwen2", "gpt2", "nanochat"):
            model = make_model(kind, seed)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                for options, arguments in variants():
                    expected = [generate(model, prompt, arguments) for prompt in PROMPTS]
                    actual = te_generate(program, folder, PROMPTS, options)
                    for prompt, theirs, ours in zip(PROMPTS, expected, actual):
                        total += 1
                        ended += END in theirs
                        if theirs != ours:
                            differing += 1
                            print(f"{kind} {seed} {' '.join(options)} {prompt!r}:\n  {theirs}\n  {ours}", flush=True)
    print(f"transformers {transformers.__version__}: {total - differing} of {total} texts equal, {ended} of them ended")
    return differing


def write_fixture():
    """Writes a Llama and transformers' results for the prompts."""
    model = make_model("llama", 1)
    FIXTURE.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(FIXTURE / "llama")
    cases = [{"options": " ".join(options), "tokens": [generate(model, prompt, arguments) for prompt in PROMPTS]}
             for options, arguments in variants()]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (FIXTURE / "expected.json").write_text(
        f'{{"prompts": {json.dumps(PROMPTS)},\n "max_tokens": {MAX_TOKENS},\n "cases": [\n{lines}]}}\n')
    print(f"{FIXTURE}: {len(cases)} cases, {sum(END in text for case in cases for text in case['tokens'])} texts end")


def distribution(logits, options):
    """The distribution from which generate() would sample."""
    from transformers.generation.logits_process import LogitsProcessorList

    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": logits.shape[1]}))
    config = transformers.GenerationConfig(do_sample=True, **options)
    model._prepare_special_tokens(config)
    ids = torch.tensor([[0, 1, 1, 5]])
    processors = model._get_logits_processor(config, input_ids_seq_length=4, logits_processor=LogitsProcessorList())
    return torch.softmax(processors(ids, logits.clone()), dim=-1)[0]


def write_distributions():
    """Writes logits, options, and the probabilities of the remaining tokens, {token: probability}."""
    cases = []
    choices = [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.9, "temperature": 1.3},
               {"top_p": 0.95, "min_p": 0.05, "temperature": 2.0}, {"top_k": 3, "top_p": 0.5, "min_p": 0.6},
               {"repetition_penalty": 1.4, "temperature": 0.8, "top_k": 9}, {"top_k": 40, "top_p": 0.99}, {"top_p": 0.01}]  # fmt: skip
    for seed, options in enumerate(choices * 3):
        logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(seed)) * 3
        # The default of generate() is top_k 50.
        probabilities = distribution(logits, {"top_k": 0, "temperature": 1.0} | options)
        left = [[token, p] for token, p in enumerate(probabilities.tolist()) if p > 0]
        cases.append({"options": options, "logits": logits[0].tolist(), "seen": [0, 1, 1, 5], "probabilities": left})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (FIXTURE / "distributions.json").write_text(f"[{lines}]\n")
    print(f"{FIXTURE}: {len(cases)} distributions of transformers {transformers.__version__}")


def main():
    """Compares, or writes the fixtures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--te-generate", default=ROOT / "build/cpu/apps/te-generate")
    parser.add_argument("--models", type=int, default=3, help="seeds; three models each")
    parser.add_argument("--fixture", action="store_true")
    parser.add_argument("--distributions", action="store_true")
    arguments = parser.parse_args()
    if arguments.fixture:
        write_fixture()
    if arguments.fixture or arguments.distributions:
        return write_distributions()
    return 1 if compare(arguments.te_generate, arguments.models) else 0


if __name__ == "__main__":
    sys.exit(main())
