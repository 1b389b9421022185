from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unicloze.text import python_docs
from unicloze.text.documents import read_documents

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


def test_modules_parsed_side_by_side_are_the_same(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(7):
        (small_corpus / "library" / f"more_{i}.py").write_text(SOURCE.replace("A shape", f"Shape {i}, \\ud800 and é"))
    alone = list(python_docs.python_docs())
    monkeypatch.setattr(python_docs, "_FILES_A_PROCESS", 1)
    monkeypatch.setattr(python_docs, "_parsed", lambda file: pytest.fail("parsed in this process"))
    monkeypatch.setattr(python_docs, "usable_cores", lambda: 3)
    assert list(python_docs.python_docs()) == alone and len(alone) == 11


@pytest.mark.parametrize("executable", ["/bin/false", "/bin/cat", "/nowhere/python", "", None])
def test_what_a_parser_leaves_is_parsed_here(
    executable: str | None, small_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(7):
        (small_corpus / "library" / f"{'long' * 50}_{i}.py").write_text(SOURCE)
    alone = list(python_docs.python_docs())
    monkeypatch.setattr(python_docs, "_FILES_A_PROCESS", 1)
    monkeypatch.setattr(python_docs, "usable_cores", lambda: 2)
    monkeypatch.setattr(python_docs.sys, "executable", executable)
    assert list(python_docs.python_docs()) == alone


def test_a_file_that_cannot_be_read_is_named(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small_corpus / "library" / "gone.py").symlink_to(small_corpus / "nowhere")
    monkeypatch.setattr(python_docs, "_FILES_A_PROCESS", 1)
    monkeypatch.setattr(python_docs, "usable_cores", lambda: 2)
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


def test_the_name_holds_the_versions() -> None:
    name = python_docs.file_name()
    assert name.startswith("python-docs-3.") and "-numpy-" in name and "-torch-" in name and "+" not in name
