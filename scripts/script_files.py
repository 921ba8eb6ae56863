"""Files of the scripts: an output gets its name when it is complete; a file's error is one line with exit code 2."""

import contextlib
import gzip
import lzma
import os
import secrets
import sys
import zlib
from pathlib import Path

try:
    from compression import zstd  # Python 3.14
except ImportError:
    zstd = None

READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # of a missing, unreadable, damaged or truncated file
if zstd:
    READ_ERRORS += (zstd.ZstdError,)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
COMPRESSED = (".gz", ".xz", ".zst")  # suffixes of files that open_input() decompresses


def open_input(path):
    """The bytes of a file, decompressed if its name ends with .gz, .xz or .zst; "-" is standard input."""
    if str(path) == "-":
        if sys.__stdin__ is None:
            raise OSError("standard input is closed")
        return sys.stdin.buffer
    suffix = Path(path).suffix
    if suffix == ".zst":
        if not zstd:
            raise OSError("Python before 3.14 cannot read zstd; decompress the file with zstd -d")
        return zstd.open(path, "rb")
    return {".gz": gzip.open, ".xz": lzma.open}.get(suffix, open)(path, "rb")


def without_compression(path):
    """The path without the suffix of a compressed file."""
    return Path(path).with_suffix("") if Path(path).suffix in COMPRESSED else Path(path)


@contextlib.contextmanager
def complete_file(path, mode="w", newline=None):
    """Opens PATH.RANDOM.tmp, which replaces `path` at the end of the block, unless an exception ends the block.
    PATH.tmp may be another output, or a file of the user."""
    options = {"mode": mode, "encoding": None if "b" in mode else "utf-8", "newline": newline}
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not target.is_file():  # such as /dev/null, or a folder, which is an error
        with open(target, **options) as file:
            yield file
        return
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(part, **{**options, "mode": mode.replace("w", "x")}) as file:
            yield file
        part.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            error.filename = str(path)
        raise


def refuse_input(option, path, inputs):
    """Refuses an output, named by `option`, that is one of the input files."""
    if os.path.exists(path) and any(os.path.exists(file) and os.path.samefile(file, path) for file in inputs):
        fail(f"{option}: {path} is an input, which it would replace; write another file")


@contextlib.contextmanager
def complete_lines(path, inputs):
    """complete_file() for JSON lines; standard output without `path`. The reader of a pipe cannot see that the script has
    failed and would take the lines so far for the whole: then the last line says so, and te-data stops
    (is_script_failure() in src/text/readers/text_format.h)."""
    if path and without_compression(path) != Path(path):
        fail(f"--out: {path}: is written without compression; end its name with .jsonl")
    if path:
        refuse_input("--out", path, inputs)
        with complete_file(path) as file:
            yield file
        return
    if sys.__stdout__ is None:
        fail("standard output is closed; write a file with --out")
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            print(f"incomplete: {script_name()} has failed", flush=True)
        raise


def write_text(path, text):
    with complete_file(path) as file:
        file.write(text)


def save_figure(figure, path, **options):
    """figure.savefig(); the name selects the format. ValueError for an unknown one."""
    with complete_file(path, "wb") as file:
        figure.savefig(file, format=Path(path).suffix[1:] or None, **options)


def script_name():
    return Path(sys.argv[0]).name


def fail(message):
    print(f"{script_name()}: error: {message}", file=sys.stderr)
    sys.exit(2)


def reason(error):
    """The message of an error as one line, without the file's name."""
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


def open_streams():
    """Opens /dev/null for each standard stream that the caller has closed (>&-), which Python sets to None. Without it
    writing fails, errors are printed on standard output, and the next file gets the descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def run(main, *user_errors):
    """Runs a script's main() and exits with its result. user_errors: its exceptions for the user's mistakes."""
    open_streams()
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, and reports errors of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        status = 1
    except (*READ_ERRORS, *user_errors) as error:
        name = getattr(error, "filename", None)
        fail(reason(error) if name is None else f"{name}: {reason(error)}")
    except KeyboardInterrupt:
        print(f"{script_name()}: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
