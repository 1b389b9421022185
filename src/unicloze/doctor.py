"""`doctor`: what this machine offers, what a run would use, and how to fix what is missing."""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from unicloze.cores import memory, usable_cores, waiting
from unicloze.files import Plain

REQUIRED = (
    "torch", "numpy", "tokenizers", "safetensors", "jsonargparse", "pyyaml", "shtab", "tqdm", "pyarrow", "filelock",
    "jinja2", "scikit-learn", "scipy", "threadpoolctl",
)  # fmt: skip
EXTRAS = {
    "hf": ("transformers",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "datasets": ("datasets",),
    "storage": ("fsspec",),
    "metrics": ("rouge-score", "sacrebleu"),
    "coco": ("pycocoevalcap",),
    "tensorboard": ("tensorboard",),
    "serve": ("fastapi", "uvicorn"),
}
_GIB = 2**30
_SCARCE_DISK = 2 * _GIB
_PRODUCT_SIZE = 768


@dataclass(frozen=True)
class Finding:
    """A line of the report."""

    topic: str  # what was checked
    # `ok`; `note` if it works but could be better; `problem` if it prevents runs
    state: Literal["ok", "note", "problem"]
    detail: str  # the result
    cure: str = ""  # how to fix it; empty if nothing needs fixing


@dataclass(frozen=True, kw_only=True)
class Examination(Plain):
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
        return {"healthy": self.healthy, **super().to_dict()}

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
    """Check this machine. Takes a few seconds: it imports torch and times matrix products."""
    findings = [Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}"), *_packages()]
    topics: tuple[Callable[[], Iterator[Finding]], ...] = (_processor, _memory, _disk, _temporary_files)
    if all(finding.state != "problem" for finding in findings):
        topics = (*topics[:2], _arithmetic, _dropout, _allocator, _gpus, _processes, *topics[2:])
    for topic in topics:
        findings += topic()
    return Examination(findings=(*findings, *_extras()))


def _installed(packages: Sequence[str]) -> tuple[list[str], str]:
    """The packages that are missing, and the versions of the others in words."""
    missing, there = list[str](), list[str]()
    for package in packages:
        try:
            there.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    return missing, ", ".join(there)


def _packages() -> Iterator[Finding]:
    missing, versions = _installed(REQUIRED)
    if missing:
        yield Finding("packages", "problem", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
        return
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        detail = f"torch {metadata.version('torch')} is installed but does not load: {error}"
        yield Finding("packages", "problem", detail, "pip install --force-reinstall torch")
        return
    yield Finding("packages", "ok", versions)


def _processor() -> Iterator[Finding]:
    model = platform.processor() or platform.machine()
    description = Path("/proc/cpuinfo")
    if description.is_file():
        lines = description.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    yield Finding("CPU", "ok", f"{model}, {usable_cores()} of {os.cpu_count()} logical cores usable")


def _memory() -> Iterator[Finding]:
    if math.isinf(usable := memory()):
        return
    page = os.sysconf("SC_PAGE_SIZE")
    whole = os.sysconf("SC_PHYS_PAGES") * page
    detail = f"{usable / _GIB:.1f} GiB" + (f" of this machine's {whole / _GIB:.1f}" if usable < whole else "")
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        detail += f", {os.sysconf('SC_AVPHYS_PAGES') * page / _GIB:.1f} GiB unused"
    yield Finding("memory", "ok", detail)


def _arithmetic() -> Iterator[Finding]:
    import torch

    from unicloze.settings import TrainingSettings
    from unicloze.training.precision import choose_precision, cpu_abilities, product_seconds

    threads, cures = torch.get_num_threads(), []
    if threads > usable_cores():
        cures.append(f"Set OMP_NUM_THREADS={usable_cores()}: more threads than cores slow each other down.")
    if waiting() is None:
        cures.append(
            "Import unicloze before torch, or set OMP_WAIT_POLICY=PASSIVE: threads that spin while they wait slow a run "
            "down many times beside other programs."
        )
    detail = f"torch uses {threads}; they wait by {waiting() or 'spinning'}"
    yield Finding("threads", "note" if cures else "ok", detail, " ".join(cures))
    bf16, fp32 = (
        2 * _PRODUCT_SIZE**3 / product_seconds(dtype, _PRODUCT_SIZE) / 1e9 for dtype in (torch.bfloat16, torch.float32)
    )
    abilities = ", ".join(name for name, there in cpu_abilities().items() if there) or "none for bf16"
    chosen = choose_precision(TrainingSettings(device="cpu"), torch.device("cpu"))
    yield Finding(
        "precision",
        "ok",
        f"{chosen} on the CPU: {_PRODUCT_SIZE} x {_PRODUCT_SIZE} products run at {bf16:.0f} GF/s in bf16 and {fp32:.0f} in "
        f"fp32; instructions: {abilities}",
    )


def _dropout() -> Iterator[Finding]:
    from unicloze.model import dropout

    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    slower = "NumPy computes it, which is slower"
    if compiler is None:
        yield Finding("dropout", "note", f"no C compiler: {slower}", "Install gcc or clang.")
    elif dropout._compiled() is None:
        yield Finding("dropout", "note", f"{compiler} cannot compile it: {slower}", f"Fix {compiler} and its headers.")
    else:
        yield Finding("dropout", "ok", f"compiled with {compiler}")


def _allocator() -> Iterator[Finding]:
    name, version = platform.libc_ver()
    if name == "glibc":
        yield Finding(
            "allocator", "ok", f"glibc {version}; `pretrain` sets it to keep freed memory, which avoids page faults"
        )
    else:
        detail = "not glibc, left unchanged; training steps on the CPU spend more time on page faults"
        yield Finding("allocator", "note", detail)


def _gpus() -> Iterator[Finding]:
    import torch

    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(number)
        with torch.cuda.device(number):
            bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bf16"
        detail = f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB, {bf16}"
        yield Finding(f"GPU {number}", "ok", detail if number else f"{detail}; runs use cuda:0")
    if torch.cuda.is_available():
        return
    if not Path("/proc/driver/nvidia/version").exists():
        yield Finding("GPU", "note", "no CUDA device; runs use the CPU")
    elif torch.version.cuda is None:
        detail, cure = "a CUDA device, but torch is built without CUDA", "Install a CUDA build of torch (pytorch.org)."
        yield Finding("GPU", "note", detail, cure)
    else:
        detail = f"a CUDA device that torch (built for CUDA {torch.version.cuda}) cannot use"
        cure = "Update the driver, or install a torch build for its CUDA version (shown by `nvidia-smi`)."
        yield Finding("GPU", "note", detail, cure)


def _processes() -> Iterator[Finding]:
    from unicloze.training.parallel import backends

    if there := backends():
        yield Finding("processes", "ok", f"torchrun can distribute a run by {' and '.join(there)}")
    else:
        cure = "Install a torch build with torch.distributed."
        yield Finding("processes", "note", "torch cannot distribute a run", cure)


def _disk() -> Iterator[Finding]:
    place = Path.cwd()
    free = shutil.disk_usage(place).free
    detail = f"{free / _GIB:.1f} GiB free in {place}"
    if not os.access(place, os.W_OK):
        yield Finding("disk", "note", f"{place} is not writable", "Give runs an --out elsewhere.")
    elif free < _SCARCE_DISK:
        yield Finding("disk", "note", detail, "Free some space or give runs an --out elsewhere.")
    else:
        yield Finding("disk", "ok", detail)


def _temporary_files() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(4096))
        yield Finding("temporary files", "ok", tempfile.gettempdir())
    except OSError as error:
        cure = "Set TMPDIR to a writable folder with free space."
        yield Finding("temporary files", "problem", f"not writable ({error.strerror})", cure)


def _extras() -> Iterator[Finding]:
    for extra, packages in EXTRAS.items():
        missing, versions = _installed(packages)
        if missing:
            cure = f'If you need it: in the clone, pip install -e ".[{extra}]"'
            yield Finding(f"extra {extra}", "note", f"missing: {', '.join(missing)}", cure)
        else:
            yield Finding(f"extra {extra}", "ok", versions)
