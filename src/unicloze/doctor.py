"""`doctor`: what this machine offers, what a run would use, and how to fix what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from unicloze.cores import usable_cores, waiting
from unicloze.errors import UniclozeError

REQUIRED = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "jsonargparse",
    "pyyaml",
    "shtab",
    "tqdm",
    "pyarrow",
    "filelock",
    "scikit-learn",
    "scipy",
)
EXTRAS = {
    "hf": ("transformers",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "datasets": ("datasets",),
    "metrics": ("rouge-score", "sacrebleu"),
    "coco": ("pycocoevalcap",),
    "tensorboard": ("tensorboard",),
    "serve": ("fastapi", "uvicorn"),
}
_GIB = 2**30
_SCARCE_DISK = 2 * _GIB
_PRODUCT_SIZE = 768


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    topic: str  # what was checked
    # `ok`; `note` if it works but could be better; `problem` if it prevents runs
    state: Literal["ok", "note", "problem"]
    detail: str  # the result
    cure: str = ""  # how to fix it; empty if nothing needs fixing


@dataclass(frozen=True, kw_only=True)
class Examination:
    """All findings; `str` renders a table."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return all(finding.state != "problem" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 1 if there is a problem, else 0."""
        return 0 if self.healthy else 1

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON-serialisable dictionaries."""
        return {"healthy": self.healthy, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        topics = max(len(finding.topic) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.state:<7}  {finding.topic:<{topics}}  {finding.detail}")
            if finding.cure:
                lines.append(f"{'':<7}  {'':<{topics}}  -> {finding.cure}")
        verdict = "unicloze can run here." if self.healthy else "unicloze cannot run here; see the problems above."
        return "\n".join([*lines, verdict])


def examine() -> Examination:
    """Check this machine. Takes a few seconds: it imports torch, and times matrix products and two processes."""
    findings = [*_python(), *_packages()]
    topics: tuple[Callable[[], Iterator[Finding]], ...] = (_processor, _memory, _disk, _temporary_files)
    if all(finding.state != "problem" for finding in findings):
        topics = (*topics[:2], _arithmetic, _dropout, _allocator, _gpus, _processes, *topics[2:])
    for topic in topics:
        findings += topic()
    return Examination(findings=(*findings, *_extras()))


def _python() -> Iterator[Finding]:
    old = sys.version_info < (3, 11)
    yield Finding(
        topic="Python",
        state="problem" if old else "ok",
        detail=f"{platform.python_version()} on {platform.platform()}",
        cure="Install Python 3.11 or newer." if old else "",
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    versions = {package: _version(package) for package in REQUIRED}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        yield Finding(
            topic="packages",
            state="problem",
            detail=f"missing: {', '.join(missing)}",
            cure=f"pip install {' '.join(missing)}",
        )
        return
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        yield Finding(
            topic="packages",
            state="problem",
            detail=f"torch {versions['torch']} is installed but does not load: {error}",
            cure="pip install --force-reinstall torch",
        )
        return
    yield Finding(topic="packages", state="ok", detail=", ".join(f"{name} {versions[name]}" for name in REQUIRED))


def _processor() -> Iterator[Finding]:
    model = platform.processor() or platform.machine()
    description = Path("/proc/cpuinfo")
    if description.is_file():
        lines = description.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    yield Finding(topic="CPU", state="ok", detail=f"{model}, {usable_cores()} of {os.cpu_count()} logical cores usable")


def _memory() -> Iterator[Finding]:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return
    page = os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else None
    total = f"{os.sysconf('SC_PHYS_PAGES') * page / _GIB:.1f} GiB"
    yield Finding(
        topic="memory", state="ok", detail=total if free is None else f"{total}, {free / _GIB:.1f} GiB unused"
    )


def _arithmetic() -> Iterator[Finding]:
    import torch

    from unicloze.settings import TrainingSettings
    from unicloze.training.precision import choose_precision, cpu_abilities, product_seconds

    threads = torch.get_num_threads()
    cures = []
    if threads > usable_cores():
        cures.append(f"Set OMP_NUM_THREADS={usable_cores()}: more threads than cores slow each other down.")
    if waiting() is None:
        cures.append(
            "Import unicloze before torch, or set OMP_WAIT_POLICY=PASSIVE: threads that spin while they wait slow a run "
            "down many times beside other programs."
        )
    yield Finding(
        topic="threads",
        state="note" if cures else "ok",
        detail=f"torch uses {threads}; they wait by {waiting() or 'spinning'}",
        cure=" ".join(cures),
    )
    operations = 2 * _PRODUCT_SIZE**3
    speeds = {
        name: operations / product_seconds(dtype, _PRODUCT_SIZE) / 1e9
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
    }
    abilities = [name for name, there in cpu_abilities().items() if there] or ["none for bf16"]
    chosen = choose_precision(TrainingSettings(device="cpu"), torch.device("cpu"))
    yield Finding(
        topic="precision",
        state="ok",
        detail=f"{chosen} on the CPU: {_PRODUCT_SIZE} x {_PRODUCT_SIZE} products run at {speeds['bf16']:.0f} GF/s in "
        f"bf16 and {speeds['fp32']:.0f} in fp32; instructions: {', '.join(abilities)}",
    )


def _dropout() -> Iterator[Finding]:
    from unicloze.model import dropout

    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        detail, cure = "no C compiler: NumPy computes it, which is slower", "Install gcc or clang."
    elif dropout._compiled() is None:
        detail, cure = (
            f"{compiler} cannot compile it: NumPy computes it, which is slower",
            f"Fix {compiler} and its headers.",
        )
    else:
        detail, cure = f"compiled with {compiler}", ""
    yield Finding(topic="dropout", state="note" if cure else "ok", detail=detail, cure=cure)


def _allocator() -> Iterator[Finding]:
    if platform.libc_ver()[0] == "glibc":
        detail = f"glibc {platform.libc_ver()[1]}; `pretrain` sets it to keep freed memory, which avoids page faults"
        yield Finding(topic="allocator", state="ok", detail=detail)
    else:
        detail = "not glibc, left unchanged; training steps on the CPU spend more time on page faults"
        yield Finding(topic="allocator", state="note", detail=detail)


def _gpus() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
            detail = f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB, {bf16}"
            yield Finding(
                topic=f"GPU {number}", state="ok", detail=f"{detail}; runs use cuda:0" if number == 0 else detail
            )
        return
    driver = Path("/proc/driver/nvidia/version").exists()
    if driver and torch.version.cuda is None:
        detail, cure = "a CUDA device, but torch is built without CUDA", "Install a CUDA build of torch (pytorch.org)."
    elif driver:
        detail = f"a CUDA device that torch (built for CUDA {torch.version.cuda}) cannot use"
        cure = "Update the driver, or install a torch build for its CUDA version (shown by `nvidia-smi`)."
    else:
        detail, cure = "no CUDA device; runs use the CPU", ""
    yield Finding(topic="GPU", state="note", detail=detail, cure=cure)


def _processes() -> Iterator[Finding]:
    from unicloze.training.meeting import backends

    there = backends()
    cures = "" if there else "Install a torch build with torch.distributed."
    yield Finding(
        topic="processes",
        state="ok" if there else "note",
        detail=f"torchrun can distribute a run by {' and '.join(there)}" if there else "torch cannot distribute a run",
        cure=cures,
    )
    if "gloo" in there:
        yield _exchange()


def _exchange() -> Finding:
    from unicloze.training.exchange_check import exchange_seconds

    try:
        seconds = exchange_seconds()
    except (UniclozeError, OSError) as error:
        return Finding(
            topic="all-reduce",
            state="note",
            detail=f"two processes on this machine cannot add gradients: {error}",
            cure="Allow connections between them, or set GLOO_SOCKET_IFNAME to a network interface, such as lo.",
        )
    detail = f"two processes on this machine add 4 MiB of gradients in {1000 * seconds:.1f} ms"
    return Finding(topic="all-reduce", state="ok", detail=detail)


def _disk() -> Iterator[Finding]:
    place = Path.cwd()
    free = shutil.disk_usage(place).free
    detail = f"{free / _GIB:.1f} GiB free in {place}"
    if not os.access(place, os.W_OK):
        yield Finding(
            topic="disk", state="note", detail=f"{place} is not writable", cure="Give runs an --out elsewhere."
        )
    elif free < _SCARCE_DISK:
        yield Finding(
            topic="disk", state="note", detail=detail, cure="Free some space or give runs an --out elsewhere."
        )
    else:
        yield Finding(topic="disk", state="ok", detail=detail)


def _temporary_files() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(4096))
        yield Finding(topic="temporary files", state="ok", detail=tempfile.gettempdir())
    except OSError as error:
        yield Finding(
            topic="temporary files",
            state="problem",
            detail=f"not writable ({error.strerror})",
            cure="Set TMPDIR to a writable folder with free space.",
        )


def _extras() -> Iterator[Finding]:
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if _version(package) is None]
        yield Finding(
            topic=f"extra {extra}",
            state="note" if missing else "ok",
            detail=f"missing: {', '.join(missing)}" if missing else ", ".join(f"{p} {_version(p)}" for p in packages),
            cure=f'If you need it: in the clone, pip install -e ".[{extra}]"' if missing else "",
        )
