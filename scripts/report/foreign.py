"""Losses logged by other programs: Megatron-LM's console log and TensorBoard's event files.

Event files are parsed here without the tensorboard package, which Debian 12 does not have, and which needs a web server
and protobuf. A file is a sequence of records (length, CRC of the length, payload, CRC of the payload); a payload is a
protobuf message Event, of which a loss needs five fields."""

import dataclasses
import math
import re
import struct
from pathlib import Path

from . import UserError
from .runs import RunBuilder


@dataclasses.dataclass
class Options:
    """Information that such logs do not contain; None if unknown."""

    seq_length: int | None = None  # tokens per sample
    tokens_per_step: int | None = None
    loss_tag: str | None = None  # of an event file
    valid_tag: str | None = None


# ---- Megatron-LM's console log -----------------------------------------------------------------------------

_ITERATION = re.compile(r"iteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
# At the end of training, Megatron prints the losses "on validation set" and "on test set" of one iteration.
_VALIDATION = re.compile(r"validation loss at iteration (\d+)\b(?! on test)[^|]*\|\s*lm loss value:\s*([-+.\deEnaif]+)")
_SEQ_LENGTH = re.compile(r"\bseq_length\s*\.{2,}\s*(\d+)")


def is_megatron_log(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        first = stream.readline()
        if "consumed_tokens" in first or first.count(",") > 2 and "|" not in first:
            return False
        return _ITERATION.search(first) is not None or any(_ITERATION.search(line) for line in stream)


def _fields(text):
    """{"lm loss": 4.5, ...} of "lm loss: 4.5E+00 | grad norm: 1.2 |"."""
    found = {}
    for part in text.split("|"):
        name, colon, value = part.partition(":")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            continue
    return found


def read_megatron(path, options):
    """Reads Megatron's console log. A printed loss is the mean since the previous line."""
    builder, seq_length, validations = RunBuilder(), options.seq_length, {}
    tokens_at = {}
    with open(path, encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith("\n"):
                break  # the incomplete last line of a running run
            if seq_length is None and (found := _SEQ_LENGTH.search(line)):
                seq_length = int(found[1])
            if found := _VALIDATION.search(line):
                validations[int(found[1])] = float(found[2])
            if not (found := _ITERATION.search(line)):
                continue
            step, values = int(found[1]), _fields(found[2])
            tokens_at[step] = _megatron_tokens(path, number, step, values, seq_length, options)
            builder.add(
                tokens_at[step],
                step=step,
                loss=values.get("lm loss", math.nan),
                grad_norm=values.get("grad norm"),
                step_ms=values.get("elapsed time per iteration (ms)"),
            )
    tokens_of = _between(tokens_at)
    for step, loss in validations.items():
        builder.add(tokens_of(step), step=step, valid_loss=loss)
    return builder.build(path, note="Megatron's console log: a loss is the mean since the previous line")


def _between(tokens_at):
    """A function from step to tokens that continues {step: tokens}: linear from 0 tokens at step 0 to the first record
    and between records, and at the last rate after them."""
    import numpy as np

    steps = sorted({0, *tokens_at})
    values = [tokens_at.get(step, 0.0) for step in steps]
    rate = (values[-1] - values[-2]) / (steps[-1] - steps[-2]) if len(steps) > 1 else 0.0
    return lambda step: float(np.interp(step, steps, values)) + max(0, step - steps[-1]) * rate


def _megatron_tokens(path, number, step, values, seq_length, options):
    if options.tokens_per_step:
        return step * options.tokens_per_step
    if seq_length is None:
        raise UserError(f"{path}: line {number}: the log has no sequence length; set --seq-length TOKENS")
    if "consumed samples" in values:
        return values["consumed samples"] * seq_length
    if "global batch size" in values:
        return step * values["global batch size"] * seq_length
    raise UserError(f"{path}: line {number}: has no consumed samples; set --tokens-per-step TOKENS")


# ---- TensorBoard's event files -----------------------------------------------------------------------------

LOSS_TAGS = ("train/loss", "lm loss", "train/lm_loss", "reduced_train_loss", "train_loss", "loss")
VALID_TAGS = ("valid/loss", "eval/loss", "lm loss validation", "val_loss", "validation/loss", "valid_loss")
GRAD_TAGS = ("train/grad_norm", "grad-norm", "grad_norm")
TOKEN_TAGS = ("train/consumed_tokens", "consumed_tokens", "train/tokens")


def _plain(tag):
    """A tag in lower case with blanks, since writers replace blanks in tags differently."""
    return tag.lower().replace("_", " ").replace("-", " ")


def _first_tag(scalars, names):
    """The tag of `scalars` that comes first in `names`, or None."""
    plain = {_plain(tag): tag for tag in scalars}
    return next((plain[_plain(name)] for name in names if _plain(name) in plain), None)


def read_events(path, options):
    files = sorted(path.glob("*tfevents*")) if path.is_dir() else [path]
    scalars = {}  # tag -> {step: (value, wall time)}
    for file in files:  # in the order of their time stamps: later files of a resumed run replace earlier values
        for tag, step, value, wall_time in scalar_events(file):
            if tag is START:  # like TensorBoard: a resumed run replaces all it had logged from this step on
                scalars = {tag: {s: of for s, of in values.items() if s < step} for tag, values in scalars.items()}
            else:
                scalars.setdefault(tag, {})[step] = (value, wall_time)
    scalars = {tag: values for tag, values in scalars.items() if values}
    tag = options.loss_tag or _first_tag(scalars, LOSS_TAGS)
    if tag is None or tag not in scalars:
        raise UserError(f"{path}: no loss among its tags ({', '.join(sorted(scalars)) or 'none'}); set --loss-tag TAG")
    tokens_of = _event_tokens(path, scalars, tag, options)
    if options.valid_tag and options.valid_tag not in scalars:
        raise UserError(f"--valid-tag: {path} has no {options.valid_tag}; its tags are {', '.join(sorted(scalars))}")
    valid = scalars.get(options.valid_tag or _first_tag(scalars, VALID_TAGS), {})
    grad = scalars.get(_first_tag(scalars, GRAD_TAGS), {})
    builder, before = RunBuilder(), None
    for step, (value, wall_time) in sorted(scalars[tag].items()):
        milliseconds = None
        if before and wall_time > before[1] and step > before[0]:
            milliseconds = 1e3 * (wall_time - before[1]) / (step - before[0])
        before = (step, wall_time)
        grad_norm = grad[step][0] if step in grad else None
        builder.add(tokens_of(step), step=step, loss=value, grad_norm=grad_norm, step_ms=milliseconds)
    for step, (value, _) in valid.items():
        builder.add(tokens_of(step), step=step, valid_loss=value)
    return builder.build(
        path, note=f"TensorBoard's {tag}; time is wall clock between records, including validation and saves"
    )


def _event_tokens(path, scalars, tag, options):
    """A function from step to consumed tokens."""
    tokens_tag = _first_tag(scalars, TOKEN_TAGS)
    if options.tokens_per_step:
        return lambda step: step * options.tokens_per_step
    if tokens_tag:
        return _between({step: value for step, (value, _) in scalars[tokens_tag].items()})
    # Megatron logs every loss a second time by consumed samples, in the same order.
    samples = sorted(scalars.get(_first_tag(scalars, [f"{tag} vs samples"]), {}))
    if options.seq_length and len(samples) == len(scalars[tag]):
        by_step = dict(zip(sorted(scalars[tag]), samples))
        per_step = samples[-1] / max(by_step)
        return lambda step: by_step.get(step, step * per_step) * options.seq_length
    raise UserError(f"{path}: has no number of tokens per step; set --tokens-per-step TOKENS")


START = object()  # the tag of a start of a run


def scalar_events(file):
    """(tag, step, value, wall time) of every scalar of an event file, and (START, first step, None, wall time) of every
    start."""
    for payload in _records(Path(file)):
        wall_time, step, summaries, log = 0.0, 0, [], b""
        for field, value in _message(payload):
            if field == 1:  # double wall_time
                wall_time = struct.unpack("<d", value)[0]
            elif field == 2:  # int64 step
                step = value
            elif field == 5:  # Summary summary
                summaries.append(value)
            elif field == 7:  # SessionLog session_log
                log = value
        if (1, 1) in _message(log):  # SessionStatus status: START
            yield START, step, None, wall_time
        for summary in summaries:
            for field, item in _message(summary):
                if field == 1 and (scalar := _scalar(item)):  # repeated Value value
                    yield scalar[0], step, scalar[1], wall_time


def _scalar(item):
    """(tag, value) of a Summary.Value, or None if it is not a scalar."""
    tag, value = "", None
    for field, content in _message(item):
        if field == 1:  # string tag
            tag = content.decode("utf-8", "replace")
        elif field == 2:  # float simple_value
            value = struct.unpack("<f", content)[0]
        elif field == 8:  # TensorProto tensor, as TensorFlow 2 and JAX write scalars
            value = _tensor_scalar(content)
    return None if value is None else (tag, value)


def _tensor_scalar(content):
    dtype, raw, single = 0, b"", None
    for field, value in _message(content):
        if field == 1:  # DataType dtype
            dtype = value
        elif field == 4:  # bytes tensor_content
            raw = value
        elif field == 5:  # repeated float float_val, packed or not
            single = struct.unpack("<f", value)[0] if len(value) == 4 else None
        elif field == 6:  # repeated double double_val
            single = struct.unpack("<d", value)[0] if len(value) == 8 else None
    layout = {1: "<f", 2: "<d"}.get(dtype)  # DT_FLOAT, DT_DOUBLE
    if single is None and layout and len(raw) == struct.calcsize(layout):
        single = struct.unpack(layout, raw)[0]
    return single


def _records(file):
    data = file.read_bytes()
    at = 0
    while at + 12 <= len(data):
        (length, check) = struct.unpack_from("<QI", data, at)
        if check != _masked_crc32c(data[at : at + 8]):
            raise UserError(
                f"{file}: byte {at} is not a record of an event file; the file is damaged or has another format"
            )
        if at + 12 + length + 4 > len(data):
            return  # still being written
        yield data[at + 12 : at + 12 + length]
        at += 12 + length + 4


def _masked_crc32c(data):
    """The checksum of TFRecord: CRC-32C (Castagnoli), rotated and offset."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _message(data):
    """(field, value) of a protobuf message: an integer, or the bytes of a number or a nested message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                size, at = _varint(data, at)
            if size is None or at + size > len(data):
                raise UserError("an event file contains a damaged record; write it again")
            value, at = data[at : at + size], at + size
        yield field, value


def _varint(data, at):
    value = shift = 0
    while True:
        if at >= len(data):
            raise UserError("an event file contains a damaged record; write it again")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
