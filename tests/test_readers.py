from __future__ import annotations

import errno
import gzip
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unicloze.errors import UniclozeError
from unicloze.settings import TokenizerSettings
from unicloze.text import documents as readers
from unicloze.text import python_docs
from unicloze.text.documents import Tally, find_files, other_files, pieces_of, read_documents, tail_start
from unicloze.text.tokenizers import Tokenizer

TEXT = "First line.\nSecond line.\n\nA second document. Grüße\n \t\n\n\nA third one\n"
DOCUMENTS = ["First line.\nSecond line.", "A second document. Grüße", "A third one"]


def texts(path: Path, field: str = "text", tally: Tally | None = None) -> list[str]:
    return [document.text.strip() for document in read_documents(path, field, tally=tally)]


def write(path: Path, content: bytes) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_blank_lines_separate_documents_of_txt_and_lines_those_of_jsonl(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.txt{ending}", TEXT.encode())
    assert texts(path) == DOCUMENTS
    assert [document.line for document in read_documents(path)] == [1, 4, 8]
    lines = "\n".join(json.dumps({"id": i, "body": text}) for i, text in enumerate(DOCUMENTS))
    assert texts(write(tmp_path / f"a.jsonl{ending}", lines.encode()), "body") == DOCUMENTS


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_txt_does_not_depend_on_the_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(readers, "_CHUNK_BYTES", block)
    path = write(tmp_path / "a.txt", ("\n\n" + TEXT.replace("\n", "\r\n")).encode())
    assert texts(path) == DOCUMENTS


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": [*DOCUMENTS, None]}), tmp_path / "a.parquet", row_group_size=2)
    tally = Tally()
    assert texts(tmp_path / "a.parquet", tally=tally) == DOCUMENTS
    assert tally.empty == 1
    assert [document.line for document in read_documents(tmp_path / "a.parquet")] == [1, 2, 3]
    with pytest.raises(UniclozeError, match=r'no column "body".*--data.text_field.*id, text'):
        texts(tmp_path / "a.parquet", "body")
    pq.write_table(pa.table({"id": [1], "n": pa.array([2]).dictionary_encode()}), tmp_path / "a.parquet")
    for field, held in (("id", "int64"), ("n", ".*int64.*")):
        with pytest.raises(UniclozeError, match=rf'"{field}" .* holds {held}, not text'):
            texts(tmp_path / "a.parquet", field)


@pytest.mark.parametrize("kind", [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.binary()),
], ids=str)  # fmt: skip
def test_every_arrow_type_of_text_is_read_from_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    values = [*DOCUMENTS, None, DOCUMENTS[0]]
    pq.write_table(pa.table({"text": pa.array(values).cast(kind)}), tmp_path / "a.parquet")
    assert pq.read_schema(tmp_path / "a.parquet").field("text").type == kind
    assert texts(tmp_path / "a.parquet") == [*DOCUMENTS, DOCUMENTS[0]]


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def test_folders_and_globs_are_sorted_and_files_of_other_kinds_counted(tmp_path: Path) -> None:
    write_files(tmp_path, "b/z.txt", "a.txt", "c.jsonl", "README.md", "b/more.md", "data.csv", "LICENSE", ".git/a.yaml")
    assert [file.name for file in find_files(tmp_path)] == ["a.txt", "z.txt", "c.jsonl"]
    assert [file.name for file in find_files(tmp_path / "**" / "*.txt")] == ["a.txt", "z.txt"]
    assert find_files(tmp_path / "a.txt") == [tmp_path / "a.txt"]
    assert list(other_files(tmp_path).items()) == [(".md", 2), ("without an ending", 1), (".csv", 1)]
    assert other_files(tmp_path / "*.*") == {".md": 1, ".csv": 1} and other_files(tmp_path / "a.txt") == {}


