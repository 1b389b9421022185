"""The packages this project is tested with: locks with hashes, a bill of materials, and known vulnerabilities.

python benchmarks/supply_chain.py lock     # requirements-cpu.lock and requirements-cuda.lock from constraints.txt; needs uv
python benchmarks/supply_chain.py sbom     # build/sbom.json, CycloneDX, from requirements-cuda.lock
python benchmarks/supply_chain.py audit    # asks the vulnerability service about constraints.txt; needs pip-audit
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CONSTRAINTS, CPU, CUDA = (
    ROOT / f"{name}" for name in ("constraints.txt", "requirements-cpu.lock", "requirements-cuda.lock")
)
SBOM = ROOT / "build" / "sbom.json"

_OF_CUDA = ("nvidia-", "cuda-", "triton")
_HEADER = """\
# Every package of the runtime, of all extras and of the build, at the versions of constraints.txt, with the SHA-256 of each
# file, for Python 3.11 or newer. Regenerate with `make lock`. Install with
#     pip install --no-deps --require-hashes -r {name} && pip install --no-deps --no-build-isolation .
"""
_OF_TORCH = {
    CUDA: """\
# On Linux, torch is the CUDA build, with the packages it needs; elsewhere it is the build for that system.
""",
    CPU: """\
# On Linux, torch is the CPU build, which PyTorch publishes on an index of its own: name that with --extra-index-url. Its hash
# covers {wheels} only. Elsewhere torch is the build for that system, as in requirements-cuda.lock.
""",
}


class Locked(NamedTuple):
    """A package of a lock, with the hashes of its files."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n    ".join(
            [f"{self.name}=={self.version}{marker}", *(f"--hash=sha256:{one}" for one in self.hashes)]
        )


def normal(name: str) -> str:
    """A package's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: Path) -> dict[str, str]:
    """The versions in constraints.txt, by normalised name."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def locked(text: str) -> list[Locked]:
    """The packages of a lock, in order."""
    entries = re.findall(
        r"^(\S+?)==(\S+)(?: ; ([^\\\n]+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", text, re.M
    )
    return [
        Locked(name, version, marker, tuple(re.findall("sha256:(.*?)[ \n]", f"{hashes}\n")))
        for name, version, marker, hashes in entries
    ]


def lock() -> int:
    """Write both locks."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-", "--all-extras", "--constraint", str(CONSTRAINTS),
        "--python-version", "3.11", "--universal", "--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate",
        "--quiet",
    ]  # fmt: skip
    made = subprocess.run(
        command, cwd=ROOT, input="\n".join(build), text=True, stdout=subprocess.PIPE, check=True
    ).stdout
    packages = locked(made)
    torch = next(one for one in packages if one.name == "torch")
    hashes, wheels = _cpu_wheels(torch.version)
    CUDA.write_text(_text(CUDA, packages), encoding="utf-8")
    of_cpu = []
    for one in packages:
        if one.name == "torch":
            of_cpu.append(Locked("torch", f"{one.version}+cpu", "sys_platform == 'linux'", hashes))
            one = one._replace(marker="sys_platform != 'linux'")
        if not one.name.startswith(_OF_CUDA):
            of_cpu.append(one)
    CPU.write_text(_text(CPU, of_cpu).format(wheels=wheels), encoding="utf-8")
    return 0


def _text(file: Path, packages: list[Locked]) -> str:
    return _HEADER.replace("{name}", file.name) + _OF_TORCH[file] + "".join(f"{one}\n" for one in packages)


def _cpu_wheels(version: str) -> tuple[tuple[str, ...], str]:
    """Hash of the CPU wheel of torch for this Python, and what it is for."""
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            place,
            f"torch=={version}+cpu",
        ]
        if subprocess.run(command, check=False).returncode:
            sys.exit(
                f"there is no wheel of torch {version}+cpu for this Python: name PyTorch's CPU index in PIP_EXTRA_INDEX_URL"
            )
        (wheel,) = Path(place).iterdir()
        python, _, system = wheel.stem.split("-")[-3:]
        return (hashlib.sha256(wheel.read_bytes()).hexdigest(),), f"CPython 3.{python.removeprefix('cp3')} on {system}"


def sbom() -> int:
    """Write the bill of materials."""
    components = [
        {
            "type": "library",
            "name": one.name,
            "version": one.version,
            "purl": f"pkg:pypi/{normal(one.name)}@{one.version}",
            "hashes": [{"alg": "SHA-256", "content": each} for each in one.hashes],
        }
        for one in locked(CUDA.read_text(encoding="utf-8"))
    ]
    SBOM.parent.mkdir(exist_ok=True)
    content = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
    SBOM.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{SBOM.relative_to(ROOT)}: {len(components)} packages")
    return 0


def audit() -> int:
    """Report known vulnerabilities of the pinned packages."""
    command = [
        sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--requirement", str(CONSTRAINTS),
        "--format", "json", "--progress-spinner", "off",
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(said.stdout)["dependencies"]
    except (ValueError, KeyError):
        found = []
    known = [one for one in found if "skip_reason" not in one]
    if not known:
        print("The vulnerability service cannot be reached from here, so no package was checked.", file=sys.stderr)
        return 2
    faults = [f"{one['name']} {one['version']}: {fault['id']}" for one in known for fault in one["vulns"]]
    skipped = [one["name"] for one in found if "skip_reason" in one]
    print("\n".join(faults) or f"{len(known)} packages, no known vulnerability")
    if skipped:
        print(f"Not checked, because the service does not know them: {', '.join(skipped)}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit({"lock": lock, "sbom": sbom, "audit": audit}[sys.argv[1]]())
