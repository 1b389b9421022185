"""The command line: what is printed where, and error messages."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from cli_toys import Command, copied
from conftest import REPOSITORY
from test_import_unilm import released
from unicloze import __version__, cli, verbs
from unicloze.cli import VERBS, _settings_apart, _verb_parser
from unicloze.cli.parser import Verb, call_arguments
from unicloze.errors import UniclozeError
from unicloze.objectives.unilmv2 import UniLMv2Settings
from unicloze.recipes import load_recipe, recipes_of, save_recipe
from unicloze.recipes.schema import SECTIONS, every_key, keys_of
from unicloze.verbs.options import Option

HEAVY = {"torch", "numpy", "pyarrow", "tokenizers", "transformers"}


# Help


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
from unicloze.cli import VERBS, main
for words in ([], ["evaluate"], *map(str.split, VERBS)):
    assert main([*words, "--help"]) == 0
assert main(["--version"]) == 0
print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
assert main(["pretrain", "--help-settings"]) == 0
print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    imported = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert imported == [[], ["numpy", "tokenizers"]], "which the module of an objective needs"


def test_the_program_explains_itself(command: Command) -> None:
    said = command("--help")
    assert said.code == 0
    assert all(f"  {name}" in said.out and verb.purpose in said.out for name, verb in cli.VERBS.items())
    assert command("--version").out.strip() == f"unicloze {__version__}"
    nothing = command()
    assert (nothing.code, nothing.out) == (2, said.out)
    assert command("help").out == said.out and command("help", "fill").out == command("fill", "--help").out


@pytest.mark.parametrize("name", cli.VERBS)
def test_a_verb_explains_itself(name: str, command: Command) -> None:
    verb = cli.VERBS[name]
    said = command(*name.split(), "--help")
    assert said.code == 0 and verb.purpose in said.out
    assert all(example in said.out for example in verb.examples)
    for key in verb.settings:
        assert f"--{key}\n" in said.out and every_key()[key].description.split()[0] in said.out


def test_a_group_of_verbs_explains_itself(command: Command) -> None:
    said = command("evaluate", "--help")
    for name, verb in cli.VERBS.items():
        assert (f"  {name} " in said.out and verb.purpose in said.out) == name.startswith("evaluate ")


def polish(
    what: Annotated[str, Option("THING", word=True)],
    cloths: Annotated[Sequence[str], Option("CLOTH", name="cloth", repeated=True)] = (),
    times: Annotated[int, Option("N")] | None = 0,
    how: Literal["gently", "hard"] = "gently",
    dry: bool = False,
    wax: Annotated[UnknownHere, Option("NAME")] | None = None,  # type: ignore[name-defined]  # noqa: F821
) -> None:
    """Polish a thing, 100 % of it.

    Args:
        what: Thing to polish; in Python also several.
        cloths: Cloths to use;
            may be given again.
        times: How often.
        how: `gently` or hard.
        dry: Use no water.
        wax: Which wax.

    Examples:
        unicloze polish shoe
            --cloth red
    """


def test_a_function_declares_a_verb_and_is_called_with_what_is_given() -> None:
    verb = Verb("polish", polish)
    parser = cli._verb_parser("polish", verb, with_settings=False)
    assert (verb.purpose, verb.examples) == ("Polish a thing, 100 % of it.", ("unicloze polish shoe --cloth red",))
    told = " ".join(parser.format_help().split())
    for line in (
        "THING Thing to polish. ",
        "--cloth CLOTH Cloths to use; may be given again. ",
        "--times N How often (default: 0). ",
        "--how {gently,hard} gently or hard (default: gently). ",
        "--dry Use no water. ",
        "--wax NAME Which wax. ",
    ):
        assert line in told
    for words, arguments in (
        ("shoe --how hard", {"how": "hard"}),
        ("--cloth a --dry shoe --cloth b --times 3", {"cloths": ["a", "b"], "dry": True, "times": 3}),
    ):
        assert call_arguments(verb, parser.parse_args(words.split()), {}) == {"what": "shoe", **arguments}


def test_all_settings_are_listed_with_their_values(command: Command, tmp_path: Path) -> None:
    said = command("inspect", "--help-settings", "--recipe", "unilmv2-base", "--training.steps", "7")
    assert said.code == 0
    listed = dict(line[4:].split(" ", 1) for line in said.out.splitlines() if line.startswith("  --"))
    kinds = {name: kind for name, kind in SECTIONS.items() if name != "provenance"} | {"objective": UniLMv2Settings}
    assert set(listed) == {key for section, kind in kinds.items() for key in keys_of(section, kind)}
    shown = {
        "training.steps": "7",
        "model.hidden_size": "768",
        "objective.targets": "ae par",
        "training.compile": "null",
    }
    assert shown.items() <= listed.items()
    default, gpt = (command("pretrain", "--help-settings", *more).out for more in ((), ("--recipe", "gpt")))
    assert "--training.batch_size 7680" in default and "--tokenizer.path null" in default
    assert "--objective.mask_rate" in default and "--objective.mean_span" not in default
    assert "--objective.visibility" in gpt and "--objective.mask_rate" not in gpt
    assert "Settings of the recipe glue-mnli:" in command("finetune", "--task", "glue", "--help-settings").out
    save_recipe(load_recipe("gpt"), tmp_path / "recipe.yaml")
    run = command("pretrain", "--out", str(tmp_path), "--training.seed", "7", "--help-settings").out
    assert "--objective.visibility left_to_right" in run and "--training.seed 7" in run


def test_values_of_switches_before_words_are_not_words() -> None:
    verb = VERBS["compare"]
    for value in ("False", "true", "null"):
        words = ["gpt", "--model.relative_bias", value, "elmo"]
        assert _settings_apart(verb, _verb_parser("compare", verb, with_settings=False), words) == (
            words[1:3],
            ["gpt", "elmo"],
        )


def words_of(example: str) -> list[str]:
    program, *words = shlex.split(example)
    assert program == "unicloze"
    return words


TAKES_MINUTES = "prepare", "pretrain", "compare"
ELSEWHERE = "serve", "doctor"
"""Verbs whose examples `test_examples_of_serving_are_sound` and `test_doctor` run."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cli.VERBS if name not in (*TAKES_MINUTES, *ELSEWHERE)])
def test_examples_of_the_help_work(name: str, here: Path, command: Command) -> None:
    question = {"id": "a", "question": "Who sees?", "answers": [{"text": "the cat", "answer_start": 0}]}
    labelled = [{"text": word, "label": str(len(word))} for word in ("cat", "a", "small dog")]
    files: dict[str, Any] = {
        "sentences.txt": "the small cat sees the dog .\n",
        "words.txt": "the\nold\ncat\nsees\nfollows\n",
        "train.jsonl": labelled,
        "dev.jsonl": labelled,
        "test.jsonl": [{"text": record["text"]} for record in labelled],
        **{f"{name}.tsv": "text\tlabel\ncat\t1\nthe dog\t2\nold\t3\n" for name in ("train", "dev", "test")},
        "blimp/toy_order.jsonl": [
            {"sentence_good": f"The old cat {verb} the cat.", "sentence_bad": f"Old the {verb} cat the cat.",
             "UID": "toy_order", "field": "syntax", "linguistics_term": "word_order"}
            for verb in ("sees", "follows")
        ],
        "summaries.txt": "the cat sees a dog\n",
        "gold.txt": "the cat sees the dog\n",
        "predictions.jsonl": [{"prediction": "3"}] * 3,
        "answers.json": '{"a": "cat"}',
        "dev-v2.0.json": json.dumps({"data": [{"paragraphs": [{"context": "the cat sees the dog", "qas": [question]}]}]}),
        "lambada.jsonl": [{"context": "the small cat sees the old", "continuation": "dog"}],
        "made.jsonl": [
            {"context": f"{who} sees the dog", "question": "Who sees?", "answers": [who]} for who in ("cat", "bird")
        ],
        "questions.txt": "1 the cat is old .\n2 the cat sees the XXXXX .\tdog\t\tcat|dog\n",
        "lengths.yaml": 'template: "{text} is {label}"\nlabels: {"3": small, "1": old, "9": cat}\n',
        "mine/tokenizer.json": (here / "runs" / "quickstart" / "tokenizer.json").read_text(encoding="utf-8"),
    }  # fmt: skip
    for file, content in files.items():
        (here / file).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else "".join(json.dumps(record) + "\n" for record in content)
        (here / file).write_text(text, encoding="utf-8")
    released(here / "bert-base-uncased", fused=False, relative=False, segments=2, model_type="bert")
    with tarfile.open(here / "blimp.tar.gz", "w:gz") as archive:
        archive.add(here / "blimp", "blimp")
    for example in cli.VERBS[name].examples:
        said = command(*words_of(example))
        assert (said.code, bool(said.out)) == (0, True), said.err


