"""The verbs as Python functions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest

import toys
import unicloze
from conftest import REPOSITORY
from corpora import write_corpus
from unicloze import cli, recipes, verbs
from unicloze.cli import completion
from unicloze.errors import UniclozeError, UsageError
from unicloze.pretraining.run import RunResult
from unicloze.recipes import kept_summaries, load_recipe, recipe_names, task_names
from unicloze.training.ledger import read_ledger
from unicloze.training.loading import load_model
from unicloze.verbs.about import summarised

TEXT = "the small cat sees the old dog ."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with `corpus/`."""
    folder = tmp_path_factory.mktemp("verbs")
    write_corpus(folder / "corpus")
    return folder


@pytest.fixture(scope="module")
def trained(place: Path) -> RunResult:
    overrides = {"data.corpus": [str(place / "corpus")]}
    return verbs.pretrain("quickstart", place / "run", toy=True, quiet=True, overrides=overrides)


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


# Declarations


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_argument_of_a_verb_is_explained_and_can_be_given(name: str) -> None:
    for argument in cli.VERBS[name].arguments:
        assert argument.help, argument.name
        assert argument.settings or argument.option.metavar or bool in argument.kinds or get_args(argument.kinds[0])


def test_the_package_offers_its_names_and_no_more() -> None:
    assert dir(unicloze) == sorted(unicloze.__all__)
    assert all(getattr(unicloze, name) is not None for name in unicloze.__all__)
    with pytest.raises(AttributeError, match="'unicloze' has no attribute 'fil'"):
        _ = unicloze.fil  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert unicloze.__version__ == project["version"]


# prepare and pretrain


def test_prepare_writes_where_pretrain_looks() -> None:
    prepared = verbs.prepare(
        "quickstart", quiet=True, overrides={"data.corpus": ["corpus"], "tokenizer.vocab_size": 512}
    )
    assert prepared.folder == Path("runs/quickstart/data")


