"""Runs commands in a process that lacks what Windows lacks. Used by test_windows_like.py.

    python -X warn_default_encoding windows_like.py COMMANDS_JSON

COMMANDS_JSON is a list of commands, each a list of words; `["interrupt"]` before a command sends it Ctrl-C as soon as its
first checkpoint is written. Prints the exit code of each. The process has none of the modules, functions and signals of
Unix alone, no privilege to make symbolic links, and a file system like NTFS: open and mapped files can be neither removed nor
replaced, folders cannot be opened, and files opened to read cannot be synced. To open a text file without an encoding is an
error.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sklearn.linear_model  # noqa: F401, since on Linux it needs some of what is removed below
import torch  # noqa: F401, as well

UNIX_MODULES = "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "_posixshmem"
UNIX_FUNCTIONS = (
    "fork", "forkpty", "sysconf", "sysconf_names", "getuid", "geteuid", "getgid", "getegid", "getpgid", "getpgrp", "getsid",
    "setsid", "killpg", "mkfifo", "mknod", "chown", "lchown", "fchown", "fchmod", "pread", "pwrite", "preadv",
    "fstatvfs", "uname", "nice", "getloadavg", "wait3", "wait4", "sched_getaffinity", "sched_setaffinity",
    "sched_yield", "posix_fadvise", "posix_fallocate", "fdatasync", "sync", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK",
    "O_CLOEXEC", "O_SYNC",
)  # fmt: skip
UNIX_SIGNALS = "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGQUIT", "SIGTSTP", "alarm"


class Missing:
    """Finds no module of Unix alone."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name in UNIX_MODULES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def open_files() -> set[str]:
    """Files that this process has open or mapped, without libraries."""
    found = set()
    for number in real_listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(real_readlink(f"/proc/self/fd/{number}"))
    with real_open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and "x" not in parts[1]:
                found.add(parts[5].rstrip("\n"))
    return found


def refuse_open(path: Any) -> None:
    place = os.path.realpath(os.fsdecode(path))
    used = next((file for file in open_files() if file == place or file.startswith(f"{place}/")), None)
    if used is not None:
        raise PermissionError(
            13, "The process cannot access the file because it is being used by another process", used
        )


def guarded(function: Callable[..., Any], places: int) -> Callable[..., Any]:
    """The function, refusing open files among its first arguments."""

    def call(*arguments: Any, **options: Any) -> Any:
        for path in arguments[:places]:
            if os.path.exists(path):
                refuse_open(path)
        return function(*arguments, **options)

    return call


def no_folder(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    if isinstance(path, str | bytes | os.PathLike) and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fsdecode(path))
    return real_os_open(path, flags, *arguments, **options)


def no_readers(descriptor: Any) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    flags = real_fcntl(number, F_GETFL)
    if stat.S_ISREG(os.fstat(number).st_mode) and flags & 3 == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    real_fsync(number)


def no_links(_source: Any, target: Any, *_: Any, **__: Any) -> None:
    raise OSError(1314, "A required privilege is not held by the client", os.fsdecode(target))


real_listdir, real_readlink, real_open, real_os_open, real_fsync = os.listdir, os.readlink, open, os.open, os.fsync
from fcntl import F_GETFL, fcntl as real_fcntl  # noqa: E402, I001

shutil._use_fd_functions = False  # type: ignore[attr-defined]
for name in UNIX_MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())  # type: ignore[arg-type]
for name in UNIX_FUNCTIONS:
    if hasattr(os, name):
        delattr(os, name)
for name in UNIX_SIGNALS:
    delattr(signal, name)
os.open, os.fsync, os.symlink = no_folder, no_readers, no_links  # type: ignore[assignment]
for name, places in {"remove": 1, "unlink": 1, "rmdir": 1, "rename": 2, "replace": 2}.items():
    setattr(os, name, guarded(getattr(os, name), places))
warnings.filterwarnings("error", category=EncodingWarning, module=r"unicloze(\..*)?")
multiprocessing.set_start_method("spawn", force=True)
tempfile.TemporaryFile = tempfile.NamedTemporaryFile
os.environ["PATH"] = ""  # no compiler


def interrupt() -> None:
    """Send Ctrl-C when the next checkpoint has been written."""
    from unicloze.training import process

    original = process.save_checkpoint

    def save(*arguments: Any, **options: Any) -> Path:
        place = original(*arguments, **options)
        process.save_checkpoint = original
        signal.raise_signal(signal.SIGINT)
        return place

    process.save_checkpoint = save


def main() -> None:
    from unicloze import cli

    for words in json.loads(sys.argv[1]):
        if words == ["interrupt"]:
            interrupt()
        else:
            print("exit code", cli.main(words), flush=True)


if __name__ == "__main__":
    main()