def test_links_are_followed_once_and_hidden_files_left_alone(tmp_path: Path) -> None:
    write_files(tmp_path / "corpus", "a.txt", "._a.txt", ".hidden/b.txt")
    write_files(tmp_path / "elsewhere", "c.txt", "more/d.txt")
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "more" / "around").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "lost.txt").symlink_to(tmp_path / "missing.txt")
    expected = ["a.txt", "again/c.txt", "again/more/d.txt"]
    assert [str(file.relative_to(tmp_path / "corpus")) for file in find_files(tmp_path / "corpus")] == expected
    assert other_files(tmp_path / "corpus") == {"hidden": 2, "broken link": 1}
    assert find_files(tmp_path / "corpus" / "._a.txt") == [tmp_path / "corpus" / "._a.txt"]


def test_folders_that_a_glob_names_are_searched(tmp_path: Path) -> None:
    write_files(tmp_path, "en/deep/a.txt", "de/b.txt", "c.txt", "d.txt/e.txt", "en/notes.md")
    expected = ["c.txt", "d.txt/e.txt", "de/b.txt", "en/deep/a.txt"]
    for pattern in ("*", "**", "**/*"):
        assert [str(file.relative_to(tmp_path)) for file in find_files(tmp_path / pattern)] == expected
        assert other_files(tmp_path / pattern) == {".md": 1}
    assert [file.name for file in find_files(tmp_path / "*.txt")] == ["c.txt", "e.txt"]


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    write_files(tmp_path, "closed/a.txt", "a.txt")
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UniclozeError, match=r"The folder .*closed is not readable"):
        find_files(tmp_path)


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".txt.gz", ".parquet"])
def test_no_beginning_of_a_file_is_taken_for_the_whole(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", b"".join(b'{"text": "%d"}\n' % number for number in range(5000)))
    if ending == ".parquet":
        pq.write_table(pa.table({"text": [str(number) for number in range(5000)]}), path)
    whole = path.read_bytes()
    for size in (0, 1, 9, 60, -200):
        path.write_bytes(whole[:size])
        with pytest.raises(UniclozeError, match=rf"a{ending} is truncated or damaged"):
            texts(path)


def test_places_without_text_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, "notes.md")
    with pytest.raises(UniclozeError, match=r"There is no text file at .*missing"):
        find_files(tmp_path / "missing")
    with pytest.raises(UniclozeError, match="holds no text"):
        find_files(tmp_path)
    with pytest.raises(UniclozeError, match=r"notes.md is not of a known file type.*\.jsonl"):
        find_files(tmp_path / "notes.md")


def test_bad_utf8_and_nul_are_repaired_counted_and_located(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"good\n\nbad \xff byte\n\nnul\0 here\n\n\0\n")
    tally = Tally()
    assert texts(path, tally=tally) == ["good", "bad \ufffd byte", "nul here"]
    assert (tally.documents, tally.empty, tally.replaced, tally.nul) == (3, 1, 1, 2)
    assert tally.first_bad == f"{path}:3, byte 4 of the text"
    tally = Tally()
    path = write(tmp_path / "b.txt", "a \ufffd \ufffd".encode() + b" \xe9")
    assert texts(path, tally=tally) == ["a \ufffd \ufffd \ufffd"] and tally.replaced == 1


def test_jsonl_escapes_are_repaired_and_empty_documents_counted_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rb'{"text": "half \ud800 pair"}' + b"\n" + rb'{"text": "nul \u0000"}')
    tally = Tally()
    assert texts(path, tally=tally) == ["half \ufffd pair", "nul"]
    assert (tally.replaced, tally.nul, tally.first_bad) == (1, 1, f"{path}:1")
    texts(path, tally=tally)
    assert (tally.replaced, tally.nul, tally.first_bad) == (2, 2, f"{path}:1")
    path = write(tmp_path / "b.jsonl", b'{"text": ""}\n\n{"text": " \\n"}\n{"text": null}\n{"text": "x"}\n')
    tally = Tally()
    assert texts(path, tally=tally) == ["x"] and (tally.documents, tally.empty) == (1, 3)


