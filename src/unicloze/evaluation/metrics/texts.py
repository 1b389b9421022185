"""Metrics of generated texts: BLEU, ROUGE, NIST, METEOR, those of coco-caption, and diversity."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from xml.sax.saxutils import escape

from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.result import MetricResult, check_texts, library, profiled, words

Ngram = tuple[str, ...]
Texts = Sequence[Sequence[str]]


def ngrams(tokens: Sequence[str], n: int) -> Counter[Ngram]:
    """Count each n-gram."""
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))


def highest_counts(texts: Iterable[Sequence[str]], n: int) -> Counter[Ngram]:
    """The highest count of each n-gram in any one text."""
    highest: Counter[Ngram] = Counter()
    for tokens in texts:
        highest |= ngrams(tokens, n)
    return highest


TOKENIZE = "13a", "intl", "char", "none", "zh"
"""Sacrebleu's tokenizers that need no further package. `none` takes the texts as space-separated tokens."""


def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a") -> MetricResult:
    """Corpus BLEU of 1- to 4-grams, with exponential smoothing and the closest reference length, as reported by WMT."""
    check_texts(predictions, references)
    metric = library("sacrebleu.metrics", "metrics").BLEU(tokenize=tokenize, force=True)
    most = max(map(len, references))
    streams = [[several[place] if place < len(several) else None for several in references] for place in range(most)]
    score = metric.corpus_score(list(predictions), streams)
    precisions = {f"precision_{n}": precision for n, precision in enumerate(score.precisions, start=1)}
    values, note = {"bleu": score.score, **precisions, "brevity_penalty": score.bp}, str(metric.get_signature())
    return MetricResult(metric="bleu", values=values, items=len(predictions), units={"brevity_penalty": ""}, note=note)


KINDS = "rouge1", "rouge2", "rougeL", "rougeLsum"
_TOKEN = re.compile(r"[a-z0-9]+")


