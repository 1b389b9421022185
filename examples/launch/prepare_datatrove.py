"""Filter and deduplicate texts with datatrove before `unicloze prepare`, here or on a cluster.

    pip install -e ".[storage]" "datatrove>=0.10" orjson spacy "xxhash<4"
    python prepare_datatrove.py 's3://bucket/raw' s3://bucket/clean --tasks 64 --executor slurm --partition cpu
    unicloze prepare --data.corpus 's3://bucket/clean/texts/*.jsonl.gz' --out prepared --jobs 8

Reads .jsonl files with a field "text", drops short documents and near-duplicates (MinHash), and writes
`OUT/texts/*.jsonl.gz`.
Each task is recorded when it is done, so the same command continues after a failure; give another OUT after any change.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

SHORTEST = 200
"""Documents with fewer characters are dropped; put more of datatrove's filters beside this one."""
EXECUTORS = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}


def long_enough(document: Any) -> bool:
    """Whether a document is kept."""
    return len(document.text) >= SHORTEST


def stages(source: str, out: str, tasks: int, language: str) -> Iterator[tuple[str, int, list[Any]]]:
    """Name, number of tasks and pipeline of each stage; each needs the results of the one before."""
    config = MinhashConfig()
    kept = f"{out}/filtered"
    yield "filter", tasks, [
        JsonlReader(source, glob_pattern="*.jsonl*"),
        LambdaFilter(long_enough),
        JsonlWriter(kept),
    ]  # fmt: skip
    yield "signatures", tasks, [
        JsonlReader(kept),
        MinhashDedupSignature(f"{out}/signatures", config, language=language),
    ]  # fmt: skip
    yield "buckets", config.num_buckets, [
        MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config),
    ]  # fmt: skip
    yield "clusters", 1, [MinhashDedupCluster(f"{out}/buckets", f"{out}/duplicates", config=config)]
    yield "texts", tasks, [
        JsonlReader(kept),
        MinhashDedupFilter(f"{out}/duplicates"),
        JsonlWriter(f"{out}/texts", "${rank}.jsonl"),
    ]  # fmt: skip


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folder or URL of .jsonl files")
    parser.add_argument("out", help="folder or URL of the results")
    parser.add_argument("--tasks", type=int, default=4, help="each task reads a share of the files")
    parser.add_argument("--workers", type=int, default=-1, help="tasks at a time; default: all")
    parser.add_argument("--language", default="eng", help="datatrove's name of the language, which splits words")
    parser.add_argument("--executor", choices=EXECUTORS, default="local")
    parser.add_argument("--partition", default="", help="of Slurm")
    parser.add_argument("--time", default="10:00:00", help="of a Slurm job")
    given = parser.parse_args()
    options = {"partition": given.partition, "time": given.time} if given.executor == "slurm" else {}
    last: Any = None
    for name, tasks, pipeline in stages(given.source, given.out, given.tasks, given.language):
        last = EXECUTORS[given.executor](
            pipeline=pipeline,
            tasks=tasks,
            workers=given.workers,
            logging_dir=f"{given.out}/logs/{name}",
            depends=last,
            **options,
        )
    last.run()


if __name__ == "__main__":
    main()