@pytest.mark.parametrize("first", ["\ufeff", "\ufeff\n", "\ufeff \r\n", "\ufeff\ufeff\n"])
def test_byte_order_marks(tmp_path: Path, first: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{first}{{"text": "x"}}\n'.encode())
    assert [(document.text, document.line) for document in read_documents(path)] == [("x", 1 + first.count("\n"))]
    assert texts(write(tmp_path / "a.txt", "\ufefftext".encode())) == ["text"]
    with pytest.raises(UniclozeError, match=r"UTF-16.*iconv"):
        texts(write(tmp_path / "b.txt", "text".encode("utf-16")))


@pytest.mark.parametrize(("line", "message"), [
    (b'{"text": "x"', "is not JSON"),
    (b'["x"]', "is not a JSON object"),
    (b'{"body": "x", "n": 1}', r'has no field "text": set --data.text_field to one of its text fields \(body\)'),
    (b'{"text": 3}', 'no text in the field "text"'),
])  # fmt: skip
def test_bad_lines_are_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(UniclozeError, match=rf"a\.jsonl:2 .*{message}"):
        texts(path)


def test_a_file_without_blank_lines_is_cut_at_white_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST_DOCUMENT", 1000)
    path = write(tmp_path / "a.txt", "".join(f"line number {i}\n" for i in range(500)).encode())
    documents = list(read_documents(path))
    assert "".join(document.text for document in documents) == path.read_text()
    assert all(len(document.text) <= 1000 and document.text.endswith("\n") for document in documents)
    assert documents[1].line == documents[0].text.count("\n") + 1


def test_a_cut_is_at_a_late_line_or_else_at_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST_DOCUMENT", 100)
    early = write(tmp_path / "a.txt", b"x" * 30 + b"\n" + b"word " * 50)
    assert [len(document.text) for document in read_documents(early)][:2] == [96, 100]
    late = write(tmp_path / "b.txt", b"x" * 60 + b"\n" + b"word " * 50)
    assert [len(document.text) for document in read_documents(late)][:2] == [61, 100]
    monkeypatch.setattr(readers, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(readers, "_CHUNK_BYTES", 100)
    path = write(tmp_path / "c.txt", b"word " * 220 + b"end\n\nsecond\n\nthird")
    assert texts(path) == [("word " * 200).strip(), "word " * 20 + "end", "second", "third"]


@pytest.mark.parametrize("character", ["\u00fc", "\u6f22", "\U0001f600"])
def test_a_text_without_white_space_is_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    monkeypatch.setattr(readers, "LONGEST_DOCUMENT", 1001)
    path = write(tmp_path / "a.txt", (character * 1500).encode())
    tally = Tally()
    documents = list(read_documents(path, tally=tally))
    assert "".join(document.text for document in documents) == character * 1500
    assert all(len(document.text.encode()) <= 1001 for document in documents)
    assert (tally.replaced, tally.first_bad) == (0, None)
    monkeypatch.setattr(readers, "MOST_REPLACED", 1.0)
    assert "".join(texts(write(tmp_path / "b.txt", b"\xbf" * 2500), tally=tally)) == "\ufffd" * 2500
    assert tally.replaced == 2500


def test_the_digest_covers_the_raw_bytes(tmp_path: Path) -> None:
    tallies = Tally(), Tally(), Tally()
    path = write(tmp_path / "a.jsonl.gz", b'{"text": "x"}\n')
    for tally in tallies[:2]:
        texts(path, tally=tally)
    path.write_bytes(path.read_bytes() + gzip.compress(b'{"text": "y"}\n'))
    assert texts(path, tally=tallies[2]) == ["x", "y"]
    first, second, third = (tally.digest.hexdigest() for tally in tallies)
    assert first == second != third


@pytest.mark.parametrize("content", [
    random.Random(1).randbytes(2000), ("Москва слезам не верит. " * 40).encode("cp1251"),
    b"\x89PNG" + bytes(range(256)) * 9,
], ids=["random", "another encoding", "a picture"])  # fmt: skip
def test_a_file_that_is_not_text_is_refused(content: bytes, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.txt"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            UniclozeError, match=rf"{name} is not text in UTF-8: \d+% of the characters at its beginning"
        ):
            list(read_documents(tmp_path / name))
        (tmp_path / name).unlink()
    (tmp_path / "a.txt").write_bytes(("Où est la bibliothèque, s'il vous plaît ? " * 40).encode("latin-1"))
    assert len(list(read_documents(tmp_path))) == 1  # few characters are lost, and counted


# Long texts are cut where it does not change their tokens


WORDS = ["one", "two", "Three", "caf\u00e9", "\u6f22\u5b57", "na\u00efve", "4.5", "it's"]
SPACES = [" ", "\n", "\t", "\r\n", "  ", ".\n", "\u00a0", "\u2028", "\f", "\v", "\x1c", "\x85", " \u0301", "\u200b"]


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PIECE", 8)


def tokenizer(**settings: object) -> Tokenizer:
    texts = [f"{word}{space}" * 3 for word in WORDS for space in SPACES]
    return Tokenizer.train(texts, TokenizerSettings(vocab_size=400, **settings))  # type: ignore[arg-type]


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("kind", [{}, {"lowercase": False}, {"strip_accents": True}, {"kind": "bpe"}], ids=str)
def test_pieces_have_the_tokens_of_the_text(kind: dict[str, object]) -> None:
    made, draw = tokenizer(**kind), random.Random(0)
    for _ in range(100):
        stretches = ("".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(8)) for _ in range(8))
        text = "one two".join(stretches)
        pieces = list(pieces_of(text))
        assert len(pieces) > 2 and "".join(pieces) == text
        tokens = [token for ids in made.encode_batch(pieces) for token in ids.tolist()]
        assert tokens == made.encode_batch([text])[0].tolist()


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("end", ["", ",", "\u3002"])
@pytest.mark.parametrize("character", ["e\u0301", "\u304b\u3099", "\u1112\u1161\u11ab", "\U0001f469\u200d\U0001f467"])
def test_characters_stay_whole_where_nothing_else_separates_them(character: str, end: str) -> None:
    text = (character + end) * 500
    pieces = list(pieces_of(text))
    assert len(pieces) > 3 and "".join(pieces) == text
    assert all(piece.startswith(character) for piece in pieces)
    if not end:
        assert all(text[at:].startswith(character[:2]) for at in (tail_start(text, size) for size in range(2, 40)))
        assert len(text) - tail_start(f"{text}\n\u5b8c", 1000) > 100, "the next word is far"


@pytest.mark.usefixtures("short_pieces")
def test_a_text_is_cut_at_punctuation_only_where_it_is_too_long() -> None:
    """SentencePiece adds a space at the beginning of each piece."""
    assert list(pieces_of("a,b" * 42)) == ["a,b" * 42]
    assert {piece[-1] for piece in list(pieces_of("a,b" * 100))[:-1]} == {","}
    marks = "aa" + "\u0301" * 1000
    assert "".join(pieces_of(marks)) == marks
    for text in ("word " * 500, "x" * 999, "\n" * 999, "a,b" * 300, "ab\n" * 300, marks):
        *full, last = map(len, pieces_of(text))
        assert all(8 <= length <= 128 for length in full) and 0 < last <= 128, text[:9]


# The documentation of Python


SOURCE = '''"""A module of a test.

More about it.
"""

import nowhere_to_be_found


class Shape(Base):
    """A shape."""

    def area(self, unit: str = "m2") -> float:
        """The area."""

    def silent(self):
        return 1

    if True:

        async def later(self, *args, **kwargs):
            """Comes later."""


def outer():
    def inner():
        """Found too."""
'''


@pytest.fixture
def small_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of two modules, and a stand-in for numpy."""
    library, site = tmp_path / "library", tmp_path / "site"
    (library / "pydoc_data").mkdir(parents=True)
    (library / "pydoc_data" / "topics.py").write_text("topics = {'while': 'The while statement', 'assert': 'Assert'}")
    (library / "shapes.py").write_text(SOURCE)
    (library / "broken.py").write_text('"""Doc."""\ndef (:')
    (library / "test").mkdir()
    (library / "test" / "test_shapes.py").write_text(SOURCE)
    (site / "numpy").mkdir(parents=True)
    (site / "numpy" / "__init__.py").write_text('"""Numbers."""')
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(library))
    monkeypatch.setattr(python_docs, "_LEAST_CHARACTERS", 1)
    monkeypatch.setattr(sys, "path", [str(site)])
    return tmp_path


def test_topics_and_docstrings_in_order(small_corpus: Path) -> None:
    documents = {document.path: document.text for document in python_docs.python_docs()}
    assert list(documents) == ["pydoc_data.topics:assert", "pydoc_data.topics:while", "shapes", "numpy"]
    assert documents["pydoc_data.topics:while"] == "The while statement"
    assert documents["shapes"] == (
        "shapes\n\nA module of a test.\n\nMore about it.\n\n"
        "class Shape(Base)\n\nA shape.\n\n"
        "Shape.area(self, unit: str='m2')\n\nThe area.\n\n"
        "Shape.later(self, *args, **kwargs)\n\nComes later.\n\n"
        "inner()\n\nFound too."
    )


def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "_FILES_A_PROCESS", 1)
    monkeypatch.setattr(python_docs, "usable_cores", lambda: 3)


def test_modules_parsed_side_by_side_are_the_same(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(7):
        (small_corpus / "library" / f"more_{i}.py").write_text(SOURCE.replace("A shape", f"Shape {i}, \\ud800 and é"))
    alone = list(python_docs.python_docs())
    side_by_side(monkeypatch)
    monkeypatch.setattr(python_docs, "_parsed", lambda file: pytest.fail("parsed in this process"))
    assert list(python_docs.python_docs()) == alone and len(alone) == 11


@pytest.mark.parametrize("executable", ["/bin/false", "/bin/cat", "/nowhere/python", "", None])
def test_what_a_parser_leaves_is_parsed_here(
    executable: str | None, small_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(7):
        (small_corpus / "library" / f"{'long' * 50}_{i}.py").write_text(SOURCE)
    alone = list(python_docs.python_docs())
    side_by_side(monkeypatch)
    monkeypatch.setattr(python_docs.sys, "executable", executable)
    assert list(python_docs.python_docs()) == alone


def test_a_file_that_cannot_be_read_is_named(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small_corpus / "library" / "gone.py").symlink_to(small_corpus / "nowhere")
    side_by_side(monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"gone\.py"):
        list(python_docs.python_docs())


def test_more_files_than_a_pipe_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    files = [("one", str(tmp_path / "one.py"))] * 3000
    monkeypatch.setattr(python_docs.sys, "executable", "/bin/false")
    assert list(python_docs._parsed_side_by_side(files, 2)) == [python_docs._parsed(files[0])] * 3000


def test_the_file_is_written_once_and_the_same(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = python_docs.write_python_docs(small_corpus)
    content = first.read_bytes()
    assert first.name == python_docs.file_name()
    assert [document.text for document in read_documents(first)] == [
        document.text for document in python_docs.python_docs()
    ]
    first.unlink()
    assert python_docs.write_python_docs(small_corpus).read_bytes() == content
    monkeypatch.setattr(python_docs, "python_docs", lambda: pytest.fail("parsed again"))
    assert python_docs.write_python_docs(small_corpus).read_bytes() == content
