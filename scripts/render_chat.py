#!/usr/bin/env python3
"""Renders conversations with a model's own chat template (Jinja), for te-data instruct --rendered.

    scripts/render_chat.py --tokenizer Qwen3-8B chats.jsonl |
        te-data instruct --rendered --input - --tokenizer Qwen3-8B --output data/chats

The script selects the same template as transformers: chat_template.jinja, or chat_template in tokenizer_config.json, in the
folder of the tokenizer. Each line of the output is one conversation, split into segments that are either in the loss or not.
The joined segments equal the result of apply_chat_template(messages, tools=tools, tokenize=False). The loss covers, for each
assistant message:

  - the text between {% generation %} and {% endgeneration %} if the template has these tags;
  - otherwise the text after the prompt that apply_chat_template(messages before it, add_generation_prompt=True) returns, up to
    the end of the message and the special token after it. The conversation must begin with that prompt. Templates that render
    earlier messages differently once more turns follow (Qwen3 drops their reasoning, Mistral moves the system message) can fail
    this for conversations of several turns; --split-turns writes one conversation per turn, as the model will see it.

Messages with "weight": 0 are not in the loss. Text parts of content are joined. Tools, tool calls and reasoning_content are
passed to templates that use them. As with te-data instruct --template, a conversation ends before its first empty response,
and one without a response is skipped. A conversation that cannot be rendered is an error with file and line. Needs jinja2.
"""

import argparse
import datetime
import json
import re
import sys
from pathlib import Path

from chat_folder import find_template, special_tokens
from script_files import (
    BYTE_ORDER_MARK,
    READ_ERRORS,
    complete_lines,
    fail,
    open_input,
    reason,
    run,
    without_compression,
)

try:
    import jinja2
    import jinja2.ext
    import jinja2.meta
    import jinja2.sandbox
    from jinja2 import nodes
except ImportError as missing:
    print(f"render_chat.py: error: {missing}; apt install python3-jinja2, or pip install jinja2", file=sys.stderr)
    sys.exit(77)

BEGIN, END = "\0{", "\0}"  # marks of {% generation %}; messages must not contain a NUL
STAND_IN = "\0message\0"  # replaces a message to find where it ends
LEARNED_FIELDS = {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}
MESSAGE_FIELDS = {"role", "content", "weight", "from", "value"}


class Refused(Exception):
    """A conversation that cannot be rendered."""


