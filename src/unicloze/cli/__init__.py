"""Command line: parses the arguments of `unicloze.verbs`, prints results, and reports errors in one sentence.

The parsers here do not know recipe settings: whatever a verb's parser leaves over is a dotted setting and is parsed by
`unicloze.recipes`. Showing help imports nothing heavy.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from unicloze import cores, terminal, verbs
from unicloze.cli.parser import Parser, Verb, add_common_options, add_options, call_arguments, instead_of, parser_of
from unicloze.errors import UsageError, did_you_mean
from unicloze.files import RECIPE
from unicloze.verbs.options import Option
from unicloze.verbs.tasks import WHOLE_GLUE
from unicloze.version import __version__


def completion(shell: Annotated[Literal["bash", "zsh"], Option("SHELL", word=True)]) -> str:
    """Print a script that completes verbs, options, settings and recipes in a shell.

    Args:
        shell: The shell: `bash` or `zsh`.

    Examples:
        unicloze completion bash
        unicloze completion zsh
    """
    import shtab

    script: str = shtab.complete(parser_of(VERBS), shell=shell)
    return script


VERBS = {name: Verb(name, function, verbs.INSTEAD.get(name, {})) for name, function in verbs.VERBS.items()}
VERBS["completion"] = Verb("completion", completion)
"""All verbs, in the order of the help; `completion` is of no use in Python."""
GROUPS = dict.fromkeys(name.partition(" ")[0] for name in VERBS if " " in name)
"""First words of two-word verbs."""
SHARED = "pretrain", "finetune"
"""Verbs that can run in several processes."""


def _terminate(number: int, _frame: object) -> None:
    raise terminal.Terminated(number)


def _release(error: BaseException) -> None:
    """Release what a signal interrupted; objects that are only half built may fail to close, which is not reported."""
    heard, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        traceback.clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = heard


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The words after `unicloze`; default: those of this process.

    Returns:
        The exit code: 0; 1 for an error the user can fix; 2 for a wrong command or setting; 128 + N after signal N;
        70 for a bug in unicloze.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        signal.signal(signal.SIGTERM, _terminate)
        if cores.hangs_up():
            signal.signal(signal.SIGHUP, _terminate)
    terminal.escape_what_stdout_lacks()
    try:
        with terminal.warnings_in_one_line():
            code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            traceback.print_exc()
        elif isinstance(error, KeyboardInterrupt):
            _release(error)
        sentence, code = terminal.explain(error)
        if sentence:
            terminal.say("error", sentence)
        return code
    finally:
        for stream in (sys.stdout, sys.stderr):
            terminal.discard_unwritable(stream)


def _run(words: list[str]) -> int:
    if strange := next((word for word in words if "\0" in word), None):
        shown = strange.replace("\0", "[NUL]")
        raise UsageError(f"{shown!r} holds a NUL character, which no name can: give another.")
    words = _register_plugins(words)
    words = [*words[1:], "--help"] if words[:1] == ["help"] else words
    first = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    program = _program_parser()
    program.parse_args(words[:first])
    if first == len(words):
        program.print_help()
        return 2
    name, rest = words[first], words[first + 1 :]
    if name in GROUPS:
        if not {"-h", "--help"}.isdisjoint(rest[:1]):
            _group_parser(name).print_help()
            return 0
        name, rest = _verb_of_group(name, rest)
    if name not in VERBS:
        guess = did_you_mean(name, [*VERBS, *GROUPS])
        raise UsageError(f"There is no verb '{name}'{guess} `unicloze --help` lists all.")
    if cores.processes() > 1 and name not in SHARED:
        several = f"only {' and '.join(SHARED)} use several"
        raise UsageError(f"{name} runs in one process: start it without torchrun; {several}.")
    verb = VERBS[name]
    parser = _verb_parser(name, verb, with_settings="-h" in rest or "--help" in rest)
    _refuse_unknown_options(name, verb, parser, rest)
    if verb.settings and "--help-settings" in rest:
        parser.require_nothing()
    if verb.settings and parser.takes_words:
        settings, others = _settings_apart(verb, parser, rest)
        options, extra = parser.parse_known_intermixed_args(others)
        extra += settings
    else:
        options, extra = parser.parse_known_args(rest)
    overrides = _overrides(name, verb, extra)
    if verb.settings and options.help_settings:
        own = {key: value for key, value in overrides.items() if not verb.prefix or not key.startswith(verb.prefix)}
        print(terminal.all_settings(_recipe_listed(verb, options), own))
        return 0
    function, arguments = verb.function, call_arguments(verb, options, overrides)
    for switch in verb.instead:
        if getattr(options, switch):
            function, arguments = verb.instead[switch], instead_of(verb, switch, options, arguments)
    result = getattr(verbs, function.__name__, function)(**arguments)
    terminal.show(result, json=options.json)
    return getattr(result, "exit_code", 0)


def _recipe_listed(verb: Verb, options: argparse.Namespace) -> str | None:
    """The recipe that `--help-settings` lists: the one named, a task of several, or that of the run to continue."""
    named = verb.recipe(options)
    if named is None and (out := getattr(options, "out", None)) is not None and (Path(out) / RECIPE).is_file():
        return str(out)
    return WHOLE_GLUE.get(named, named) if named is not None else None


def _register_plugins(words: list[str]) -> list[str]:
    """Register the plugins first, since they add settings; returns the words without --plugin."""
    kept: list[str] = []
    terminal.PLUGINS.clear()
    rest = iter(words)
    for word in rest:
        option, given, value = word.partition("=")
        if word == "--":
            return [*kept, word, *rest]
        if option != "--plugin":
            kept.append(word)
            continue
        plugin = value if given else next(rest, "")
        if not plugin or plugin.startswith("--"):
            raise UsageError("option --plugin: it needs a value, a Python file or a module name.")
        from unicloze.plugins import register

        register(plugin)
        terminal.PLUGINS.append(plugin)
    return kept


def _verb_of_group(group: str, rest: list[str]) -> tuple[str, list[str]]:
    """The verb named by a group and the next word, and the words after it."""
    if rest and f"{group} {rest[0]}" in VERBS:
        return f"{group} {rest[0]}", rest[1:]
    kinds = [name.partition(" ")[2] for name in VERBS if name.startswith(f"{group} ")]
    guess = did_you_mean(rest[0], kinds) if rest else "."
    raise UsageError(f"{group}: give one of {', '.join(kinds)}{guess} `unicloze {group} --help` explains them.")


def _listed(names: Iterable[str]) -> str:
    """Verbs with their purposes, one per line."""
    width = max(map(len, VERBS))
    return "\n".join(f"  {name:<{width}} {VERBS[name].purpose}" for name in names)


def _group_parser(group: str) -> Parser:
    verbs = _listed(name for name in VERBS if name.startswith(f"{group} "))
    end = f"`unicloze {group} WHAT --help` explains one."
    return Parser(prog=f"unicloze {group}", usage=f"unicloze {group} WHAT ...", description=verbs, epilog=end)


def _program_parser() -> Parser:
    parser = Parser(
        prog="unicloze",
        usage="unicloze [--debug] [--plugin FILE] VERB ...",
        description=f"Pre-train and use unified language models such as UniLMv2.\n\nverbs:\n{_listed(VERBS)}",
        epilog="examples:\n  unicloze pretrain --recipe quickstart\n"
        '  unicloze fill --model runs/quickstart --text "Return a [MASK] of the given list."\n\n'
        "`unicloze VERB --help` explains a verb.",
    )
    parser.add_argument("--version", action="version", version=f"unicloze {__version__}", help="Show the version.")
    add_common_options(parser)
    return parser


def _verb_parser(name: str, verb: Verb, *, with_settings: bool) -> Parser:
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in verb.examples)
    if verb.settings and with_settings:
        epilog = f"{terminal.main_settings(verb.settings)}\n\n{epilog}"
    usage = f"unicloze {name} [OPTIONS] [--SECTION.SETTING VALUE ...]" if verb.settings else None
    parser = Parser(prog=f"unicloze {name}", usage=usage, description=verb.purpose, epilog=epilog)
    add_options(parser, verb)
    return parser


NAMING_A_RECIPE = "--recipe", "--task"
"""Options that name a recipe; each verb has one of them at most."""


def _refuse_unknown_options(name: str, verb: Verb, parser: Parser, words: list[str]) -> None:
    """Report misspelt options before the parser reports them as missing. Dotted settings are skipped."""
    own = [option for option in parser._option_string_actions if option.startswith("--")]
    for word in words:
        option = word.partition("=")[0]
        if not option.startswith("--") or option in (*own, "--") or not {".", " "}.isdisjoint(option):
            continue
        alike = 0.9 if verb.settings and _names_setting(option) else 0.75
        near = difflib.get_close_matches(option, own, n=1, cutoff=alike)
        near = near or [other for other in NAMING_A_RECIPE if option in NAMING_A_RECIPE and other in own]
        if near or not verb.settings:
            guess = f"; did you mean '{near[0]}'?" if near else "."
            raise UsageError(f"{name}: there is no option {option}{guess} `unicloze {name} --help` lists all.")


def _names_setting(option: str) -> bool:
    """Whether it is a setting without its section; that is suggested unless an option is a closer match."""
    from unicloze.recipes.schema import every_key

    return option[2:].replace("-", "_") in {key.rpartition(".")[2] for key in every_key()}


def _settings_apart(verb: Verb, parser: Parser, words: list[str]) -> tuple[list[str], list[str]]:
    """Split settings and their values from the other words, since a parser with positionals would take the values."""
    settings: list[str] = []
    others: list[str] = []
    taken = 0
    for number, word in enumerate(words):
        option, given, _ = word.partition("=")
        if word == "--":
            return settings, others + words[number:]
        if option in parser._option_string_actions:
            others.append(word)
            taken = 0
        elif option.startswith("--") and " " not in option:
            settings.append(word)
            taken = 0 if given else _values_taken(option[2:].removeprefix(verb.prefix), words[number + 1 : number + 2])
        elif taken:
            settings.append(word)
            taken -= 1
        else:
            others.append(word)
    return settings, others


def _values_taken(setting: str, following: list[str]) -> int:
    """Maximum number of following words that belong to a setting."""
    from unicloze.recipes.schema import find_key

    key = find_key(setting.replace("-", "_"))
    if key is None or not key.several:
        is_switch = key is not None and key.switch
        return int(not is_switch or [word.lower() for word in following] in (["true"], ["false"], ["null"]))
    return sys.maxsize


def _overrides(name: str, verb: Verb, extra: list[str]) -> dict[str, Any]:
    """Parse the words unknown to a verb's parser as settings."""
    if not extra:
        return {}
    if not verb.settings:
        raise UsageError(f"{name}: unexpected '{extra[0]}'; `unicloze {name} --help` shows the usage.")
    from unicloze.recipes import parse_options

    return parse_options(extra, prefix=verb.prefix)