def rouge(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str = "sentences"
) -> MetricResult:
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum with Porter's stemmer, averaged over texts.

    ROUGE-Lsum takes the union of the common subsequences of each reference sentence; papers on summaries of several
    sentences (and ROUGE-1.5.5) call it ROUGE-L. Of several references, the one with the best F1 counts, separately for each
    kind.
    """
    check_texts(predictions, references)
    scorer = library("rouge_score.rouge_scorer", "metrics").RougeScorer(list(KINDS), tokenizer=_Tokenizer())
    predictions, references = profiled(predictions, references, profile)
    sums = {name: 0.0 for kind in KINDS for name in (kind, f"{kind}_precision", f"{kind}_recall")}
    unread = 0
    for prediction, several in zip(predictions, references, strict=True):
        unread += not any(_TOKEN.search(reference.lower()) for reference in several)
        for kind, score in scorer.score_multi(several, prediction).items():
            sums[kind] += score.fmeasure
            sums[f"{kind}_precision"] += score.precision
            sums[f"{kind}_recall"] += score.recall
    note = f"Profile {profile}, Porter's stemmer."
    if unread:
        note += f" References without a letter a to z or a digit, all that ROUGE reads, which score 0: {unread:,}."
    values = {name: 100 * total / len(predictions) for name, total in sums.items()}
    return MetricResult(metric="rouge", values=values, items=len(predictions), note=note)


class _Tokenizer:
    """rouge-score's tokenizer with cached stems."""

    def __init__(self) -> None:
        porter = library("nltk.stem.porter", "metrics")
        self._stem: Callable[[str], str] = lru_cache(maxsize=2**17)(porter.PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """The stemmed words of a text."""
        return [self._stem(token) if len(token) > 3 else token for token in _TOKEN.findall(text.lower())]


SCRIPT = "ROUGE-1.5.5.pl"
HOME = "ROUGE_HOME"
"""Environment variable with the script's folder, which contains its folder `data`."""
_LINE = re.compile(r"^\S+ (ROUGE-[12L]) Average_([RPF]): ([\d.]+)", re.MULTILINE)
_NAMES = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeLsum"}
_ENDINGS = {"F": "", "P": "_precision", "R": "_recall"}


def perl_rouge(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str = "sentences"
) -> MetricResult:
    """ROUGE-1, ROUGE-2 and ROUGE-L of ROUGE-1.5.5 with the settings of UniLM's scripts: `-a -c 95 -m -n 2 -r 1000`.

    Its ROUGE-L is summary-level and reported as `rougeLsum`. Several references are averaged.
    """
    check_texts(predictions, references)
    script = find_script()
    if (perl := shutil.which("perl")) is None:
        raise UniclozeError(f"{SCRIPT} needs perl, which is not on the PATH: install it, or use the metric rouge.")
    predictions, references = profiled(predictions, references, profile)
    with tempfile.TemporaryDirectory(prefix="unicloze-rouge-") as name:
        settings = _write(Path(name), predictions, references)
        command = [perl, str(script), "-e", str(script.parent / "data")]
        command += ["-a", "-c", "95", "-m", "-n", "2", "-r", "1000", str(settings)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    found = _LINE.findall(done.stdout)
    if done.returncode or len(found) != len(_NAMES) * len(_ENDINGS):
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[0]
        raise UniclozeError(f"{script} failed with the message: {said}. Run its own test, runROUGE-test.pl, first.")
    values = {_NAMES[kind] + _ENDINGS[measure]: 100 * float(value) for kind, measure, value in found}
    order = [name + ending for name in _NAMES.values() for ending in _ENDINGS.values()]
    ordered, note = {name: values[name] for name in order}, f"Profile {profile}, {SCRIPT} -a -c 95 -m -n 2 -r 1000."
    return MetricResult(metric="rouge-perl", values=ordered, items=len(predictions), note=note)


def find_script() -> Path:
    """Path of the script: in the folder named by `ROUGE_HOME` if set, else on the PATH."""
    home = os.environ.get(HOME)
    found = Path(home) / SCRIPT if home else Path(shutil.which(SCRIPT) or "")
    if not found.is_file():
        place = f"is not in {home}, which {HOME} names" if home else f"is not on the PATH, and {HOME} is not set"
        raise UniclozeError(f"{SCRIPT} {place}: install it, or use the metric rouge, which needs no Perl.")
    return found.resolve()


def _write(folder: Path, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Path:
    """Write a file for each text, one sentence per line, and the settings file that lists them."""
    parts = ['<ROUGE-EVAL version="1.55">']
    for number, (prediction, several) in enumerate(zip(predictions, references, strict=True)):
        names = [f"{number}.prediction", *(f"{number}.{place}.reference" for place in range(len(several)))]
        for name, text in zip(names, (prediction, *several), strict=True):
            (folder / name).write_text(f"{text}\n", encoding="utf-8", errors="replace")
        models = [f'<M ID="{place}">{name}</M>' for place, name in enumerate(names[1:])]
        root = escape(str(folder))
        parts.append(
            f'<EVAL ID="{number}"><MODEL-ROOT>{root}</MODEL-ROOT><PEER-ROOT>{root}</PEER-ROOT>'
            f'<INPUT-FORMAT TYPE="SPL"></INPUT-FORMAT><PEERS><P ID="1">{number}.prediction</P></PEERS>'
            f"<MODELS>{''.join(models)}</MODELS></EVAL>"
        )
    settings = folder / "settings.xml"
    settings.write_text("\n".join([*parts, "</ROUGE-EVAL>"]), encoding="utf-8")
    return settings


NIST_TOKENIZE = "13a", "none"
_BREVITY = math.log(0.5) / math.log(1.5) ** 2
"""Makes the penalty one half when a prediction has two thirds of the words."""


def nist(predictions: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a") -> MetricResult:
    """NIST of 1- to 4-grams (NIST-4, as in DSTC7) and of 1- to 5-grams (the script's default).

    The information of an n-gram is log2(count of its first n - 1 words / count of the n-gram), over all references of the
    corpus. A matched n-gram counts at most as often as in the reference with the most occurrences; each sum is divided by
    the number of n-grams predicted. The length penalty compares all predicted words with the mean reference length.
    """
    check_texts(predictions, references)
    if tokenize == "13a":
        split = library("sacrebleu.tokenizers.tokenizer_13a", "metrics").Tokenizer13a()
        predictions = [split(text).lower() for text in predictions]
        references = [[split(text).lower() for text in several] for several in references]
    found, wanted = tokens_of(predictions, references, None)
    information = _information(wanted)
    sums = [_gain(found, wanted, information, n) for n in range(1, 6)]
    length = sum(sum(map(len, several)) / len(several) for several in wanted)
    ratio = min(sum(map(len, found)) / length, 1.0) if length else 0.0
    penalty = math.exp(_BREVITY * math.log(ratio) ** 2) if ratio else 0.0
    values = {"nist_4": penalty * sum(sums[:4]), "nist_5": penalty * sum(sums), "length_penalty": penalty}
    units, note = {"nist_4": "bits", "nist_5": "bits", "length_penalty": ""}, f"Tokens: {tokenize}."
    return MetricResult(metric="nist", values=values, items=len(predictions), units=units, note=note)


def _information(references: Sequence[Sequence[Sequence[str]]]) -> dict[Ngram, float]:
    """Information in bits of each n-gram of the references."""
    counts: Counter[Ngram] = Counter()
    for several in references:
        for tokens in several:
            counts[()] += len(tokens)
            for n in range(1, 6):
                counts.update(ngrams(tokens, n))
    return {ngram: math.log2(counts[ngram[:-1]] / count) for ngram, count in counts.items() if ngram}


def _gain(predictions: Texts, references: Sequence[Texts], information: dict[Ngram, float], n: int) -> float:
    """Bits of the matched n-grams per predicted n-gram."""
    bits, total = 0.0, 0
    for tokens, several in zip(predictions, references, strict=True):
        counts = ngrams(tokens, n)
        total += counts.total()
        matched = counts & highest_counts(several, n)
        bits += sum(information[ngram] * count for ngram, count in matched.items())
    return bits / max(total, 1)


_FIELD = " ||| "
"""Separates the fields of the program's input lines."""


def meteor(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str | None = None
) -> MetricResult:
    """Corpus METEOR for English, with exact, stem, synonym and paraphrase matches."""
    found, wanted = tokens_of(predictions, references, profile)
    jar, java = programs()
    command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"]
    score, why = None, ""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            with subprocess.Popen(
                command, cwd=jar.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8",
                errors="replace",
            ) as program:  # fmt: skip
                score = _score(program, found, wanted)
        except OSError as error:
            why = str(error)
        errors.seek(0)
        why = "".join(errors.read().strip().splitlines()[:1]) or why
    if score is None:
        raise UniclozeError(f"METEOR's Java program failed with the message: {why or 'none'}.")
    return MetricResult(metric="meteor", values={"meteor": 100 * score}, items=len(found), note=note_of(profile))


def programs() -> tuple[Path, str]:
    """Paths of METEOR's .jar file and of the Java runtime."""
    jar, java = _jar(), shutil.which("java")
    if java is None:
        raise UniclozeError("METEOR needs Java, but java is not on the PATH: install a Java runtime.")
    return jar, java


def _score(
    program: subprocess.Popen[str], found: Sequence[Sequence[str]], wanted: Sequence[Sequence[Sequence[str]]]
) -> float | None:
    """Score of the corpus from the statistics of all texts; None if the program ends early."""
    send, receive = program.stdin, program.stdout
    assert send is not None and receive is not None

    def ask(*fields: str) -> str:
        send.write(_FIELD.join(fields) + "\n")
        send.flush()
        return receive.readline().strip()

    def clean(tokens: Sequence[str]) -> str:
        return " ".join(token for token in tokens if token != _FIELD.strip())

    statistics = []
    for tokens, several in zip(found, wanted, strict=True):
        statistics.append(ask("SCORE", *map(clean, several), clean(tokens)))
        if not statistics[-1]:
            return None
    answers = [ask("EVAL", *statistics), *(receive.readline() for _ in found)]  # one per text, then the corpus's
    try:
        score = float(answers[-1])
    except ValueError:
        return None
    return score if math.isfinite(score) else 0.0


def _jar() -> Path:
    package = importlib.util.find_spec("pycocoevalcap")
    folders = package.submodule_search_locations or () if package else ()
    jars = (Path(folder) / "meteor" / "meteor-1.5.jar" for folder in folders)
    if (jar := next(filter(Path.is_file, jars), None)) is None:
        raise UniclozeError('METEOR\'s program comes with pycocoevalcap: in the clone, pip install -e ".[coco]".')
    return jar


_RECALL_WEIGHT = 1.2


def coco(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, profile: str | None = None
) -> MetricResult:
    """BLEU-1 to BLEU-4 and ROUGE-L.

    BLEU is corpus BLEU, without smoothing and with the closest reference length. ROUGE-L is the mean over texts of F with
    beta 1.2, from the best precision and the best recall over the references.
    """
    found, wanted = tokens_of(predictions, references, profile)
    values = {f"bleu_{n}": score for n, score in enumerate(_bleu(found, wanted), start=1)}
    values["rouge_l"] = 100 * sum(map(_rouge_l, found, wanted)) / len(found)
    return MetricResult(metric="coco", values=values, items=len(found), note=note_of(profile))


def tokens_of(
    predictions: Sequence[str], references: Sequence[Sequence[str]], profile: str | None
) -> tuple[list[list[str]], list[list[list[str]]]]:
    """Predictions and references split at white space, after applying the profile if given."""
    check_texts(predictions, references)
    if profile is not None:
        predictions, references = profiled(predictions, references, profile)
    return [text.split() for text in predictions], [[text.split() for text in several] for several in references]


def note_of(profile: str | None) -> str:
    """Note of a result about the profile."""
    return f"Profile {profile}." if profile else ""


def _bleu(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """BLEU-1 to BLEU-4 in percent."""
    found = sum(map(len, predictions))
    wanted = sum(
        min((abs(len(one) - len(tokens)), len(one)) for one in several)[1]
        for tokens, several in zip(predictions, references, strict=True)
    )
    penalty = min(0.0, 1.0 - wanted / found) if found else 0.0
    scores, logs = [], 0.0
    for n in range(1, 5):
        matched = total = 0
        for tokens, several in zip(predictions, references, strict=True):
            counts = ngrams(tokens, n)
            total += counts.total()
            matched += (counts & highest_counts(several, n)).total()
        logs += math.log(matched / total) if matched else -math.inf
        scores.append(100 * math.exp(penalty + logs / n))
    return scores


def _rouge_l(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """F with beta 1.2, from 0 to 1."""
    common = [_common_subsequence(prediction, one) for one in references]
    precision = max(common) / len(prediction) if prediction else 0.0
    recall = max(length / len(one) if one else 0.0 for length, one in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _RECALL_WEIGHT**2) * precision * recall / (recall + _RECALL_WEIGHT**2 * precision)


def _common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, with each table row as the bits of one integer (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, token in enumerate(other):
        places[token] = places.get(token, 0) | 1 << place
    everywhere = (1 << len(other)) - 1
    row = everywhere
    for token in one:
        hits = row & places.get(token, 0)
        row = (row + hits | row - hits) & everywhere
    return len(other) - row.bit_count()


def diversity(predictions: Sequence[str], references: Sequence[Sequence[str]] = ()) -> MetricResult:
    """Entropy-4, Distinct-1, Distinct-2 and the average length of texts, in words and punctuation marks."""
    if not predictions:
        raise UniclozeError("There is no text to measure: give at least one prediction.")
    tokens = [words(text) for text in predictions]
    counts = {n: Counter[Ngram]() for n in (1, 2, 4)}
    for one in tokens:
        for n, count in counts.items():
            count.update(ngrams(one, n))
    total = counts[4].total()
    entropy = sum((count / total * math.log(total / count) for count in counts[4].values()), 0.0)
    distinct = {f"distinct_{n}": len(counts[n]) / max(counts[n].total(), 1) for n in (1, 2)}
    values = {"entropy_4": entropy, **distinct, "average_length": counts[1].total() / len(tokens)}
    units = {"entropy_4": "nats", "distinct_1": "", "distinct_2": "", "average_length": "tokens"}
    return MetricResult(metric="diversity", values=values, items=len(tokens), units=units)
