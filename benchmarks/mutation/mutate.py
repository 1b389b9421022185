"""Measures how strong the tests are: the share of a sample of single mutations that they detect.

    make mutate [MODULES="training/loop text/shards"] [COUNT=150] [SEED=0] [JOBS=2] [TESTS=tests/test_shards.py] [BUDGET=300]
        [MARKS="not journey"]

Only the tests of `make test` count, unless MARKS, pytest's `-m`, asks for others. First every test file runs once in a
separate process, and coverage.py records which test runs which line. Then, for each mutation, the tests that run the
mutated line run on a copy of the tree, until one fails: files that import the module first, quick ones before others. A
mutation whose tests take over four times as long as they did while lines were recorded counts as killed. Tests beyond BUDGET
seconds are skipped, and the table of survivors shows how many.

Results are kept in build/mutate and reused while they are valid. Recorded lines are valid until the package or that test file
changes; a kill until the package or the killing test's file does; any other result until the package, a test or the budget
does. The summary is printed and written to build/mutate/survivors.md. Mutations listed in `equivalent.yaml` are not counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import coverage
from tqdm import tqdm

from mutants import MODULES, PACKAGE, changed, drawn, module_file, read_equivalents, shares, summary
from mutation_sites import mutated_source, sites

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "mutate"
RESULTS = BUILD / "results.jsonl"
NOT_COPIED = (".git", ".venv", "build", "dist", "runs", "__pycache__", "*.egg-info", ".*_cache")
FIRST_SECONDS = 20
"""Tests up to this many seconds run first; if they kill a mutation, no other file has to be collected."""
START_SECONDS = 120
COVERAGE = """[run]
data_file = {folder}/data
parallel = true
include = */src/unicloze/*
context = ${{MUTATION_CONTEXT-}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""


@dataclass(frozen=True)
class Mutant:
    """One mutation of the sample; `source` is the module with it, `lines` those of `mutation_sites.Site`."""

    module: str
    line: int
    operator: str
    old: str
    new: str
    source: str
    lines: range | None


@cache
def fingerprints() -> dict[str, str]:
    """Checksums of the package and of the tests at the first call."""
    package = (file for file in (ROOT / PACKAGE).rglob("*") if file.is_file() and file.suffix != ".pyc")
    files = [*package, *ROOT.glob("tests/**/*.py"), HERE / "mutation_plugin.py"]
    return {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


@cache
def digest(*tests: str) -> str:
    """Checksum of the package, the tests' shared modules and the given test files."""
    of_tests = {name for name in fingerprints() if name.startswith("tests/") and Path(name).name.startswith("test_")}
    names = [name for name in fingerprints() if name not in of_tests or name in tests]
    return hashlib.sha256(repr([(name, fingerprints()[name]) for name in names]).encode()).hexdigest()[:16]


def sample(modules: list[str], count: int, seed: int) -> list[Mutant]:
    """Equally many mutations of each module, in turn; mutations that are invalid or change nothing are skipped."""
    found: list[list[Mutant]] = []
    for name, share in zip(modules, shares(count, len(modules)), strict=True):
        file = module_file(ROOT, name)
        source = (ROOT / file).read_text(encoding="utf-8")
        module, places = sites(source)
        chosen: list[Mutant] = []
        for site in drawn(places, f"{seed}/{file}") if share else ():
            new = mutated_source(module, site)
            try:
                same = ast.dump(ast.parse(new)) == ast.dump(ast.parse(source))
            except SyntaxError:
                continue
            if not same:
                chosen.append(Mutant(str(file), site.line, site.operator, *changed(source, new), new, site.lines))
            if len(chosen) == share:
                break
        found.append(chosen)
    return [part[turn] for turn in range(max(map(len, found))) for part in found if turn < len(part)]


class Trees:
    """Copies of the working tree, one per job, and pytest in them, for tests with the given marks."""

    def __init__(self, jobs: int, marks: str) -> None:
        self.marks = marks
        self.free: queue.Queue[Path] = queue.Queue()
        self.running: set[subprocess.Popen[str]] = set()
        for number in range(jobs):
            tree = BUILD / f"tree-{number}" / ROOT.name
            shutil.rmtree(tree.parent, ignore_errors=True)
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
            self.free.put(tree)

    def pytest(self, tree: Path, files: Iterable[str], limit: float, **environment: str) -> tuple[int | None, str]:
        """Its exit status (None at the time limit) and the end of its output, once it and its children have ended."""
        options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-p", "mutation_plugin"]
        options += ["--basetemp", str(tree.parent / "temporary"), *([] if "MUTATION_RECORD" in environment else ["-x"])]
        command = [sys.executable, "-m", "pytest", *options, "-m", self.marks, *files]
        environment |= {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(HERE)]), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, cwd=tree, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self.running.add(process)
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output[-3000:]
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            self.end(process)

    def end(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.running.discard(process)


def recorded(test: str) -> Path:
    return BUILD / "coverage" / Path(test).stem


def record(trees: Trees, test: str) -> None:
    """Record which test of a file runs which line, unless a valid record exists."""
    folder, key = recorded(test), f"{digest(test)}, {trees.marks}"
    if (folder / "key").is_file() and (folder / "key").read_text() == key:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "coveragerc").write_text(COVERAGE.format(folder=folder))
    settings = {"COVERAGE_PROCESS_START": str(folder / "coveragerc"), "MUTATION_RECORD": str(folder / "tests.json")}
    tree = trees.free.get()
    try:
        status, output = trees.pytest(tree, [test], 3600, **settings)
    finally:
        trees.free.put(tree)
    if status not in (0, 1, 5):
        raise SystemExit(f"{test} does not run without a mutation (status {status}):\n{output}")
    data = coverage.Coverage(data_file=str(folder / "data"), config_file=False)
    data.combine([str(folder)])
    data.save()
    (folder / "key").write_text(key)


