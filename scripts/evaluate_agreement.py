#!/usr/bin/env python3
"""Compares te-generate evaluate with lm-evaluation-harness, document by document, on random models in FP32.

Makes a small Llama (whose tokenizer starts every text with <s>), Qwen2 and GPT-2, evaluates each with both programs on the
same data, and compares: tokens of every request (equal), log-probabilities (within 1e-4 relative or absolute), is_greedy,
acc, acc_norm, the metrics and their standard errors; and the tokens of greedy texts with those of transformers. Exits
with code 1 if something differs.

    pip install lm_eval torch transformers datasets
    scripts/evaluate_agreement.py build/cpu/apps/te-generate                       # on tests/fixtures/evaluate
    scripts/evaluate_agreement.py build/cpu/apps/te-generate --data DIR --tasks hellaswag,lambada_openai --limit 200 \\
        --tokenizer gpt2=DIR --tokenizer llama=DIR                                 # real data, real tokenizers
    scripts/evaluate_agreement.py build/cpu/apps/te-generate --write-fixtures      # regenerates tests/fixtures/evaluate

The data is that of te-generate evaluate --data: in Hugging Face's format (JSON lines), or in formats that are converted
to it here: ARC and OpenBookQA of their authors, HellaSwag as text, LAMBADA as {context, continuation}. Custom tasks
{context, choices, gold} are passed to lm-evaluation-harness as a multiple-choice task.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from script_files import write_text

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "evaluate"
TOKENIZERS = ROOT / "tests" / "fixtures" / "tokenizers"
TOLERANCE = 1e-4

try:
    import lm_eval
    import lm_eval.tasks
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks._yaml_loader import load_yaml
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from transformers import Qwen2Config, Qwen2ForCausalLM
except ImportError as error:
    sys.exit(f"evaluate_agreement.py: error: {error}; pip install lm_eval torch transformers datasets")

SHAPE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
}
YAML = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "piqa": "piqa/piqa.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "sciq": "sciq/sciq.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "winogrande": "winogrande/default.yaml",
    "wikitext": "wikitext/wikitext.yaml",
}
PROMPTS = ["The token of the", "a", "One two three, and then the document is", "é 中文 <data> 12"]
NEW_TOKENS = 24
OWN = {
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "context",
    "doc_to_choice": "choices",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


# --- models -----------------------------------------------------------------------------------------------------


def randomize(model, seed):
    """Sets random weights that are large enough for distributions that differ clearly from uniform."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        gain = ("norm" in name or "ln_" in name) and name.endswith("weight")
        matrix = parameter.dim() > 1
        with torch.no_grad():
            parameter.copy_(noise * 0.3 if matrix else 1.0 + 0.2 * noise if gain else 0.1 * noise)


def small_tokenizer(name, folder):
    """Writes a tokenizer of tests/fixtures/tokenizers as transformers saves it."""
    style = "llama2_style" if name == "llama" else "gpt2_style"
    definition = json.loads((TOKENIZERS / f"{style}.json").read_text(encoding="utf-8"))
    if name == "llama":
        definition["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        }
    if name == "qwen2":  # transformers sets the pattern of Qwen2's own tokenizer for every Qwen2 model
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_alone]}
    ends = {"bos_token": "<s>", "eos_token": "</s>"} if name == "llama" else {"eos_token": "<|endoftext|>"}
    if name == "gpt2":
        ends["bos_token"] = "<|endoftext|>"
    config = ends | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")


def make_model(name, folder, tokenizer, positions):
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer:
        for file in Path(tokenizer).iterdir():
            if file.name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
                shutil.copy(file, folder)
    else:
        small_tokenizer(name, folder)
    vocab = len(AutoTokenizer.from_pretrained(folder))
    if name == "gpt2":
        config = GPT2Config(vocab_size=vocab, n_embd=24, n_layer=2, n_head=4, n_positions=positions or 256, bos_token_id=0, eos_token_id=0)
        model = GPT2LMHeadModel(config)
    else:
        kind, config = (LlamaForCausalLM, LlamaConfig) if name == "llama" else (Qwen2ForCausalLM, Qwen2Config)
        tied = name == "qwen2"
        model = kind(
            config(**SHAPE, vocab_size=vocab, max_position_embeddings=positions or 1024, tie_word_embeddings=tied)
        )
    randomize(model, 7)
    model.float().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    return folder


