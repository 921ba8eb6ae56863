#!/usr/bin/env python3
"""Shows runs in a browser, next to each other, during or after training.

    scripts/dashboard.py runs/bf16 runs/fp8
    scripts/dashboard.py runs/experiments/gpt2_124m        # all runs below a folder, including later ones

Then open http://127.0.0.1:8420/. The page shows losses, gradient norms, learning rates, speed and FP8 statistics by step,
tokens or time, the state of the runs, differences of their configs, and samples. It loads nothing from other servers and
needs only Python 3.9. From another machine: ssh -L 8420:localhost:8420 HOST. See docs/how-to/monitor.md.
"""

import argparse
import sys
import threading
from pathlib import Path

from monitor import UserError
from monitor.board import Board
from monitor.server import Server
from script_files import run
from terminal_text import guard_output


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="dashboard.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run folders, or folders that contain runs")
    add("--port", type=int, default=8420, help="port (default %(default)s; 0: any free port)")
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s: this machine only)")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        raise UserError(f"--port: {options.port} must be from 0 to 65535")
    for run in options.runs:
        if not Path(run).is_dir():
            raise UserError(f"{run}: no such folder; give a run folder (logging.directory), or a folder that contains runs")
    return options


def serve(options):
    board = Board(options.runs)
    try:
        server = Server((options.host, options.port), board)
    except OSError as error:
        raise UserError(f"--host {options.host} --port {options.port}: {error.strerror}; try --port 0") from None
    host, port = server.server_address[:2]
    count = f"{len(board.runs)} run{'s' * (len(board.runs) != 1)}" if board.runs else "no run yet"
    print(f"{count}; open http://{host}:{port}/ (Ctrl-C stops the server)", flush=True)
    if host not in ("127.0.0.1", "::1"):
        print("warning: everyone who can reach this address can read the runs' metrics, configs and samples", flush=True)
    threading.Thread(target=board.keep_up, daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        board.stop()
        server.server_close()
    return 0


def main(arguments=None):
    try:
        return serve(parse_arguments(arguments))
    except UserError as error:
        print(f"dashboard.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    guard_output()
    run(main)
