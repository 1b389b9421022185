"""A process that does runs of a comparison that another process started.

    python -m unicloze.verbs.compare_helper    reads the arguments of `compare` from stdin

It shows its progress on stderr. When its stdin ends, it saves its run and exits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings

from unicloze import plugins
from unicloze.errors import UniclozeError
from unicloze.verbs.comparing import compare


def main() -> int:
    """Work on the comparison, and return the exit code."""
    sent = json.loads(sys.stdin.readline())

    def listen() -> None:
        sys.stdin.read()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # nobody reads it any more
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    warnings.simplefilter("ignore")  # the first process prints the same
    for plugin in sent["plugins"]:
        plugins.register(plugin)
    try:
        compare(**sent["arguments"])
    except UniclozeError as error:
        print(error, file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