# --- data -------------------------------------------------------------------------------------------------------


def labeled(choices):
    return {"text": [c["text"] for c in choices], "label": [c["label"] for c in choices]}


def of_hugging_face(task, record):
    """A record in Hugging Face's format."""
    if task in ("arc_easy", "arc_challenge", "openbookqa") and isinstance(record["question" if "question" in record else "question_stem"], dict):
        question = record["question"]
        stem = "question_stem" if task == "openbookqa" else "question"
        return {stem: question["stem"], "choices": labeled(question["choices"]), "answerKey": record["answerKey"]}
    if task == "lambada_openai" and "text" not in record:
        return {"text": record["context"] + " " + record["continuation"]}
    if task == "hellaswag":
        return record | {"label": str(record["label"])}
    return record


def read_records(task, data):
    path = data / f"{task}.jsonl"
    with open(path, encoding="utf-8") as file:
        return [of_hugging_face(task, json.loads(line)) for line in file if line.strip()]


def task_config(task, data, folder):
    """The task definition of lm-evaluation-harness, with data from files."""
    base = Path(lm_eval.tasks.__file__).parent
    if task.startswith("mmlu_"):
        config = load_yaml(base / "mmlu" / "default" / f"{task}.yaml") | {"num_fewshot": 5}
    elif task in YAML:
        config = load_yaml(base / YAML[task])
    else:
        config = dict(OWN, task=task)
    files = {}
    for split in ("test_split", "validation_split", "fewshot_split"):
        name = config.get(split)
        if not name or files and split == "validation_split":
            config.pop(split, None)
            continue
        source = f"{task}_dev" if split == "fewshot_split" else task
        path = folder / f"{source}.jsonl"
        with open(path, "w", encoding="utf-8") as out:
            for record in read_records(source, data):
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
        files[name] = str(path)
    config.pop("training_split", None)
    config.pop("dataset_name", None)
    config.pop("tag", None)
    return config | {"dataset_path": "json", "dataset_kwargs": {"data_files": files}}


# --- comparison -------------------------------------------------------------------------------------------------


class Differences:
    def __init__(self):
        self.count, self.largest, self.documents, self.requests = 0, 0.0, 0, 0

    def say(self, text):
        self.count += 1
        if self.count <= 20:
            print("  DIFFERS:", text)

    def number(self, what, mine, theirs, tolerance=TOLERANCE):
        error = abs(mine - theirs) / max(1.0, abs(theirs))
        if not error <= tolerance:
            self.say(f"{what}: {mine} here, {theirs} there")
        return error


def their_tokens(lm, request, rolling):
    """Token requests of lm-evaluation-harness: [tokens, scored]."""
    if rolling:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        windows = get_rolling_token_windows(lm.tok_encode(request[0]), lm.prefix_token_id, lm.max_length, 1)
        return [{"tokens": a + b, "scored": len(b)} for a, b in map(make_disjoint_window, windows)]
    context, continuation = request
    if context == "":
        tokens = lm.tok_encode(continuation, add_special_tokens=False)
        pair = ([lm.prefix_token_id], tokens) if lm.prefix_token_id != tokens[0] else (tokens[:1], tokens[1:])
    else:
        pair = lm._encode_pair(context, continuation)
    return [{"tokens": (pair[0] + pair[1])[-(lm.max_length + 1) :], "scored": len(pair[1])}]


