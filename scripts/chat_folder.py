"""The chat template and the special tokens in the folder of a model's tokenizer, as transformers finds them."""

import functools
import json

from script_files import fail

# Default tokens of tokenizer classes, and the classes for models whose tokenizer_config.json names no class. The tables
# are the ones of src/text/tokenizers/tokenizer_settings.cpp.
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
CLASS_TOKENS = {
    **dict.fromkeys(["GPT2Tokenizer", "GPTNeoXTokenizer"], (*["<|endoftext|>"] * 3, "")),
    "Qwen2Tokenizer": ("", *["<|endoftext|>"] * 3),
    **dict.fromkeys(["LlamaTokenizer", "CodeLlamaTokenizer"], ("<s>", "</s>", "<unk>", "")),
    "GemmaTokenizer": ("<bos>", "<eos>", "<unk>", "<pad>"),
}
CLASS_OF_MODEL = {
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    **dict.fromkeys(["llama", "mistral", "mixtral", "phi3"], "LlamaTokenizer"),
    **dict.fromkeys(["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"], "Qwen2Tokenizer"),
    **dict.fromkeys(["gemma", "gemma2", "gemma3_text"], "GemmaTokenizer"),
}


def read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    return value if isinstance(value, dict) else fail(f"{path}: is not a JSON object; download it again")


def reads_tokenizer(function):
    """For a function of a folder: a missing value or another type in its files is an error of one line."""

    @functools.wraps(function)
    def call(folder, *arguments, **options):
        try:
            return function(folder, *arguments, **options)
        except (AttributeError, KeyError, TypeError) as error:
            found = f"{type(error).__name__}: {error}"
            fail(f"{folder}: the tokenizer's files are not as transformers writes them ({found}); download them again")

    return call


@reads_tokenizer
def find_template(folder, name, required=True):
    """The text of the template that transformers selects. name: one of several templates, or None.

    With required=False, None if the folder has no such template.
    """
    for path in [folder / f"additional_chat_templates/{name}.jinja"] if name else [folder / "chat_template.jinja"]:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    for path in (folder / "chat_template.json", folder / "tokenizer_config.json"):
        found = read_json(path).get("chat_template") if path.is_file() else None
        if isinstance(found, list):
            found = {item["name"]: item["template"] for item in found}
        if isinstance(found, dict):
            if (name or "default") not in found and not required:
                continue
            if (name or "default") not in found:
                fail(f"{path}: contains the chat templates {', '.join(found)}; choose one with --template-name")
            found = found[name or "default"]
        elif name:
            continue
        if found:
            return found if isinstance(found, str) else fail(f"{path}: chat_template is not a text; download it again")
    if not required:
        return None
    fail(f"{folder}: has no chat template{' ' + name if name else ''}; pass one with --template FILE")


@reads_tokenizer
def special_tokens(folder):
    """Named tokens for the template (bos_token, ...), and the texts of all special tokens, longest first."""

    def read(name):
        return read_json(folder / name) if (folder / name).is_file() else {}

    def content(token):
        return token.get("content") if isinstance(token, dict) else token

    config = read("tokenizer_config.json")
    kind = config.get("tokenizer_class") or CLASS_OF_MODEL.get(read("config.json").get("model_type"), "")
    tokens = dict(zip(NAMES, CLASS_TOKENS.get(kind.removesuffix("Fast"), ())))
    specials, table = set(), config.get("added_tokens_decoder")
    # As in transformers, the older file is not read if there is a table; otherwise it takes precedence.
    for source in [config] if table is not None else [config, read("special_tokens_map.json")]:
        tokens.update({name: content(value) for name, value in source.items() if name.endswith("_token")})
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = source.get(key) or []
            if isinstance(more, dict):
                tokens.update({name: content(value) for name, value in more.items()})
            else:
                specials.update(map(content, more))
    tokens = {name: value for name, value in tokens.items() if value and isinstance(value, str)}
    added = [*(table or {}).values(), *read("tokenizer.json").get("added_tokens", [])]
    specials.update(token["content"] for token in added if token.get("special"))
    return tokens, sorted((specials | set(tokens.values())) - {"", None}, key=len, reverse=True)
