"""The one exception users are meant to meet: a sentence, not a traceback."""


class UniclozeError(Exception):
    """Something the user can mend. Its message says what is wrong, where, and the cure.

    The command line prints the message alone and exits with `exit_code`; `--debug` adds the traceback.
    """

    exit_code = 1


class UsageError(UniclozeError):
    """The command, a recipe or a setting is wrong: nothing was started."""

    exit_code = 2


class FailedElsewhere(UniclozeError):
    """Another process of the run has failed and says why; the first process repeats it."""