class GenerationTag(jinja2.ext.Extension):
    """Puts the text between {% generation %} and {% endgeneration %} between BEGIN and END."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return BEGIN + caller() + END


def defined_if(test, value):
    """The variables that are defined if the expression `test` is `value` (true or false)."""
    if isinstance(test, nodes.Not):
        return defined_if(test.node, not value)
    if isinstance(test, (nodes.And, nodes.Or)):
        left, right = defined_if(test.left, value), defined_if(test.right, value)
        return left | right if isinstance(test, nodes.And) == value else left & right
    if isinstance(test, nodes.Test) and test.name in ("defined", "undefined"):
        test, value = test.node, (test.name == "defined") == value
    return {test.name} if isinstance(test, nodes.Name) and value else set()


def unguarded(node, names, tested=False):
    """The undefined variables of `names` that `node` uses other than in tests. tested: `node` itself is only tested."""
    if isinstance(node, nodes.Name):
        return set() if tested else {node.name} & names
    if isinstance(node, (nodes.And, nodes.Or)):
        right = names - defined_if(node.left, isinstance(node, nodes.And))
        return unguarded(node.left, names, True) | unguarded(node.right, right, tested)
    if isinstance(node, (nodes.If, nodes.CondExpr)):
        statement = isinstance(node, nodes.If)
        used, left = set(), names
        for case in [node, *node.elif_] if statement else [node]:
            used |= unguarded(case.test, left, True)
            for part in case.body if statement else [case.expr1]:
                used |= unguarded(part, left - defined_if(case.test, True), tested)
            left = left - defined_if(case.test, False)
        other = node.else_ if statement else [node.expr2]
        return used.union(*(unguarded(part, left, tested) for part in other if part))
    default = node.node if isinstance(node, nodes.Filter) and node.name in ("default", "d") else None
    tests = isinstance(node, (nodes.Not, nodes.Test, nodes.Compare, nodes.Operand))
    return set().union(*(unguarded(n, names, tests or n is default) for n in node.iter_child_nodes()))


class Template:
    """A chat template, rendered as transformers renders it."""

    def __init__(self, text, tokens, date):
        self.text, self.tokens = text, tokens
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
            value, ensure_ascii=ensure_ascii, **options
        )
        environment.globals["raise_exception"] = self.refuse
        environment.globals["strftime_now"] = date.strftime
        self.template = environment.from_string(text)
        self.tree = environment.parse(text)
        self.marks = re.search(r"{%[-+]?\s*generation\s*[-+]?%}", text) is not None

    @staticmethod
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def require_tokens(self, variables, folder):
        """Rejects a template that uses a token without a value, such as eos_token: Jinja would render it as nothing."""
        names = {name for name in jinja2.meta.find_undeclared_variables(self.tree) if name.endswith("_token")}
        stored = {name.name for name in self.tree.find_all(nodes.Name) if name.ctx != "load"}
        missing = unguarded(self.tree, names - stored - self.tokens.keys() - variables.keys())
        if missing:
            raise Refused(
                f"it uses {min(missing)}, which {folder / 'tokenizer_config.json'} does not define; "
                f"add it there, or render it as nothing with --set {min(missing)}="
            )

    def knows(self, field):
        return field in self.text

    def render(self, messages, variables, prompt=False, marked=False):
        try:
            text = self.template.render(
                {"tools": None, "documents": None, **self.tokens, **variables},
                messages=messages,
                add_generation_prompt=prompt,
            )
        except (jinja2.exceptions.TemplateError, TypeError, ValueError, AttributeError) as error:
            raise Refused(f"the chat template: {error}") from error
        return text if marked else text.replace(BEGIN, "").replace(END, "")


class Renderer:
    """Converts conversations to segments."""

    def __init__(self, template, specials, arguments):
        self.template, self.specials, self.arguments = template, specials, arguments
        self.ignored = set()
        self.cut = self.without_response = 0

    # --- input -------------------------------------------------------------------------------------------------------

    def text_of(self, content, place):
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise Refused(f"{place} has content of type {type(content).__name__}; it must be a string or a list of parts")
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise Refused(f"{place} has a part of type `{kind}`; te-train trains on text only")
        return "".join(part["text"] for part in content)

    def message_of(self, item, place):
        """The message as it is passed to the template, and whether it is in the loss."""
        if not isinstance(item, dict):
            raise Refused(f"{place} is not an object")
        role = item.get("role", item.get("from"))
        role = {"human": "user", "gpt": "assistant"}.get(role, role)
        if not isinstance(role, str):
            raise Refused(f"{place} has no role")
        weight = item.get("weight")
        if weight not in (None, 0, 1):
            raise Refused(f"{place} has weight {weight}; it must be 0 or 1")
        content = self.text_of(item.get("content", item.get("value")), place)
        if content is None and not item.get("tool_calls"):
            raise Refused(f"{place} has no content")
        message = {"role": role, "content": content}
        for field, value in item.items():
            if field in MESSAGE_FIELDS or value in (None, "", [], {}):
                continue
            if self.template.knows(field):
                message[field] = self.calls_of(value, place) if field == "tool_calls" else value
            elif field in LEARNED_FIELDS:
                raise Refused(f"{place} has {field}, which the chat template does not use")
            else:
                self.ignored.add(f"{self.arguments.messages_field}[].{field}")
        return message, role == "assistant" and weight != 0

    @staticmethod
    def calls_of(calls, place):
        """Tool calls with their arguments as objects: OpenAI's files have strings, which templates would quote again."""
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise Refused(f"{place} has tool_calls that are not a list of objects")
        calls = json.loads(json.dumps(calls))
        for call in calls:
            function = call.get("function", call)
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                try:
                    function["arguments"] = json.loads(function["arguments"] or "{}")
                except json.JSONDecodeError as error:
                    raise Refused(f"{place} has a tool call whose arguments are not valid JSON") from error
        return calls

    def check_text(self, value):
        """Rejects text that contains a special token, or a NUL, which the marks use."""
        if isinstance(value, dict):
            value = [part for item in value.items() for part in item]
        if isinstance(value, (list, tuple)):
            for item in value:
                self.check_text(item)
        if not isinstance(value, str):
            return
        if "\0" in value:
            raise Refused("a text contains a NUL character")
        found = next((token for token in self.specials if token in value), None)
        if found and not self.arguments.match_special_tokens:
            raise Refused(f"a text contains `{found}`, which would become that token; see --match-special-tokens")

    def variables_of(self, record):
        """The variables that are passed to the template in addition to the messages."""
        field = self.arguments.messages_field
        variables = dict(self.arguments.variables)
        for name, value in record.items():
            if name == field or value in (None, "", [], {}):
                continue
            if name in ("tools", "documents"):
                if not self.template.knows(name):
                    raise Refused(f"the record has {name}, which the chat template does not use")
                variables[name] = value
            elif name == "chat_template_kwargs" and isinstance(value, dict):
                variables.update(value)
            else:
                self.ignored.add(name)
        return variables

    # --- text in the loss --------------------------------------------------------------------------------------------

    def marked_spans(self, messages, variables):
        """[begin, end) of the text between {% generation %} tags."""
        marked = self.template.render(messages, variables, marked=True)
        spans, text = [], ""
        for index, part in enumerate(marked.replace(END, BEGIN).split(BEGIN)):  # every second one is between marks
            if index % 2 == 1:
                spans.append((len(text), len(text) + len(part)))
            text += part
        return text, spans

    def ends_after(self, tail):
        """The number of characters of `tail` that belong to the message before it: white space and one special token, or 0."""
        stripped = tail.lstrip()
        token = max((token for token in self.specials if stripped.startswith(token)), key=len, default=None)
        return len(tail) - len(stripped) + len(token) if token else 0

    def span_of(self, messages, index, text, variables):
        """[begin, end) of one assistant message."""
        prompt = self.template.render(messages[:index], variables, prompt=True)
        if not text.startswith(prompt):
            raise Refused(
                f"message {index}: the conversation does not begin with the prompt for this message, because the template "
                "renders earlier messages differently once more turns follow; use --split-turns"
            )
        stand_in = [*messages[:index], {"role": "assistant", "content": STAND_IN}, *messages[index + 1 :]]
        _, found, tail = self.template.render(stand_in, variables).rpartition(STAND_IN)
        if not found or not text.endswith(tail) or len(text) - len(tail) < len(prompt):
            raise Refused(f"message {index}: its end cannot be found in the rendered text")
        end = len(text) - len(tail)
        return len(prompt), end + self.ends_after(tail)

    def segments(self, messages, learned, variables):
        if self.template.marks:
            text, spans = self.marked_spans(messages, variables)
            if len(spans) != len(learned):
                raise Refused(f"there are {len(learned)} assistant messages, but {len(spans)} {{% generation %}} blocks")
            spans = [span for span, (_, counts) in zip(spans, learned) if counts]
        else:
            text = self.template.render(messages, variables)
            spans = [self.span_of(messages, index, text, variables) for index, counts in learned if counts]
        parts, at = [], 0
        for begin, end in spans:
            if begin < at:
                raise Refused("two assistant messages overlap in the rendered text")
            parts += [(text[at:begin], 0), (text[begin:end], 1)]
            at = end
        parts.append((text[at:], 0))
        return {"segments": [{"text": part, "loss": loss} for part, loss in parts if part]}

    @staticmethod
    def until_empty_response(messages):
        """(number of messages before the first empty response and its prompt, whether there is an empty response)"""
        end = 0
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                if not (message["content"] or "").strip() and not LEARNED_FIELDS & message.keys():
                    return end, True
                end = index + 1
        return len(messages), False

    def conversations(self, record):
        """The conversations of a record: one, or one per turn with --split-turns."""
        if not isinstance(record, dict):
            raise Refused("the record is not an object")
        items = record.get(self.arguments.messages_field)
        if not isinstance(items, list):
            raise Refused(f"the record has no list of messages in `{self.arguments.messages_field}`; see --messages-field")
        messages = [self.message_of(item, f"message {index}") for index, item in enumerate(items)]
        learned = [(index, counts) for index, (m, counts) in enumerate(messages) if m["role"] == "assistant"]
        messages = [message for message, _ in messages]
        variables = self.variables_of(record)
        self.check_text([messages, variables.get("tools"), variables.get("documents")])
        end, cut = self.until_empty_response(messages)
        messages, learned = messages[:end], [(index, counts) for index, counts in learned if index < end]
        if not any(counts for _, counts in learned):
            self.without_response += 1
            return []
        made = []
        if not self.arguments.split_turns:
            made.append(self.segments(messages, learned, variables))
        else:
            for index, counts in learned:
                if counts:
                    before = [(other, False) for other, _ in learned if other < index]
                    made.append(self.segments(messages[: index + 1], [*before, (index, True)], variables))
        self.cut += cut
        return made


