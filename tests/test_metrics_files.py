"""Files of predictions and references, valid and invalid, and `unicloze measure`."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from unicloze import cli, verbs
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.files import read_pairs
from unicloze.evaluation.metrics.result import Compared


def write(folder: Path, **files: str) -> list[Path]:
    """Files of these texts; `a_txt_gz` is `a.txt.gz`."""
    paths = []
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        raw = text.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith("_gz") else raw)
        paths.append(path)
    return paths


def test_lines_keep_their_places(tmp_path: Path) -> None:
    found, wanted = write(tmp_path, p_txt="one\r\n\r\nthr\u2028ee\r\n", r_txt_gz="\ufeffa\nb\n\n")
    assert read_pairs(found, [wanted], "texts") == (["one", "", "thr\u2028ee"], [["a"], ["b"], [""]])


def test_several_references(tmp_path: Path) -> None:
    found, first, second, rows = write(
        tmp_path, p_txt="x\ny", r1_txt="a\nb\n", r2_txt="c\n\n",
        r3_jsonl='{"references": ["d", "e"]}\n{"reference": "f"}\n',
    )  # fmt: skip
    assert read_pairs(found, [first, second, rows], "texts")[1] == [["a", "c", "d", "e"], ["b", "f"]]


def test_tables_and_objects(tmp_path: Path) -> None:
    table, rows = write(
        tmp_path, p_tsv="id\tprediction\n7\t1\n8\t0\n",
        r_jsonl='{"id": 7, "reference": 1}\n\n{"id": 8, "reference": "0", "more": []}\n',
    )  # fmt: skip
    assert read_pairs(table, [rows], "labels") == (["1", "0"], ["1", "0"])
    assert read_pairs(table, [rows], "numbers") == ([1.0, 0.0], [1.0, 0.0])
    lines, lists = write(tmp_path, t_txt="O B-X\nO\n", u_jsonl='{"reference": ["O", "B-X"]}\n{"reference": "O"}')
    assert read_pairs(lines, [lists], "tags") == ([["O", "B-X"], ["O"]], [["O", "B-X"], ["O"]])


@pytest.mark.parametrize(("predictions", "references", "compares", "message"), [
    ("a\nb\nc\n", "a\nb\n", "texts", r"p.txt has 3 items and .*r.txt 2: nothing in .*r.txt matches .*p.txt, line 3"),
    ("a\n", "a\nb\n", "labels", r"p.txt has 1 items and .*r.txt 2: nothing in .*p.txt matches .*r.txt, line 2"),
    ("", "a", "texts", r"p.txt is empty"),
    ("1\nx\n", "1\n2\n", "numbers", r"p.txt, line 2 has 'x', which is not a finite number"),
    ("1\ninf\n", "1\n2\n", "numbers", r"p.txt, line 2 has 'inf'"),
    ("1\n \n", "1\n2\n", "labels", r"p.txt, line 2 has ' ', which is not a label"),
])  # fmt: skip
def test_broken_lines(tmp_path: Path, predictions: str, references: str, compares: Compared, message: str) -> None:
    found, wanted = write(tmp_path, p_txt=predictions, r_txt=references)
    with pytest.raises(UniclozeError, match=message):
        read_pairs(found, [wanted], compares)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("p_jsonl", '{"prediction": "a"}\n{"prediction": \n',
     r"p.jsonl, line 2: this is not JSON \(Expecting value, column"),
    ("p_jsonl", '["a"]', r"p.jsonl, line 1: a record must be a JSON object"),
    ("p_jsonl", '{"text": "a", "id": 1}', r"p.jsonl, line 1: the field 'prediction' is missing \(it has text, id\)"),
    ("p_jsonl", '{"prediction": null}', r"p.jsonl, line 1 has None, which is not a text"),
    ("p_jsonl", "[" * 100_000, r"p.jsonl, line 1: this is not JSON \(nested too deep\)"),
    ("p_jsonl", '{"id": 2, "prediction": "a"}', r"p.jsonl, line 1 has the id 2, but .*r.jsonl, line 1 the id 1"),
    ("p_tsv", "index\tlabel\n0\ta\n",
     r"p.tsv, line 2: the field 'prediction' is missing \(it has index, label; the first line"),
    ("p_tsv", "id\tprediction\n0\n", r"p.tsv, line 2: 1 columns where 2 are expected"),
    ("p_csv", "a\n", r"p.csv is not of a known kind: give a file that ends in .txt, .tsv, .jsonl"),
])  # fmt: skip
def test_broken_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    found, wanted = write(tmp_path, **{name: text, "r_jsonl": '{"id": 1, "reference": "a"}'})
    with pytest.raises(UniclozeError, match=message):
        read_pairs(found, [wanted], "texts")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    wanted = write(tmp_path, r_txt="a\n")
    with pytest.raises(UniclozeError, match=r"There is no file .*none\.txt"):
        read_pairs(tmp_path / "none.txt", wanted, "texts")
    bad = tmp_path / "p.txt"
    bad.write_bytes(b"a\nb\xff\n")
    with pytest.raises(UniclozeError, match=r"p\.txt, line 2: this is not UTF-8"):
        read_pairs(bad, wanted, "texts")
    cut = tmp_path / "p.txt.gz"
    whole = gzip.compress(b"a\n" * 99)
    for raw in (whole[:-9], b"no gzip", whole[:14] + bytes([whole[14] ^ 255]) + whole[15:]):
        cut.write_bytes(raw)
        with pytest.raises(UniclozeError, match="is cut off or damaged"):
            read_pairs(cut, wanted, "texts")
    empty = write(tmp_path, e_jsonl='{"references": []}')
    with pytest.raises(UniclozeError, match=r"e\.jsonl, line 1 has no reference"):
        read_pairs(wanted[0], empty, "texts")
    with pytest.raises(UsageError, match="only texts can have more than one"):
        read_pairs(bad, wanted * 2, "labels")
    with pytest.raises(UsageError, match="Only the metric squad takes no-answer probabilities"):
        read_pairs(bad, wanted, "texts", na_probabilities=bad)


def test_measure_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, first, second = write(tmp_path, p_txt="a b c d\n", r1_txt="a b c x\n", r2_txt="a b c d\n")
    words = ["measure", "coco", "--predictions", str(found), "--references", str(first), str(second)]
    assert cli.main(words) == 0
    assert "bleu_4      100.00 %" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["bleu_4"] == pytest.approx(100)
    result = verbs.measure("coco", found, first, options={"profile": "squad-qg"})
    assert result.values["bleu_3"] < 100 and result.note == "Profile squad-qg."
    assert verbs.measure("diversity", found).values["average_length"] == 4
    assert cli.main(["metrics"]) == 0
    assert re.search(r"\nsquad +exact match", capsys.readouterr().out)
    assert cli.main(["metrics", "--json"]) == 0
    assert "rouge" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("words", "code", "message"), [
    (["rogue", "--predictions", "p", "--references", "r"], 2, "did you mean rouge?"),
    (["rouge"], 2, "are required: --predictions;"),
    (["rouge", "--predictions", "p"], 2, "No file of references"),
    (["rouge", "--predictions", "p", "--references", "r"], 1, "There is no file p"),
    (["rouge", "--predictions", "p", "--device", "cpu"], 2, "there is no option --device"),
    (["diversity", "--predictions", "p", "--na-probabilities", "q"], 2, "Only the metric squad takes"),
    (["--predictions", "p"], 2, "are required: METRIC;"),
    (["f1", "--predictions", "p", "--option", "positive"], 2, "write it as NAME=VALUE"),
])  # fmt: skip
def test_measure_reports_what_is_missing(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["measure", *words]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_predictions_are_measured_against_the_records_of_their_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, said = write(
        tmp_path, t_jsonl='{"id": "a", "sentence": "x", "label": 1}\n{"id": "b", "sentence": "y", "label": 0}\n',
        p_jsonl='{"id": "a", "prediction": "1", "scores": {}}\n{"id": "b", "prediction": "1"}\n',
    )  # fmt: skip
    files = ["--predictions", str(said), "--references", str(records)]
    assert cli.main(["measure-task", "classification", *files, "--task.fields", "{text: sentence}", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["accuracy"]["values"]["accuracy"] == 50 and results["accuracy"]["errors"]["accuracy"] > 30
    found = verbs.measure_task("classification", said, records, metric="f1", options={"positive": "1"})
    assert found.results["f1"].values["f1"] == pytest.approx(100 * 2 / 3)
    assert str(found).startswith("f1 of 2 items")


def test_a_choice_a_text_and_an_answer_are_measured_too(tmp_path: Path) -> None:
    chosen, choices, texts, pairs, answers, questions, turns, dialogue = write(
        tmp_path, c_jsonl='{"prediction": 1}\n{"prediction": 0}\n',
        d_jsonl='{"context": "x", "choices": ["p", "q"], "label": 1}\n{"context": "y", "choices": ["p", "q"], "label": 1}\n',
        e_txt="who ' s there ?\n", f_jsonl='{"context": "x", "answers": ["y"], "question": "Who\'s there?"}\n',
        g_jsonl='{"id": "q", "prediction": "Paris", "na_probability": -1.5}\n{"id": "r", "prediction": ""}\n',
        h_jsonl='{"id": "q", "context": "in Paris", "question": "?", "answers": [{"text": "Paris", "answer_start": 3}]}\n'
        '{"id": "r", "context": "in Rome", "question": "?", "answers": []}\n',
        i_jsonl='{"id": "0", "prediction": "two cats", "story": "s", "turn": 1}\n',
        j_jsonl='{"context": "x", "question": "How many?", "answers": ["Two cats"]}\n',
    )  # fmt: skip

    def values(task: str, predictions: Path, references: Path) -> dict[str, float]:
        results = verbs.measure_task(task, predictions, references).results
        return {name: value for result in results.values() for name, value in result.values.items()}

    assert values("choice", chosen, choices)["accuracy"] == 50
    assert values("squad-question-generation", texts, pairs)["bleu_4"] == pytest.approx(100)
    assert values("squad-v2", answers, questions)["f1"] == 100
    assert values("coqa-generative", turns, dialogue)["f1"] == 100


def test_how_sure_an_answer_is_may_be_a_whole_number(tmp_path: Path) -> None:
    """It was lost when records were given, and with it the best threshold."""
    questions, answers, odd = write(
        tmp_path,
        q_jsonl='{"id": "q", "context": "in Paris", "question": "?", "answers": [{"text": "Paris", "answer_start": 3}]}\n'
        '{"id": "r", "context": "in Rome", "question": "?", "answers": []}\n',
        a_jsonl='{"id": "q", "prediction": "Paris", "na_probability": 0}\n'
        '{"id": "r", "prediction": "Rome", "na_probability": 1}\n',
        o_jsonl='{"id": "q", "prediction": "Paris", "na_probability": "0.5"}\n{"id": "r", "prediction": ""}\n',
    )
    values = verbs.measure_task("squad-v2", answers, questions).results["squad"].values
    assert (values["exact"], values["best_exact"], values["best_exact_threshold"]) == (50, 100, 0)
    with pytest.raises(UniclozeError, match=r"o\.jsonl, line 1 has '0.5' in \"na_probability\": give a finite number"):
        verbs.measure_task("squad-v2", odd, questions)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"task": "quickstart"}, "quickstart is not a task recipe"),
    ({"task": "glue-mrpc", "metric": "rouge"}, "which compares texts, but its predictions are labels"),
    ({"task": "glue-mrpc", "overrides": {"task.labels": ["a"]}}, "task.labels cannot be changed here"),
    ({"task": "classification"}, "t.jsonl, line 2 the id b: put both files in the same order"),
])  # fmt: skip
def test_settings_that_do_not_fit_a_task_are_reported(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    records, said = write(
        tmp_path, t_jsonl='{"text": "x", "id": "a", "label": 1}\n{"text": "y", "id": "b", "label": 0}\n',
        p_jsonl='{"id": "a", "prediction": "1"}\n{"id": "c", "prediction": "1"}\n',
    )  # fmt: skip
    with pytest.raises(UniclozeError, match=message):
        verbs.measure_task(predictions=said, references=records, **arguments)  # type: ignore[arg-type]


def test_a_label_that_is_not_a_class_of_the_model_is_refused(tmp_path: Path) -> None:
    recipe, records, said = write(
        tmp_path, mine_yaml="base: classification\ntask: {labels: [a, b]}\n",
        t_tsv="text\tlabel\nx\ta\ny\t?\n", p_txt="a\nb\n",
    )  # fmt: skip
    with pytest.raises(UniclozeError, match=r"t\.tsv, line 3: the label '\?' is not a label of the task \(a, b\)"):
        verbs.measure_task(recipe, said, records)