def compare_document(lm, task, mine, theirs, differences):
    place = f"{task} document {mine['doc_id']}"
    rolling = "word_perplexity" in mine
    differences.documents += 1
    requests = [list(a) for a in theirs["arguments"]]
    if [r[1:] if rolling else r for r in mine["arguments"]] != requests:
        differences.say(f"{place}: texts {mine['arguments']} here, {requests} there")
    tokens = [their_tokens(lm, request, rolling) for request in requests]
    if mine["token_requests"] != tokens:
        differences.say(f"{place}: tokens")
    responses = theirs["filtered_resps"]
    for i, response in enumerate(responses):
        differences.requests += 1
        score = mine["filtered_resps"][i]
        pair = (score, True) if rolling else score
        value = (response, True) if rolling else response
        error = differences.number(f"{place} request {i}: log-probability", pair[0], float(value[0]))
        differences.largest = max(differences.largest, error)
        if not rolling and pair[1] != (value[1] in (True, "True")):
            differences.say(f"{place} request {i}: greedy {pair[1]} here")
    for metric in ("acc", "acc_norm"):
        if metric in theirs and float(theirs[metric]) != mine[metric]:
            differences.say(f"{place}: {metric} {mine[metric]} here, {theirs[metric]} there")
    if rolling and list(mine["word_perplexity"])[1] != theirs["word_perplexity"][1]:
        differences.say(f"{place}: words")
    if rolling and list(mine["byte_perplexity"])[1] != theirs["byte_perplexity"][1]:
        differences.say(f"{place}: bytes")


def compare_metrics(task, mine, theirs, differences):
    for key, value in theirs.items():
        if not key.endswith(",none"):
            continue
        if key not in mine:
            differences.say(f"{task}: {key} is missing")
        elif isinstance(value, str) or isinstance(mine[key], str) or not math.isfinite(value):
            if mine[key] != value and not (mine[key] == "N/A" and not isinstance(value, str)):
                differences.say(f"{task}: {key} {mine[key]} here, {value} there")
        else:
            if key == "perplexity_stderr,none":  # lm-evaluation-harness uses bootstrap samples
                print(f"       {task}: {key} {mine[key]:.4g} here, {value:.4g} by 1000 bootstrap samples there")
                continue
            differences.number(f"{task}: {key}", mine[key], value)