# --- files -----------------------------------------------------------------------------------------------------------


def records(path):
    """(place, JSON text as bytes) of every object of a file: JSON lines, or a list (.json)."""
    try:
        with open_input(path) as file:
            if without_compression(path).suffix == ".json":
                objects = json.loads(file.read().decode("utf-8-sig"))
                if not isinstance(objects, list):
                    fail(f"{path}: is not a list of objects; name a file of JSON lines .jsonl")
                for index, item in enumerate(objects):
                    yield f"{path}: object {index}", json.dumps(item).encode()
                return
            for number, line in enumerate(file, 1):
                line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if line.strip():
                    yield f"{path}:{number}", line
    except (*READ_ERRORS, ValueError, RecursionError) as error:
        fail(f"{path}: {reason(error)}")


def variable(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s [options] FILE..."
    )
    parser.add_argument(
        "inputs", nargs="+", metavar="FILE",
        help="JSON lines, or a list (.json); also .gz, .xz and (from Python 3.14) .zst; - reads standard input",
    )
    parser.add_argument("--tokenizer", required=True, type=Path, help="folder of the model's tokenizer, or a file in it")
    parser.add_argument("--template", type=Path, help="Jinja file to use instead of the template of the tokenizer")
    parser.add_argument("--template-name", help="name of the template if the tokenizer has several, for example tool_use")
    parser.add_argument("--set", dest="variables", type=variable, action="append", default=[], metavar="NAME=VALUE",
                        help="sets a variable of the template, for example enable_thinking=false")
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=None,
                        help="date for templates that use one (YYYY-MM-DD; default: today)")
    parser.add_argument("--messages-field", default="messages", help="field with the list of messages (default: %(default)s)")
    parser.add_argument("--split-turns", action="store_true",
                        help="write one conversation per assistant message, with only that message in the loss")
    parser.add_argument("--match-special-tokens", action="store_true",
                        help="accept special tokens written out in messages, which then become those tokens; an error otherwise")
    parser.add_argument("--skip-bad-lines", action="store_true", help="skip and count lines that cannot be rendered")
    parser.add_argument("--out", type=Path, help="output file (default: standard output)")
    return parser.parse_args()