@cache
def contexts(test: str, module: str) -> dict[int, list[str]]:
    """The tests of a file that ran each line of a module."""
    data = coverage.CoverageData(str(recorded(test) / "data"))
    data.read()
    names = [name for name in data.measured_files() if name.endswith(f"/{module}")]
    return {line: who for name in names for line, who in data.contexts_by_lineno(name).items()}


@cache
def facts(test: str) -> dict[str, Any]:
    return dict(json.loads((recorded(test) / "tests.json").read_text(encoding="utf-8")))


def covering(mutant: Mutant, test: str) -> list[str]:
    """Tests of a file that can kill a mutation; if the line runs only on import, all that run the module."""
    ran = contexts(test, mutant.module)
    lines = ran.keys() if mutant.lines is None else ran.keys() & set(mutant.lines)
    who = {name for line in lines for name in ran[line]}
    if "" in who:
        who = {name for names in ran.values() for name in names}
    return [name for name, each in facts(test)["tests"].items() if name in who or who & set(each["fixtures"])]


def seconds(test: str, names: Iterable[str]) -> float:
    """Duration of tests of a file, including shared fixtures."""
    taken: dict[str, float] = facts(test)["seconds"]
    wanted = {each for name in names for each in (name, *facts(test)["tests"][name]["fixtures"])}
    return sum(taken.get(each, 0.0) for each in wanted)


@cache
def imports(test: str, module: str) -> bool:
    """Whether a test file imports a module by name."""
    dotted = module.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    pattern = rf"^\s*(from|import) {package}(\.{name}\b| import .*\b{name}\b)"
    return re.search(pattern, (ROOT / test).read_text(encoding="utf-8"), re.MULTILINE) is not None


def plan(mutant: Mutant, tests: Iterable[str], budget: float) -> tuple[list[dict[str, list[str]]], int]:
    """The tests to run by file, the module's own first, in one or two batches; and how many are beyond the budget."""
    chosen = {test: names for test in tests if (names := covering(mutant, test))}
    goes: list[dict[str, list[str]]] = [{}, {}]
    spent, left_out = 0.0, 0
    for test in sorted(chosen, key=lambda test: (not imports(test, mutant.module), seconds(test, chosen[test]))):
        names = sorted(chosen[test], key=lambda name: facts(test)["seconds"][name])
        while names and spent + seconds(test, names) > budget and (spent or len(names) > 1):
            names.pop()
            left_out += 1
        if names:
            spent += seconds(test, names)
            goes[bool(goes[0]) and spent > FIRST_SECONDS][test] = names
    return [go for go in goes if go], left_out