@pytest.mark.parametrize("name", TAKES_MINUTES)
def test_examples_that_would_take_minutes_are_sound(
    name: str, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_read(recipe: str | None = None, recipes: Sequence[str] = (), **arguments: object) -> None:
        for name in [recipe, *recipes_of(recipes), arguments.get("like")]:
            if name is not None:
                load_recipe(name, arguments["overrides"])  # type: ignore[arg-type]
        raise UniclozeError("as far as this test goes")

    monkeypatch.setattr(verbs, name, only_read)
    for example in cli.VERBS[name].examples:
        assert command(*words_of(example)).sentence == "as far as this test goes"


def test_examples_of_serving_are_sound(
    here: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pytest.importorskip("unicloze.serving.run", reason="the extra serve is not installed")
    monkeypatch.setattr(
        run, "serve_model", lambda model, _, **given: (model.path.is_dir(), given["host"], given["token"])
    )
    monkeypatch.delenv(run.TOKEN, raising=False)
    for name in ("quickstart", "classification"):
        shutil.copytree(here / "runs" / "quickstart", tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token.txt").write_text("a-token-of-some-length\n", encoding="utf-8")
    said = [command(*words_of(example)).out for example in cli.VERBS["serve"].examples]
    assert said == ["(True, '127.0.0.1', None)\n", "(True, '0.0.0.0', 'a-token-of-some-length')\n"]


# What is printed


def test_prepare_prints_what_there_is(here: Path, tmp_path: Path, command: Command) -> None:
    words = ("prepare", "--data.corpus", "my_text", "--tokenizer.vocab_size", "300", "--out", tmp_path / "data")
    said = command(*words)
    assert said.code == 0 and said.out.count("\n") == 1
    assert said.out.startswith(f"{tmp_path / 'data'}: ") and "to train on" in said.out and "held out" in said.out
    assert command(*words, "--quiet") == (0, said.out, "")


def test_pretrain_prints_its_result_and_quiet_nothing_else(here: Path, tmp_path: Path, command: Command) -> None:
    run = copied(here / "runs" / "quickstart", tmp_path / "run")
    said = command("pretrain", "--out", run, "--training.steps", "3", "--quiet")
    assert said.code == 0 and said.out.startswith(f"{run}: trained to step 3, held-out perplexity ae ")
    assert "training.steps changes from 2 to 3" in said.err and said.err.count("\n") == 1
    done = command("pretrain", "--out", run, "--quiet")
    assert done.code == 0 and done.out.startswith(f"{run}: trained to step 3")
    assert done.err.startswith("unicloze: warning: ") and done.err.count("\n") == 1


def test_pretrain_reports_a_signal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from unicloze.pretraining.run import RunResult

    stopped = RunResult(Path("runs/mine"), 12, 15, {}, "held-out")
    monkeypatch.setattr(verbs, "pretrain", lambda **_: stopped)
    said = command("pretrain")
    assert (said.code, said.err) == (143, "")
    assert said.out == "runs/mine: stopped and saved at step 12; run the same command to resume\n"


@pytest.mark.parametrize(("words", "shown"), [
    (
        "inspect --text 'the small cat sees the dog' --objective.mask_rate 0.5 --seed 4",
        lambda view: [f" {slot['token']} " for slot in view["slots"]],
    ),
    (
        "fill --model runs/quickstart --text 'the [MASK] cat' --top-k 2 --order span",
        lambda found: [f"{found['filled']}\n", *(token for token, _ in found["masks"][0]["top"])],
    ),
    (
        "score --model runs/quickstart --text 'the small cat'",
        lambda found: ["the small cat\n", *(f"{found[0][f'{kind}_log_likelihood']:.2f}" for kind in ("chain", "pseudo"))],
    ),
    (
        "recipes",
        lambda rows: [str(row[key]) for row in rows for key in ("name", "objective")]
        + [f"{row['parameters']:,}" for row in rows if row["parameters"] is not None],
    ),
], ids=["inspect", "fill", "score", "recipes"])  # fmt: skip
def test_text_shows_what_json_holds(
    words: str, shown: Callable[[Any], list[str]], here: Path, command: Command
) -> None:
    said, text = command(*shlex.split(words), "--json"), command(*shlex.split(words))
    assert (said.code, text.code) == (0, 0) and all(part in text.out for part in shown(json.loads(said.out)))
    note = "unicloze: note: " if words.startswith("score") else ""  # a model of one mask rate is poor at whole texts
    assert said.err.startswith(note) and bool(said.err) == bool(note)


def test_inspect_prints_the_name_of_its_picture(here: Path, tmp_path: Path, command: Command) -> None:
    picture = tmp_path / "example.svg"
    assert command("inspect", "--text", "the small cat", "--picture", picture) == (0, f"{picture}\n", "")


def test_invalid_utf8_is_repaired(here: Path, command: Command) -> None:
    said = command("score", "--model", "runs/quickstart", "--text", os.fsdecode(b"the \xff cat"), "--json")
    assert said.code == 0 and json.loads(said.out)[0]["text"] == "the \ufffd cat"


@pytest.mark.parametrize(("words", "arguments"), [
    *((words, {"like": "quickstart", "overrides": {"model.hidden_size": "32"}}) for words in (
        "--like quickstart --budget steps=5 --model.hidden_size 32 gpt bert",
        "--model.hidden_size=32 gpt --budget steps=5 bert --like quickstart",
        "gpt bert --like quickstart --model.hidden_size 32 --budget steps=5",
        "--model.hidden_size 32 gpt --like=quickstart --budget steps=5 -- bert",
    )),
    (
        "--data.corpus a.txt b.txt --training.compile gpt --tokenizer.lowercase false bert --budget steps=5",
        {"overrides": {"data.corpus": ["a.txt", "b.txt"], "training.compile": True, "tokenizer.lowercase": "false"}},
    ),
    (
        "gpt bert --budget steps=5 --probe choice a b --probe.task.head mlp --model.dropout 0",
        {
            "probes": [["choice", "a", "b"]], "overrides": {"model.dropout": "0"},
            "probe_overrides": {"task.head": "mlp"},
        },
    ),
])  # fmt: skip
def test_settings_may_stand_before_and_after_recipes_to_compare(
    words: str, arguments: dict[str, Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(verbs, "compare", lambda **given: asked.update(given) or [])
    assert command("compare", *words.split()).code == 0
    assert {"recipes": ["gpt", "bert"], **arguments}.items() <= asked.items()


def test_python_m_unicloze_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unicloze", "recipe"], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'recipes'?" in done.stderr
