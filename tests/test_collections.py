"""Nested collections of records, and records inside the fields of others."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from unicloze.errors import UniclozeError
from unicloze.records import read_records
from unicloze.records.files import PYTHON_DOCS_PARTS
from unicloze.records.record import Record
from unicloze.settings import TaskSettings
from unicloze.tasks import task_settings
from unicloze.tasks.columns import reference, targets_of, texts_of
from unicloze.text import python_docs

AUTO = task_settings(kind="generation")


def test_two_files_match_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n\n three \n", encoding="utf-8")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"eins\nzwei\ndrei\n"))
    records = read_records(Path(f"{tmp_path}/a.en,{tmp_path}/a.de.gz"), AUTO)
    assert [dict(record.fields) for record in records] == [
        {"source": "one", "target": "eins"},
        {"source": "", "target": "zwei"},
        {"source": "three", "target": "drei"},
    ]
    assert [record.id for record in records] == ["0", "1", "2"] and records[2].place.endswith("line 3")
    alone = read_records(tmp_path / "a.en", task_settings(kind="generation", format="parallel"))
    assert [dict(record.fields) for record in alone] == [{"source": "one"}, {"source": ""}, {"source": "three"}]
    (tmp_path / "b.txt").write_text("one\ntwo")
    assert len(read_records(tmp_path / "b.txt", AUTO)) == 2
    for names, message in (
        ("a.en,b.txt", "a.en has 3 lines and .*b.txt 2"),
        ("a.en,none", "there is no file .*none"),
        ("a.en,b.txt,b.txt", "names 3 files"),
    ):
        with pytest.raises(UniclozeError, match=message):
            read_records(Path(",".join(f"{tmp_path}/{name}" for name in names.split(","))), AUTO)


def archive(path: Path, **tables: str) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, text in tables.items():
            member = tarfile.TarInfo(f"folder/dstc7-task2-{name}.tsv")
            member.size = len(text.encode())
            file.addfile(member, io.BytesIO(text.encode()))
    return path


def test_dstc7(tmp_path: Path) -> None:
    settings = task_settings(kind="generation", format="dstc7")
    responses = "InstanceID\tReference1\t...\nx\tyes .\tno .\ny\tfine\n"
    context = "InstanceID\tDepth\tContext\ny\t2\tb c\nx\t1\td\n"
    records = read_records(archive(tmp_path / "a.tgz", context=context, gold_responses=responses), settings)
    assert [(record.id, record.get(AUTO, "context"), reference(record, AUTO)) for record in records] == [
        ("y", "b c", ["fine"]),
        ("x", "d", ["yes .", "no ."]),
    ]
    assert targets_of(records[1], AUTO) == ["yes .", "no ."]
    (tmp_path / "d.tgz").write_text("nonsense")
    archive(tmp_path / "b.tgz", context="InstanceID\tDepth\tContext\nz\t2\tb\n", gold_responses=responses)
    archive(tmp_path / "c.tgz", context="x")
    for name, message in (
        ("b.tgz", "line 2"),
        ("c.tgz", "contains no dstc7-task2-gold_responses.tsv"),
        ("none.tgz", "there is no file"),
        ("d.tgz", "this is not the archive"),
    ):
        with pytest.raises(UniclozeError, match=message):
            read_records(tmp_path / name, settings)


def test_docstrings_are_parted_by_module(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "What follows the summary\n    goes on over lines."
    modules = [(f"m{i}", [("f()", f"Say {i}.\n\n{body}"), ("g()", "No body.")]) for i in range(40)]
    monkeypatch.setattr(python_docs, "_modules", lambda: iter([*modules, modules[0]]))
    python_docs.summaries.cache_clear()
    try:
        train, dev = (read_records(Path(part), AUTO) for part in PYTHON_DOCS_PARTS)
        with pytest.raises(UniclozeError, match="there are no records python-docs/test"):
            read_records(Path("python-docs/test"), AUTO)
    finally:
        python_docs.summaries.cache_clear()
    assert len(train) + len(dev) == 40 and 0 < len(dev) < 15, "duplicates are dropped"
    assert train[0].fields["source"] == "What follows the summary goes on over lines."
    assert not {record.id.split(":")[0] for record in train} & {record.id.split(":")[0] for record in dev}


def test_nested_fields_are_read() -> None:
    answers = [{"text": "one"}, {"text": "two"}]
    fields = {"a.b": "plain", "answers": answers, "story": {"text": "s"}, "lines": ["x", "y"]}
    record = Record("0", fields, "line 1")

    def given(name: str) -> TaskSettings:
        return task_settings(kind="generation", fields={"role": name})

    assert record.get(given("a.b"), "role") == "plain" and record.get(given("answers.1.text"), "role") == "two"
    for name, texts in {"answers.0": ["one"], "answers": ["one", "two"], "story": ["s"], "lines": ["x", "y"]}.items():
        assert texts_of(record, given(name), "role") == texts
    for name, found in {
        "answers.2": r"""'answers' is \[{"text": "one"}, {"text": "two"}\]""",
        "story.none": """'story' is {"text": "s"}""",
        "lines.x": r"""'lines' is \["x", "y"\]""",
    }.items():
        assert record.get(given(name), "role") is None
        with pytest.raises(UniclozeError, match=f"line 1: there is no '{name}', as {found}: fix the record"):
            texts_of(record, given(name), "role")
    with pytest.raises(UniclozeError, match=r"line 1: the field 'a\.c' is missing"):
        texts_of(record, given("a.c"), "role")


def test_the_real_files(shared_data: Path) -> None:
    pairs = read_records(Path(f"{shared_data}/mt/val.en.gz,{shared_data}/mt/val.de.gz"), AUTO)
    assert len(pairs) == 1014 and pairs[0].fields["target"].startswith("Eine Gruppe")
    questions = read_records(Path(",".join(f"{shared_data}/qg/du2017_{of}-dev.txt.gz" for of in ("src", "tgt"))), AUTO)
    assert len(questions) == 10570 and questions[0].fields["target"].endswith("super bowl 50 ?")
    responses = task_settings(kind="generation", format="dstc7")
    dialogues = read_records(shared_data / "dialog" / "dstc7-task2-human_eval.tgz", responses)
    assert len(dialogues) > 900 and all(reference(record, responses) for record in dialogues)
    papers = read_records(shared_data / "summarization" / "scitldr-A_dev.jsonl.gz", AUTO)
    assert len(papers) == 619 and len(reference(papers[0], AUTO)) > 1 and len(texts_of(papers[0], AUTO, "source")) == 6
    tales = task_settings(kind="generation", fields={"answer": "answers.0", "target": "question"})
    told = read_records(shared_data / "qa" / "fairytaleqa_val.jsonl.gz", tales)
    assert len(told) == 1025 and texts_of(told[0], tales, "answer") == ["a well-to-do farmer"]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """A field may hold a carriage return, a line separator or a next line, in tables and in DSTC7's archive."""
    odd = "a\u2028b\x85c\rd\x0be"
    (tmp_path / "a.tsv").write_bytes(f"text\tlabel\r\n{odd}\tx\r\n\n{odd}\ty".encode())
    found = read_records(tmp_path / "a.tsv", TaskSettings())
    assert [dict(record.fields) for record in found] == [{"text": odd, "label": "x"}, {"text": odd, "label": "y"}]
    assert [record.place for record in found] == [f"{tmp_path / 'a.tsv'}, line {number}" for number in (2, 4)]
    (tmp_path / "a.txt").write_bytes(f"{odd}\n{odd}\n".encode())
    assert len(read_records(tmp_path / "a.txt", TaskSettings())) == 2
    context, gold = f"key\tcontext\tx\n1\tx\t{odd}\n", f"key\tgold\n1\t{odd}\n"
    read = read_records(archive(tmp_path / "d.tgz", context=context, gold_responses=gold), TaskSettings(format="dstc7"))
    assert [(record.fields["context"], record.fields["references"]) for record in read] == [(odd, [odd])]