def tried(trees: Trees, mutant: Mutant, tests: list[str], budget: float) -> dict[str, Any]:
    """Run the tests of one mutation and return the result."""
    goes, left_out = plan(mutant, tests, budget)
    result = {name: getattr(mutant, name) for name in ("module", "line", "operator", "old", "new")}
    result |= {"verdict": "survived" if goes else "uncovered", "by": "", "left_out": left_out}
    result["tests"] = sum(len(names) for go in goes for names in go.values())
    tree = trees.free.get()
    file, failed, select = tree / mutant.module, tree.parent / "failed", tree.parent / "select.json"
    original = file.read_bytes()
    try:
        file.write_text(mutant.source, encoding="utf-8")
        for go in goes:
            failed.unlink(missing_ok=True)
            run = [name for names in go.values() for name in names]
            known = [name for test in go for name in facts(test)["known"]]
            select.write_text(json.dumps({"run": run, "known": known}))
            limit = START_SECONDS + 4 * sum(seconds(test, names) for test, names in go.items())
            status, output = trees.pytest(tree, go, limit, MUTATION_SELECT=str(select), MUTATION_FAILED=str(failed))
            if status in (3, 4):
                raise SystemExit(f"pytest ended with status {status}:\n{output}")
            if status not in (0, 5):
                result["verdict"] = "timeout" if status is None else "killed"
                result["by"] = failed.read_text() if failed.exists() else f"exit status {status}"
                break
    finally:
        file.write_bytes(original)
        for compiled in file.parent.glob(
            f"__pycache__/{file.stem}.*.pyc"
        ):  # with the same second and size, it would be used
            compiled.unlink()
        trees.free.put(tree)
    return result


def held_by(result: dict[str, Any], everything: str) -> str:
    """What must be unchanged for a result to be valid."""
    test = result["by"].partition("::")[0]
    return digest(test) if test in fingerprints() else everything


def earlier(mutants: Iterable[Mutant], everything: str, marks: str) -> dict[Mutant, dict[str, Any]]:
    """Results of earlier calls with these marks that are still valid."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.is_file() else []
    found = [result for result in map(json.loads, lines) if result.get("marks") == marks]
    kept = [result for result in found if result["holds"] == held_by(result, everything)]
    names = ("module", "line", "old", "new")
    by_name = {tuple(result[name] for name in names): result for result in kept}
    results = {mutant: by_name.get(tuple(getattr(mutant, name) for name in names)) for mutant in mutants}
    return {mutant: result for mutant, result in results.items() if result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", default=list(MODULES))
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--tests", nargs="+", default=sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/**/test_*.py"))
    )
    parser.add_argument("--budget", type=float, default=300)
    parser.add_argument("--marks", default="not slow and not journey")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    mutants = sample(asked.modules, asked.count, asked.seed)
    everything = f"{digest(*asked.tests)}, budget {asked.budget}"
    trees = Trees(asked.jobs, asked.marks)
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            recordings = [pool.submit(record, trees, test) for test in asked.tests]
            for recording in tqdm(as_completed(recordings), "lines recorded", len(recordings), unit=" files"):
                recording.result()
            for test in asked.tests:
                for name in facts(test)["failed"]:
                    print(f"left out, fails without a mutation: {name}")
            results = earlier(mutants, everything, asked.marks)
            print(f"{len(mutants)} mutations, {len(results)} of them with a result that still holds", flush=True)
            waiting = {
                pool.submit(tried, trees, mutant, asked.tests, asked.budget): mutant
                for mutant in mutants
                if mutant not in results
            }
            for done in as_completed(waiting):
                result = done.result()
                result |= {"holds": held_by(result, everything), "marks": asked.marks}
                results[waiting[done]] = result
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result, ensure_ascii=False) + "\n")
                where = f"{result['module']}:{result['line']}"
                print(f"{len(results)}/{len(mutants)} {result['verdict']} {where} {result['by']}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(trees.running):
                trees.end(process)
            raise
    table = summary([results[mutant] for mutant in mutants], read_equivalents(HERE / "equivalent.yaml"))
    (BUILD / "survivors.md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
