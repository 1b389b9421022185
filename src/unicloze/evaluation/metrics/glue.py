"""The metric and reported values of each GLUE task (Wang et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Metric of a task."""

    metric: str  # name of the metric
    values: tuple[str, ...]  # its values reported in papers; the first is that of UniLM v1's Table 11
    selects: str = "accuracy"  # the value of UniLMv2's Table 3, by which its grid of settings (Table 9) chooses


GLUE: Mapping[str, GlueTask] = {
    "cola": GlueTask(metric="matthews", values=("matthews",), selects="matthews"),
    "sst-2": GlueTask(metric="accuracy", values=("accuracy",)),
    "mrpc": GlueTask(metric="f1", values=("f1", "accuracy")),
    "sts-b": GlueTask(metric="correlation", values=("spearman", "pearson"), selects="pearson"),
    "qqp": GlueTask(metric="f1", values=("f1", "accuracy")),
    "mnli": GlueTask(metric="accuracy", values=("accuracy",)),
    "qnli": GlueTask(metric="accuracy", values=("accuracy",)),
    "rte": GlueTask(metric="accuracy", values=("accuracy",)),
    "wnli": GlueTask(metric="accuracy", values=("accuracy",)),
    "ax": GlueTask(metric="matthews", values=("matthews",), selects="matthews"),
}
"""Metrics by task name. MNLI's applies to both its matched and mismatched sets; AX is the diagnostic set."""