@pytest.mark.parametrize(("overrides", "says"), [
    ({"training.warmup_steps": 1000}, "so the peak learning rate would never be reached"),
    ({"training.device": "cuda:97"}, "torch finds no such device"),
    ({"tokenizer.path": "nowhere.txt"}, "There is no file nowhere.txt"),
    ({"training.initialize_from": "nowhere"}, "nowhere"),
], ids=str)  # fmt: skip
def test_a_toy_refuses_what_the_whole_run_refuses(overrides: dict[str, Any], says: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    settings: dict[str, Any] = {"base": "quickstart", "data": {"corpus": ["corpus"]}}
    for key, value in overrides.items():
        settings.setdefault(key.partition(".")[0], {})[key.partition(".")[2]] = value
    recipe.write_text(json.dumps(settings), encoding="utf-8")
    for toy in (False, True):
        with pytest.raises(UniclozeError, match=says):
            verbs.pretrain(recipe, tmp_path / "run", toy=toy, quiet=True)


def test_a_toy_reads_the_beginning_of_a_long_corpus(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicloze.text.prepare.ENOUGH", 6000)
    given = {"data.corpus": [str(place / "corpus")]}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("of the user", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:  # interrupted before the run itself begins
        patch.setattr("unicloze.pretraining.run.pretrain_run", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            verbs.pretrain("quickstart", tmp_path / "run", toy=True, quiet=True, overrides=given)
    run = verbs.pretrain("quickstart", tmp_path / "run", toy=True, quiet=True, overrides=given)
    assert load_recipe(run.out / "recipe.yaml").data.corpus == [str(run.out / "toy.jsonl")]
    texts = [json.loads(line)["text"] for line in (run.out / "toy.jsonl").read_text(encoding="utf-8").splitlines()]
    assert 6000 <= sum(map(len, texts)) < 7000
    ledger = (run.out / "ledger.jsonl").read_bytes()
    with pytest.warns(UserWarning, match="is already trained to step 2"):
        verbs.pretrain("quickstart", run.out, toy=True, quiet=True, overrides=given)
    assert (
        run.out / "ledger.jsonl"
    ).read_bytes() == ledger  # which still ends with its end, where a report stops watching


@pytest.mark.filterwarnings("ignore:training.steps changes from")
def test_pretrain_continues_the_run_of_a_directory(trained: RunResult, place: Path) -> None:
    overrides = {"data.corpus": ["corpus"], "data.prepared": str(trained.out / "data")}
    first = verbs.pretrain("unilmv2-ablation-ar", toy=True, quiet=True, overrides=overrides)
    assert (first.out, first.step) == (Path("runs/unilmv2-ablation-ar-toy"), 2)
    second = verbs.pretrain(out=first.out, quiet=True, overrides={"training.steps": 3})
    assert second.step == 3
    assert load_model(first.out).step == 3


@pytest.fixture(scope="module")
def prepared(place: Path) -> Path:
    """The corpus with a vocabulary of 300."""
    overrides = {"data.corpus": str(place / "corpus"), "tokenizer.vocab_size": 300}
    return verbs.prepare(out=place / "prepared", quiet=True, overrides=overrides).folder


@pytest.mark.parametrize(("overrides", "says"), [
    ({"data.corpus": "texts"},
     r"option --data\.corpus: .*'texts'.*prepared was made with .*corpus.*leave out data\.corpus"),
    ({"data.corpus": ["corpus", "corpus"]}, "was made with"),
    ({"tokenizer.vocab_size": 500}, r"option --tokenizer\.vocab_size: .* is 500, .* was made with 300: leave"),
    ({"tokenizer": {"lowercase": False}}, r"tokenizer\.lowercase is False, .* was made with True"),
    ({"data.heldout_share": 0.3}, r"data\.heldout_share is 0\.3"),
], ids=str)  # fmt: skip
def test_pretrain_refuses_what_the_prepared_data_is_not(
    overrides: dict[str, Any], says: str, prepared: Path, place: Path
) -> None:
    write_corpus(place / "texts", seed=1)
    given = {"data.prepared": str(prepared), **overrides}
    with pytest.raises(UsageError, match=says):
        verbs.pretrain("quickstart", place / "refused", toy=True, quiet=True, overrides=given)
    assert not (place / "refused").exists()


def test_a_loaded_vocabulary_determines_whether_it_lower_cases(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[unused1]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PSEUDO]\nThe\nthe\n")
    overrides = {"data.corpus": str(place / "corpus"), "tokenizer.path": str(path)}
    tokenizer = verbs.prepare("quickstart", tmp_path / "prepared", quiet=True, overrides=overrides).tokenizer
    assert tokenizer.tokens(tokenizer.encode("The the")) == ["The", "the"]
    for name, value in {"lowercase": True, "strip_accents": True, "vocab_size": 300, "kind": "bpe"}.items():
        refused = overrides | {f"tokenizer.{name}": value}
        for act in (verbs.prepare, verbs.pretrain):
            with pytest.raises(
                UsageError, match=rf"tokenizer\.{name} applies to training a tokenizer, .* loads {path}"
            ):
                act("quickstart", tmp_path / "refused", quiet=True, overrides=refused)
    assert not (tmp_path / "refused").exists()


def test_a_recipe_file_may_not_contradict_the_prepared_data_it_names(prepared: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: quickstart\ndata:\n  prepared: {prepared}\n  corpus: python-docs\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.yaml, line 4: data\.corpus is \['python-docs'\]"):
        verbs.pretrain(file, tmp_path / "run", toy=True, quiet=True)


def test_the_recipe_of_a_run_describes_the_prepared_data(prepared: Path, place: Path, tmp_path: Path) -> None:
    # The corpus has moved but is the same; the base's path does not matter.
    shutil.copytree(place / "corpus", tmp_path / "moved")
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: quickstart\ndata: {{prepared: {prepared}}}\n", encoding="utf-8")
    overrides = {"data.corpus": str(tmp_path / "moved"), "tokenizer.vocab_size": 300}
    verbs.pretrain(file, tmp_path / "run", toy=True, quiet=True, overrides=overrides)
    told = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert told.data.corpus == [str(place / "corpus")]
    assert (told.tokenizer.vocab_size, told.tokenizer.path) == (300, None)


@pytest.mark.filterwarnings("ignore:training.steps changes from")
def test_a_run_whose_recipe_is_wrong_is_corrected_and_resumed(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"data.prepared": str(prepared)}
    with monkeypatch.context() as patch:  # as earlier versions did
        patch.setattr("unicloze.pretraining.run.as_prepared", lambda recipe, _: recipe)
        verbs.pretrain("quickstart", tmp_path / "run", toy=True, quiet=True, overrides=given)
    assert load_recipe(tmp_path / "run" / "recipe.yaml").tokenizer.vocab_size == 512
    assert verbs.pretrain(out=tmp_path / "run", quiet=True, overrides={"training.steps": 3}).step == 3
    assert load_recipe(tmp_path / "run" / "recipe.yaml").tokenizer.vocab_size == 300


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:training.steps changes from")
def test_a_run_is_not_lost_by_another_corpus(place: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "run" / "data"
    write_corpus(tmp_path / "other", seed=1)
    old, new = {"data.corpus": str(place / "corpus")}, {"data.corpus": str(tmp_path / "other")}
    verbs.pretrain("quickstart", run, toy=True, quiet=True, overrides=old)
    cure = r"give this corpus another --out; the run in .* only resume with its old one"
    for is_there in (True, False):
        with pytest.raises(UniclozeError, match=cure) as said:
            verbs.pretrain("quickstart", run, toy=True, quiet=True, overrides=new)
        assert "remove" not in str(said.value) and data.exists() == is_there
        shutil.rmtree(data, ignore_errors=True)
    verbs.prepare(out=data, quiet=True, overrides={**new, "tokenizer.vocab_size": 512})
    for overrides in (old, new):
        with pytest.raises(UniclozeError, match=f"remove {data}"):
            verbs.pretrain("quickstart", run, toy=True, quiet=True, overrides=overrides)
    shutil.rmtree(data)
    assert verbs.pretrain("quickstart", run, toy=True, quiet=True, overrides={**old, "training.steps": 3}).step == 3


def test_what_a_loaded_tokenizer_prepared_has_no_settings_of_training(prepared: Path, place: Path) -> None:
    again = {"data.corpus": str(place / "corpus"), "tokenizer.path": str(prepared / "tokenizer.json")}
    data = verbs.prepare(out=place / "loaded", quiet=True, overrides=again).folder
    given = {"data.prepared": str(data), "tokenizer.kind": "bpe"}
    with pytest.raises(UsageError, match=r"tokenizer\.kind applies to training .*, but data\.prepared .* a loaded one"):
        verbs.pretrain("quickstart", place / "no", toy=True, quiet=True, overrides=given)


# inspect


def test_inspect_splits_on_white_space_without_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    view = verbs.inspect("Un-usual words, kept whole", "unilmv2-base")
    assert "white space" in capsys.readouterr().err
    tokens = {slot["token"] for slot in view.to_dict()["slots"]}
    assert len({"Un-usual", "words,", "kept", "whole"} & tokens) >= 3
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize("overrides", [{"data.prepared": "run/data"}, {"tokenizer.path": "run/tokenizer.json"}])
def test_inspect_takes_the_recipes_tokenizer(
    trained: RunResult, overrides: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    view = verbs.inspect("THE", overrides=overrides | {"data.segments": 1, "objective.random_share": 0.0})
    assert capsys.readouterr().err == ""
    assert view.to_dict()["targets"]["ae"]["labels"] == ["the"]


# fill, score and embed


def test_score_reads_texts_or_a_file(trained: RunResult, tmp_path: Path) -> None:
    texts, plain, lines = [TEXT, "the dog"], tmp_path / "two.txt", tmp_path / "two.txt.jsonl"
    plain.write_text(f"{TEXT}\nthe dog\n\n", encoding="utf-8")
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    scores = verbs.score(trained.out, texts)
    assert [score.text for score in scores] == texts and scores[0].chain_log_likelihood is not None
    assert scores == verbs.score(trained.out, file=plain) == verbs.score(trained.out, file=lines)
    lines.write_text(json.dumps({"text": f"{TEXT}\nthe dog"}) + "\n", encoding="utf-8")
    assert len(verbs.score(trained.out, file=lines)) == 1


@pytest.mark.parametrize("verb", [verbs.score, verbs.embed, verbs.fill])
@pytest.mark.parametrize(("name", "content", "row"), [
    ("a.txt", "the [MASK]\n\nthe dog [MASK]\n", 2), ("a.txt", "\nthe [MASK]\n", 1), ("a.txt", "a [MASK]\n \t\n\nb [MASK]", 2),
    ("a.txt", "a [MASK]\nb [MASK]\n\u00a0\nc [MASK]\n", 3),
    ("a.jsonl", '{"text": "a [MASK]"}\n{"text": " "}\n{"text": "b [MASK]"}\n', 2),
    ("a.jsonl", '{"text": "a [MASK]"}\n{"text": null}\n', 2),
    ("a.jsonl", '{"text": "a [MASK]"}\n\n{"text": "b [MASK]"}\n', 2),
])  # fmt: skip
def test_a_blank_row_of_a_file_is_refused(
    verb: Any, name: str, content: str, row: int, trained: RunResult, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UniclozeError, match=f"{name}:{row} is blank, but each row gives a result"):
        verb(trained.out, file=tmp_path / name)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_each_line_of_a_file_gives_a_row(ends: str, trained: RunResult, tmp_path: Path) -> None:
    lines = [f"the dog [MASK] {number}" for number in range(40)]
    (tmp_path / "a.txt").write_bytes("".join(line + ends for line in lines).encode())
    filled = verbs.fill(trained.out, file=tmp_path / "a.txt")
    scored = verbs.score(trained.out, file=tmp_path / "a.txt")
    assert [one.text for one in filled] == lines == [one.text for one in scored]
    assert len(verbs.embed(trained.out, file=tmp_path / "a.txt")) == len(lines)
    assert filled[3].filled == verbs.fill(load_model(trained.out), lines[3]).filled
    assert str(filled).count("candidates") == len(lines)
    (tmp_path / "b.txt").write_text("a [MASK]\nno mask\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"b\.txt:2: the text has no mask"):
        verbs.fill(trained.out, file=tmp_path / "b.txt")
    (tmp_path / "b.txt").write_bytes("the dog\nle chien r\u00eave\n".encode("latin-1"))
    with pytest.raises(
        UniclozeError, match=r"b\.txt has 1 invalid UTF-8 .* at .*b\.txt:1, byte 18 of the text: correct"
    ):
        verbs.score(trained.out, file=tmp_path / "b.txt")


def test_a_folder_that_is_replaced_is_not_the_current_one(
    trained: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (lambda: verbs.export(trained.out, "mpnet", "."), lambda: verbs.import_checkpoint(trained.out, ".")):
        with pytest.raises(UsageError, match=r"--out is \., which holds this folder and would be replaced as a whole"):
            write()


def test_a_text_of_a_record_is_named_by_an_option_of_the_verb(trained: RunResult, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "the dog"}\n', encoding="utf-8")
    with pytest.raises(UniclozeError, match=r'no field "text": set --text-field to one of its text fields \(body\)'):
        verbs.score(trained.out, file=tmp_path / "a.jsonl")
    assert verbs.score(trained.out, file=tmp_path / "a.jsonl", text_field="body")[0].text == "the dog"


@pytest.mark.parametrize(("verb", "given", "says"), [
    (verbs.score, {"text": []}, "no text: give strings"),
    (verbs.score, {"text": ["a", 1]}, "type int: give strings"),
    (verbs.score, {"text": [["a"], "b"]}, "type list: give strings"),
    (verbs.fill, {"text": ["the [MASK]", "a [MASK]"]}, "of type list: give a single string"),
    (verbs.score, {}, "either a text or a file"),
    (verbs.score, {"text": TEXT, "file": "corpus/corpus.txt"}, "either a text or a file"),
    (verbs.score, {"file": "blank.txt"}, r"blank\.txt contains no text"),
    (verbs.embed, {"texts": ["the dog"], "text_field": "body"}, "--text-field: it names the text in the records of a"),
])  # fmt: skip
def test_what_is_not_text_is_refused(verb: Any, given: dict[str, Any], says: str, trained: RunResult) -> None:
    Path("blank.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(UniclozeError, match=says):
        verb(trained.out, **given)


@pytest.mark.whole
def test_a_corpus_too_small_to_measure_is_reported_and_has_no_perplexity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.txt").write_text("hello world how are you\n", encoding="utf-8")
    overrides = {"data.corpus": str(tmp_path / "tiny.txt"), "training.evaluate_every": 1}
    with pytest.warns(UserWarning, match="too small to hold anything out: there is nothing to measure") as warned:
        result = verbs.pretrain("quickstart", tmp_path / "run", toy=True, overrides=overrides)
    assert [str(one.message).partition(":")[0] for one in warned] == [
        "too little text", "the corpus is too small to hold anything out",
    ]  # fmt: skip
    assert result.perplexity == {"ae": None, "par": None}
    line, verdict = str(result).split("\n")
    assert line.endswith("trained to step 2, no held-out perplexity, nothing to measure")
    assert verdict == "  not judged: there is no held-out perplexity; too little text: 24 bytes"
    assert "step 1: no held-out perplexity, nothing to measure (window 32)" in capsys.readouterr().err
    (*_, event) = (e for e in read_ledger(tmp_path / "run" / "ledger.jsonl") if e["event"] == "evaluate")
    nothing = {"ae": None, "par": None}
    assert (event["loss"], event["perplexity"], event["bits_per_byte"]) == (nothing, nothing, nothing)
    page = verbs.report(tmp_path / "run").read_text(encoding="utf-8")
    assert page.count("nothing to measure") == 2 and "not evaluated yet" not in page
    verbs.export(tmp_path / "run", to="unicloze", out=tmp_path / "export")
    exported = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert re.search(r"held-out perplexity, ae +\| nothing to measure \|", exported)


def test_what_is_held_out_may_be_too_short_for_a_window(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("hello world\n", encoding="utf-8")
    overrides = {"data.corpus": str(tmp_path / "tiny.txt")}
    with pytest.warns(UserWarning, match="the perplexity will be measured on the training text"):
        result = verbs.pretrain("quickstart", tmp_path / "run", toy=True, quiet=True, overrides=overrides)
    assert result.part == "training-text"


@pytest.mark.whole
def test_a_comparison_refuses_what_it_cannot_measure(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("hello world how are you\n", encoding="utf-8")
    given = {**toys.toy_settings(), "data.corpus": str(tmp_path / "tiny.txt")}
    del given["training.steps"], given["training.warmup_steps"]
    both = ["unilmv2-ablation-ae", "unilmv2-ablation-par"]
    with pytest.raises(UsageError, match="too little text is held out to measure on"):
        verbs.compare(both, "steps=1", out=tmp_path / "compared", quiet=True, overrides=given)


# recipes


def test_recipes_lists_all() -> None:
    rows = {row.name: row for row in verbs.recipes()}
    assert list(rows) == [*recipe_names(), *task_names()]
    assert rows["unilmv2-ablation-ae-ar"].objective == "unilmv2 ae+ar"
    assert rows["unilmv2-ablation-par"].objective == "unilmv2 par"
    assert "Table 7" in rows["unilmv2-base"].place


@pytest.mark.whole
def test_stored_summaries_of_the_recipes_are_current() -> None:
    """If it fails, run: python -c "from unicloze.verbs import about; about.keep_summaries()"."""
    assert kept_summaries() == summarised().to_dict()


def test_recipes_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recipes, "KEPT", tmp_path / "summaries.json")
    assert kept_summaries() is None
    (tmp_path / "gpt.yaml").write_text("model: {}\n", encoding="utf-8")
    recipes.keep_summaries([{"name": "gpt"}])
    assert kept_summaries() == [{"name": "gpt"}]
    (tmp_path / "gpt.yaml").write_text("model: { }\n", encoding="utf-8")
    assert kept_summaries() is None


def test_the_recipes_are_listed_without_anything_heavy() -> None:
    heavy = {"torch", "numpy", "tokenizers", "pyarrow"}
    program = f"import sys, unicloze.verbs; str(unicloze.verbs.recipes()); print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("write", [
    lambda: verbs.prepare("quickstart", out=""),
    lambda: verbs.pretrain("quickstart", out="", toy=True),
    lambda: verbs.pretrain(out=""),
    lambda: verbs.import_checkpoint("none", out=""),
    lambda: verbs.compare(["gpt", "bert-base"], "steps=1", out=""),
])  # fmt: skip
def test_an_empty_out_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--out is empty: name a folder"):
        write()
    assert not list(tmp_path.iterdir())


# The shell completes what is there: the script is run by bash itself


EXPECTED = {
    ("unicloze", "pre"): {"prepare", "pretrain", "predict"},
    ("unicloze", "evaluate", ""): {"blimp", "lambada", "cbt", "prompt"},
    ("unicloze", "evaluate", "blimp", "--lim"): {"--limit"},
    ("unicloze", "pretrain", "--training.optim"): {"--training.optimizer"},
    ("unicloze", "fill", "--order", ""): {"confidence", "left-to-right", "span"},
    ("unicloze", "pretrain", "--recipe", "gpt"): {name for name in recipe_names() if name.startswith("gpt")},
    ("unicloze", "generate", "--decoding.beam"): {"--decoding.beams"},
    ("unicloze", "generate", "--training.st"): set(),
    ("unicloze", "completion", ""): {"bash", "zsh"},
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "unicloze.bash"
    file.write_text(completion("bash"), encoding="utf-8")
    return file


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("words", EXPECTED, ids=" ".join)
def test_bash_completes(words: tuple[str, ...], script: Path) -> None:
    program = (
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_unicloze; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program, script, *words], capture_output=True, text=True, check=False)
    assert done.stderr == "" and {*done.stdout.split()} == EXPECTED[words]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_script_knows_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for name in cli.VERBS for word in name.split())
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed, text=True, check=True)
