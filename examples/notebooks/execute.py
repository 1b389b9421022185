"""Re-run notebooks and save their outputs: `python examples/notebooks/execute.py [NOTEBOOK.ipynb ...]`.

Jupyter is not needed: code cells are plain Python, run in order in their own namespace and temporary folder. Printed text and
last values are saved; warnings and progress on stderr are not, nor are times and paths of this machine.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHOWN = {"_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml"}


def run_cells(notebook: dict[str, Any]) -> None:
    """Run the code cells and replace their outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = run_cell("".join(cell["source"]), f"cell {number}", namespace, count)


def run_cell(source: str, name: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one cell and return its outputs in notebook format."""
    statements = ast.parse(source, name).body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": as_lines(printed.getvalue())})
    if value is not None:
        data = shown(value)
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def shown(value: Any) -> dict[str, Any]:
    """Representations of a value by IPython's display methods; the text of a picture is the name of its type."""
    if hasattr(value, "_repr_mimebundle_"):
        data = value._repr_mimebundle_()
    else:
        data = {kind: getattr(value, name)() for name, kind in SHOWN.items() if hasattr(value, name)}
    pictures = {
        kind: base64.b64encode(content).decode() if isinstance(content, bytes) else as_lines(content)
        for kind, content in data.items()
    }
    text = f"<{type(value).__name__}>" if pictures else repr(value)
    return {**pictures, "text/plain": as_lines(text)}


def as_lines(text: str) -> list[str]:
    """Text as lines, in notebook format."""
    return text.splitlines(keepends=True)


def execute(notebook: Path, out: Path) -> None:
    """Run a notebook in a separate process and folder, and write it with its outputs.

    Raises:
        SystemExit: A cell failed; its traceback is on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        for file in HERE.iterdir():
            if file.suffix in (".py", ".yaml"):
                shutil.copy(file, folder)
        result = Path(folder) / "result.ipynb"
        command = [sys.executable, str(HERE / "execute.py"), "--here", str(notebook.resolve()), str(result)]
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        paths = [str(Path(path).resolve()) for entry in paths for path in entry.split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        if subprocess.run(command, cwd=folder, env=environment).returncode:
            sys.exit(f"{notebook}: a cell failed, see above; the file is unchanged")
        shutil.copy(result, out)


def main() -> None:
    """Re-run the named notebooks, or all, in place."""
    if sys.argv[1:2] == ["--here"]:
        source, result = map(Path, sys.argv[2:])
        notebook = json.loads(source.read_text(encoding="utf-8"))
        run_cells(notebook)
        result.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    for notebook in map(Path, sys.argv[1:] or sorted(map(str, HERE.glob("*.ipynb")))):
        print(notebook.name, file=sys.stderr)
        execute(notebook, notebook)


if __name__ == "__main__":
    main()