def compare_greedy(arguments, name, model, folder):
    """Compares the prompt tokens and greedy continuations of te-generate and transformers."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    torch_model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    lines, output = folder / "prompts.jsonl", folder / "texts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
    command = [arguments.te_generate, "--checkpoint", model, "--prompts", lines, "--output", output, "--max-tokens",
               NEW_TOKENS, "--batch", 3, "--device", arguments.device, "--dtype", "fp32", "--ignore-end", "--quiet"]  # fmt: skip
    subprocess.run([str(part) for part in command], check=True)
    expected, count = [], 0
    for prompt, line in zip(PROMPTS, output.read_text(encoding="utf-8").splitlines()):
        mine = json.loads(line)
        tokens = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            text = torch_model.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=NEW_TOKENS,
                eos_token_id=None, pad_token_id=0,
            )[0, tokens.shape[1] :].tolist()  # fmt: skip
        expected.append({"prompt": prompt, "prompt_tokens": tokens.shape[1], "tokens": text})
        if mine["prompt_tokens"] != tokens.shape[1] or mine["tokens"] != text:
            count += 1
            print(f"  DIFFERS: {prompt!r}: {mine['prompt_tokens']} and {mine['tokens']} here, {expected[-1]} there")
    print(f"{name:6} {len(PROMPTS)} greedy texts of {NEW_TOKENS} tokens, {count} differ from transformers'", flush=True)
    if arguments.write_fixtures:
        path = FIXTURES / "expected" / f"{name}_greedy.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in expected), encoding="utf-8")
    return count


def run_model(arguments, name, model, tasks, folder):
    """Returns the number of differences."""
    results, items = folder / f"{name}.json", folder / f"{name}.jsonl"
    command = [arguments.te_generate, "evaluate", "--checkpoint", model, "--tasks", ",".join(tasks), "--data",
               arguments.data, "--output", results, "--items", items, "--items-inputs", "--device", arguments.device,
               "--dtype", "fp32"]  # fmt: skip
    if arguments.limit:
        command += ["--limit", arguments.limit]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    mine = json.loads(results.read_text())
    lines = [json.loads(line) for line in items.read_text(encoding="utf-8").splitlines()]
    lm = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=8)
    configs = [task_config(task, arguments.data, folder) for task in tasks]
    theirs = lm_eval.simple_evaluate(
        model=lm, tasks=configs, limit=arguments.limit, log_samples=True, bootstrap_iters=1000
    )
    everything = Differences()
    everything.count = compare_greedy(arguments, name, model, folder)
    for task in tasks:
        differences = Differences()
        samples = {s["doc_id"]: s for s in theirs["samples"][task]}
        documents = {d["doc_id"]: d for d in lines if d["task"] == task}
        if samples.keys() != documents.keys():
            differences.say(f"{task}: {len(documents)} documents here, {len(samples)} there")
        for i in sorted(samples.keys() & documents.keys()):
            compare_document(lm, task, documents[i], samples[i], differences)
        compare_metrics(task, mine["results"][task], theirs["results"][task], differences)
        print(f"{name:6} {task:32} {differences.documents:6} documents {differences.requests:6} requests: largest "
              f"relative difference {differences.largest:.1e}, {differences.count} differences", flush=True)  # fmt: skip
        everything.count += differences.count
        write_expected(arguments, name, task, samples, documents, theirs["results"][task])
    return everything.count


def write_expected(arguments, name, task, samples, documents, metrics):
    """Writes the results of lm-evaluation-harness, for the test that runs without it."""
    if not arguments.write_fixtures:
        return
    path = FIXTURES / "expected" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    expected = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    records = []
    for i, sample in sorted(samples.items()):
        record = {"doc_id": i, "tokens": [[p["tokens"] for p in r] for r in documents[i]["token_requests"]]}
        record["filtered_resps"] = [
            float(r) if isinstance(r, (float, str)) else [float(r[0]), r[1] in (True, "True")]
            for r in sample["filtered_resps"]
        ]
        record |= {metric: float(sample[metric]) for metric in ("acc", "acc_norm") if metric in sample}
        records.append(record)
    results = {k: v for k, v in metrics.items() if k.endswith(",none") and k != "perplexity_stderr,none"}
    expected[task] = {"results": results, "documents": records}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in expected.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("te_generate", type=Path, help="te-generate executable")
    parser.add_argument("--data", type=Path, default=FIXTURES / "data")
    parser.add_argument("--tasks", help="comma-separated tasks (default: all of the fixtures)")
    parser.add_argument("--models", default="llama,qwen2,gpt2")
    parser.add_argument("--tokenizer", action="append", default=[], help="MODEL=FOLDER: tokenizer to use instead of the small one")
    parser.add_argument("--positions", type=int, help="context of the models")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="cpu", help="device of te-generate")
    parser.add_argument("--write-fixtures", action="store_true", help="write the models and expected results to tests/fixtures/evaluate")
    arguments = parser.parse_args()
    tasks = arguments.tasks.split(",") if arguments.tasks else [*YAML, "mmlu_abstract_algebra", "mmlu_high_school_us_history", "own_task"]
    tokenizers = dict(pair.split("=", 1) for pair in arguments.tokenizer)
    count = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in arguments.models.split(","):
            keep = FIXTURES / name if arguments.write_fixtures else folder / name
            if arguments.write_fixtures:
                (FIXTURES / "expected" / f"{name}.json").unlink(missing_ok=True)
            model = make_model(name, keep, tokenizers.get(name), arguments.positions)
            count += run_model(arguments, name, model, tasks, folder)
    print("all agree" if count == 0 else f"{count} differences")
    sys.exit(0 if count == 0 else 1)


if __name__ == "__main__":
    main()