def lines_of(renderer, text):
    """The output for an object: JSON lines. text: bytes."""
    try:
        made = renderer.conversations(json.loads(text.decode()))
        lines = "".join(json.dumps(conversation, ensure_ascii=False) + "\n" for conversation in made)
        lines.encode()
        return len(made), lines
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise Refused(f"a text contains \\u{ord(half):04x}, half of a surrogate pair, which UTF-8 cannot represent") from error


def render_all(renderer, arguments, out):
    """Writes the conversations of all files; returns their number and the number of bad lines."""
    written = bad = 0
    for path in arguments.inputs:
        for place, text in records(path):
            try:
                count, lines = lines_of(renderer, text)
                out.write(lines)
                written += count
            except (Refused, ValueError, RecursionError) as error:
                message = f"{place}: {error}"
                if not arguments.skip_bad_lines:
                    fail(message + "; correct the line or use --skip-bad-lines")
                bad += 1
                if bad <= 5:
                    print(f"render_chat.py: skipped: {message}", file=sys.stderr)
    return written, bad


def main():
    arguments = parse_arguments()
    folder = arguments.tokenizer if arguments.tokenizer.is_dir() else arguments.tokenizer.parent
    try:
        text = (arguments.template.read_text(encoding="utf-8") if arguments.template
                else find_template(folder, arguments.template_name))
        tokens, specials = special_tokens(folder)
        now = datetime.datetime.now()
        if arguments.date:
            now = datetime.datetime.combine(arguments.date, datetime.time())
        renderer = Renderer(Template(text, tokens, now), specials, arguments)
        renderer.template.require_tokens(dict(arguments.variables), folder)
    except (OSError, ValueError, jinja2.exceptions.TemplateError, Refused) as error:
        fail(f"{arguments.template or folder}: the chat template: {error}")
    with complete_lines(arguments.out, arguments.inputs) as out:
        written, bad = render_all(renderer, arguments, out)
    notes = [f"{written} conversations"]
    if renderer.without_response:
        notes.append(f"{renderer.without_response} objects without a response skipped")
    if renderer.cut:
        notes.append(f"{renderer.cut} conversations cut at an empty response")
    if bad:
        notes.append(f"{bad} bad lines skipped")
    if renderer.ignored:
        notes.append("ignored fields: " + ", ".join(sorted(renderer.ignored)))
    if "strftime_now" in text and not arguments.date:
        notes.append(f"the template writes today's date, {now:%Y-%m-%d} (change it with --date)")
    print("render_chat.py: " + "; ".join(notes), file=sys.stderr)


if __name__ == "__main__":
    run(main)
