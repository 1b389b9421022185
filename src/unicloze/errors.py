"""Errors a user can fix, reported as one sentence instead of a traceback."""


class UniclozeError(Exception):
    """An error the user can fix. Its message says what is wrong, where, and how to fix it.

    The command line prints only the message and exits with `exit_code`; `--debug` adds the traceback.
    """

    exit_code = 1


class UsageError(UniclozeError):
    """The command, a recipe or a setting is invalid; nothing was started."""

    exit_code = 2
