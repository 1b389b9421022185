"""ROUGE, BLEU, METEOR, NIST and diversity against stored and published values and other implementations."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import METRICS, measurable, metric
from unicloze.evaluation.metrics.result import PROFILES, MetricResult, retokenise, sentences, summary, uncased
from unicloze.evaluation.metrics.texts import (
    _Tokenizer,
    bleu,
    coco,
    diversity,
    find_script,
    meteor,
    nist,
    perl_rouge,
    rouge,
)
from unicloze.recipes import load_recipe
from unicloze.settings import TokenizerSettings
from unicloze.text.tokenizers import Tokenizer

# The example of the DSTC7 evaluation with its words renamed one to one, which changes none of these metrics.
DSTC7_PREDICTIONS = ["a b c d w", "e f g h i w", "a j k x"]
DSTC7_REFERENCES = [["l m n o", "q k n l"], ["e f g p", "e f r s"], ["a j k x", "a t u g v"]]


@pytest.fixture(scope="module")
def e2e(shared_data: Path) -> tuple[list[str], list[list[str]]]:
    """The first reference of each meaning in E2E's dev set as the prediction, and the others as references."""
    rows = csv.DictReader(
        io.StringIO(gzip.decompress((shared_data / "metrics" / "e2e_devset.csv.gz").read_bytes()).decode())
    )
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(row["mr"], []).append(row["ref"])
    several = [group for group in texts.values() if len(group) > 1]
    return [group[0] for group in several], [group[1:] for group in several]


def test_coco_is_that_of_the_library() -> None:
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu_scorer").BleuScorer
    rouge = pytest.importorskip("pycocoevalcap.rouge.rouge").Rouge()
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.choices("abcdefg", k=draw.randrange(1, 12)))

    predictions = [text() for _ in range(200)]
    references = [[text() for _ in range(draw.randrange(1, 4))] for _ in predictions]
    scorer = bleu(n=4)
    for prediction, each in zip(predictions, references, strict=True):
        scorer += (prediction, each)
    theirs, _ = scorer.compute_score(option="closest", verbose=0)
    longest = [rouge.calc_score([a], b) for a, b in zip(predictions, references, strict=True)]
    values = coco(predictions, references).values
    assert [values[f"bleu_{n}"] / 100 for n in range(1, 5)] == pytest.approx(theirs, rel=1e-9)
    assert values["rouge_l"] / 100 == pytest.approx(sum(longest) / len(longest), rel=1e-9)
    assert all(value == 0 for value in coco(["", "x"], [["a"], [""]]).values.values())


@pytest.mark.slow
def test_meteor_gives_the_value_of_nlg_eval(shared_data: Path) -> None:
    """Two predictions with two references each."""
    pytest.importorskip("pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("METEOR needs java")
    with tarfile.open(shared_data / "metrics" / "nlg-eval_example.tar.gz") as archive:
        files = {member.name: archive.extractfile(member).read().decode() for member in archive if member.isfile()}
    found, *references = (files[name].strip().split("\n") for name in ("hyp.txt", "ref1.txt", "ref2.txt"))
    value = meteor(found, [list(pair) for pair in zip(*references, strict=True)]).values["meteor"]
    assert value / 100 == pytest.approx(json.loads(files["expected.json"])["METEOR"], abs=1e-6)


def test_a_metric_beside_the_first_is_left_out_where_its_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(UserWarning, match="the metric meteor of the recipe is not measured: METEOR"):
        assert measurable(["coco", "meteor", "bleu"]) == ["coco", "bleu"]
    assert measurable(["meteor"]) == ["meteor"], "what chooses the best checkpoint is not replaced"


def test_meteor_without_java_and_with_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UniclozeError, match="java is not on the PATH"):
        meteor(["a"], [["a"]])
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'no memory left' >&2\nexit 1\n")
    java.chmod(0o755)
    with pytest.raises(UniclozeError, match="Java program failed with the message: no memory left"):
        meteor(["a"], [["a"]])


def test_nist_by_hand() -> None:
    # References "a b d" and "a b c e" have 7 words: a and b have log2(7/2) bits, c has log2(7). b always follows a: 0
    # bits; c follows b once in two times: 1 bit, also after "a b". 3 words predicted, 3.5 in the mean reference.
    found = (2 * math.log2(7 / 2) + math.log2(7)) / 3 + (0 + 1) / 2 + 1 / 1
    penalty = math.exp(math.log(0.5) / math.log(1.5) ** 2 * math.log(3 / 3.5) ** 2)
    result = nist(["a b c"], [["a b d", "a b c e"]], tokenize="none")
    assert result.values == pytest.approx(dict(nist_4=penalty * found, nist_5=penalty * found, length_penalty=penalty))
    assert result.units["nist_4"] == "bits"
    # a predicted n-gram counts at most as often as in one reference: "a a a" matches one "a"
    assert nist(["a a a"], [["a b"]], tokenize="none").values["nist_4"] == pytest.approx(math.log2(2 / 1) / 3)
    # 13a lower-cases and splits punctuation from words
    assert nist(["The cat."], [["the cat ."]]).values == nist(["x y z"], [["x y z"]], tokenize="none").values


def test_nist_equals_nltk_where_each_text_has_one_reference(e2e: tuple[list[str], list[list[str]]]) -> None:
    from nltk.translate.nist_score import corpus_nist

    predictions, references = e2e[0][:150], [several[:1] for several in e2e[1][:150]]
    theirs = corpus_nist(
        [[one.split() for one in several] for several in references], [p.split() for p in predictions], n=4
    )
    assert nist(predictions, references, tokenize="none").values["nist_4"] == pytest.approx(theirs, abs=1e-9)


def test_values_that_the_dstc7_challenge_publishes_for_its_demonstration() -> None:
    assert nist(DSTC7_PREDICTIONS, DSTC7_REFERENCES, tokenize="none").values["nist_4"] == pytest.approx(
        2.1949, abs=5e-5
    )
    assert bleu(DSTC7_PREDICTIONS, DSTC7_REFERENCES, tokenize="none").values["bleu"] == pytest.approx(32.24, abs=5e-3)
    values = diversity(DSTC7_PREDICTIONS).values
    assert values["entropy_4"] == pytest.approx(1.7918, abs=5e-5)
    assert (round(values["distinct_1"], 4), values["distinct_2"], values["average_length"]) == (0.8667, 1.0, 5.0)


def test_diversity_by_hand() -> None:
    # 4-grams: "a b a b", "b a b a", "a b a b" again: probabilities 2/3 and 1/3
    result = diversity(["a b a b a b", ""])
    assert result.values["entropy_4"] == pytest.approx(-(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)))
    assert result.values["distinct_1"] == pytest.approx(2 / 6)
    assert result.values["distinct_2"] == pytest.approx(2 / 5)
    assert result.values["average_length"] == 3
    assert diversity(["", ""]).values == {"entropy_4": 0, "distinct_1": 0, "distinct_2": 0, "average_length": 0}


def test_rouge_of_xsum_summaries(shared_data: Path) -> None:
    raw = gzip.decompress((shared_data / "metrics" / "xsum_500_outputs_with_rouge.jsonl.gz").read_bytes()).decode()
    rows = [json.loads(line) for line in raw.splitlines()]
    gold = {row["bbcid"]: row["summary"] for row in rows if row["system"] == "Gold"}
    rows = [row for row in rows if row["system"] != "Gold" and "R1" in row][::3]
    result = rouge([row["summary"] for row in rows], [[gold[row["bbcid"]]] for row in rows])
    for name, theirs in (("rouge1", "R1"), ("rouge2", "R2"), ("rougeL", "RL")):
        assert result.values[name] == pytest.approx(100 * sum(row[theirs] for row in rows) / len(rows), abs=0.4)
    assert result.items == len(rows) == 664


def test_rouge_by_hand() -> None:
    # stems: cat sat mat / the cat sit
    values = rouge(["the cats sat"], [["the cat sits here"]]).values
    assert values["rouge1_precision"] == pytest.approx(100 * 2 / 3)
    assert values["rouge1_recall"] == pytest.approx(100 * 2 / 4)
    assert values["rouge1"] == pytest.approx(100 * 2 * 2 / (3 + 4))
    assert values["rouge2"] == pytest.approx(100 * 2 * 1 / (2 + 3))
    # sentences in another order: the longest subsequence of the whole is one sentence, the union over sentences is all
    values = rouge(["One two three. Four five six."], [["Four five six. One two three."]]).values
    assert (values["rougeL"], values["rougeLsum"]) == (50, 100)
    # the better of two references
    assert rouge(["one two"], [["three", "one two"]]).values["rouge2"] == 100
    assert "which score 0: 1" in rouge(["一 二"], [["一 二"]]).note


def test_words_are_stemmed_as_the_package_does(e2e: tuple[list[str], list[list[str]]]) -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    theirs, ours = DefaultTokenizer(use_stemmer=True), _Tokenizer()
    for text in [*e2e[0], "É İstanbul's 3,000 re-runs_of naïve\tgeneralisations"]:
        assert ours.tokenize(text) == theirs.tokenize(text)


@pytest.mark.parametrize(("text", "spelled"), [
    ("do n ' t go , don ' t", "do n't go , do n't"),
    ("John ' s , he ' d , we ' ll", "John 's , he 'd , we 'll"),
    ('he said " yes " and " no "', "he said `` yes '' and `` no ''"),
    ("the ' old ' house", "the ` old ' house"),
    ("$ 3 , 000 , 000 or 3 . 5", "$ 3,000,000 or 3.5"),
    ("the U . S . A . and U . N .", "the U.S.A. and U.N."),
    ("a well - known , - b - -", "a well-known , - b --"),
    ("wait . . .", "wait ..."),
    ("( see [ x ] )", "-LRB- see -LSB- x -RSB- -RRB-"),
    ("", ""),
])  # fmt: skip
def test_tokens_are_spelled_as_the_treebank_does(text: str, spelled: str) -> None:
    brackets = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-"}
    assert retokenise(text, symbols=brackets) == spelled


def test_sentences_are_found() -> None:
    assert sentences("He came. She (too.) left! 3 days") == "He came.\nShe (too.) left!\n3 days"
    assert sentences("J. Smith of the U.S. Army came.") == "J. Smith of the U.S. Army came."
    assert sentences("he came . she left .") == "he came .\nshe left ."
    assert sentences("the u . s . army of 3 . it came .") == "the u . s . army of 3 .\nit came ."
    assert sentences("he left. she came! 3 of them, e.g. her") == "he left.\nshe came!\n3 of them, e.g. her"
    assert sentences("One. Two\nThree") == "One. Two\nThree"


def test_summaries_lose_short_and_repeated_sentences_and_their_end() -> None:
    text = "the cat sat on the mat [X_SEP] too short here [X_SEP] the mat the cat sat on it [X_SEP] a dog barked at the moon"
    # "the mat the cat sat on it" has 6 words, 5 of which occurred before: dropped
    assert summary(text, 100) == "the cat sat on the mat\na dog barked at the moon"
    assert summary(text, 8) == "the cat sat on the mat\na dog"
    assert summary(text, 6) == "the cat sat on the mat"
    assert PROFILES["cnndm"].reference("a b <S_SEP> c d") == "a b\nc d"
    assert PROFILES["gigaword"].prediction("in 11 days ( [UNK] )") == "in ## days -lrb- UNK -rrb-"
    assert PROFILES["xsum"].prediction('the well - known ( old ) " x "') == 'the well - known -LRB- old -RRB- " x "'
    assert PROFILES["squad-qg"].prediction("Who ' s ( he ) ?") == "who 's -lrb- he -rrb- ?"


def test_a_summary_that_marks_no_sentences_is_cut_at_its_points() -> None:
    text = "the cat sat on the mat . too short . the mat the cat sat on it . a dog barked at the moon ."
    assert summary(text, 100) == "the cat sat on the mat .\na dog barked at the moon ."
    assert summary("The cat sat on the mat. The cat sat on the mat. A dog barked at 3 p.m.", 100).count("\n") == 1


def test_uncased_brings_both_sides_to_what_a_lower_casing_tokenizer_says() -> None:
    asked = "Who's Zoë's 3.5-year-old \"friend\", 王 (U.N.)?"
    said = "who ' s zoe ' s 3 . 5 - year - old \" friend \" , 王 ( u . n . ) ?"
    assert uncased(asked) == uncased(said) == said
    assert uncased("A [UNK] or -LRB- b") == "a [unk] or -lrb- b"
    assert retokenise("11,234.56 -LRB- foo -RRB- .") == "11,234.56 -LRB- foo -RRB- ."  # already tokenised
    assert coco([said], [[asked]]).values["bleu_4"] < 50
    assert coco([said], [[asked]], profile="uncased").values["bleu_4"] == pytest.approx(100)


@pytest.mark.parametrize(
    "name", ["squad-question-generation", "squad-question-generation-v1", "cnndm", "cnndm-v1", "xsum"]
)
def test_a_perfect_text_of_an_uncased_model_is_perfect_by_the_metric_of_its_recipe(name: str) -> None:
    texts = [
        "What's the name of John F. Kennedy's 3,000-ton ship?\nIt is the famous PT-109.",
        "The U.S. Army left in May 1865.\nNobody in Paris knew of it until the next morning.",
    ]
    tokenizer = Tokenizer.train(texts * 20, TokenizerSettings(vocab_size=200))
    said = [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)]
    assert said != texts and said[0] == said[0].lower()
    recipe = load_recipe(name)
    (used,) = recipe.task.metrics
    result = metric(used)(said, [[text] for text in texts], **recipe.task.metric_options)
    for key, value in result.values.items():
        assert value == pytest.approx(100, abs=0.01), key


def test_bleu_reports_its_signature() -> None:
    result = bleu(["The cat sat."], [["The cat sat."]], tokenize="intl")
    assert result.values["bleu"] == pytest.approx(100)
    assert "tok:intl" in result.note and "nrefs:1" in result.note
    assert bleu(["a b c d", "e f g h"], [["a b c d", "x"], ["e f g h"]]).values["bleu"] == pytest.approx(100)


STAND_IN = r"""
my $settings = $ARGV[-1];
open(my $in, "<", $settings) or die;
my $text = join("", <$in>);
my ($folder) = $text =~ m{<PEER-ROOT>(.*?)</PEER-ROOT>};
my @peers = $text =~ m{<P ID="1">(.*?)</P>}g;
my @models = $text =~ m{<M ID="\d">(.*?)</M>}g;
for (@peers, @models) { -f "$folder/$_" or die "no $_"; }
"@ARGV" =~ /^-e \S*data -a -c 95 -m -n 2 -r 1000 / or die "other options\n";
for my $kind ("1", "2", "L") { for my $m ("R", "P", "F") {
    printf "1 ROUGE-%s Average_%s: 0.%d%d000 (95%%-conf.int. 0.1 - 0.2)\n", $kind, $m, scalar(@peers), scalar(@models);
}}
"""


def test_the_perl_script_is_found_run_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("perl") is None:
        pytest.skip("no perl")
    script = tmp_path / "ROUGE-1.5.5.pl"
    monkeypatch.setenv("ROUGE_HOME", str(tmp_path))
    with pytest.raises(UniclozeError, match=r"is not in .*which ROUGE_HOME names: install it"):
        find_script()
    script.write_text(STAND_IN)
    result = perl_rouge(["a <b> & c. D", "e"], [["x", "y"], ["z"]])
    assert set(result.values.values()) == {23.0}
    assert list(result.values)[:2] == ["rouge1", "rouge1_precision"]
    script.write_text('die "Cannot open exception db\n";')
    with pytest.raises(UniclozeError, match="failed with the message: Cannot open exception db"):
        perl_rouge(["a"], [["a"]])
    monkeypatch.delenv("ROUGE_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UniclozeError, match="is not on the PATH, and ROUGE_HOME is not set"):
        find_script()


def test_the_real_perl_script_agrees(e2e: tuple[list[str], list[list[str]]]) -> None:
    if "ROUGE_HOME" not in os.environ and shutil.which("ROUGE-1.5.5.pl") is None:
        pytest.skip("ROUGE-1.5.5.pl is not installed")
    predictions, references = e2e[0][:100], [several[:1] for several in e2e[1][:100]]
    theirs, ours = perl_rouge(predictions, references), rouge(predictions, references)
    for name, value in theirs.values.items():
        assert ours.values[name] == pytest.approx(value, abs=0.4)


@pytest.mark.parametrize(
    "name", [name for name, one in METRICS.items() if one.compares == "texts" and name != "diversity"]
)
def test_texts_must_match(name: str) -> None:
    with pytest.raises(UniclozeError, match="2 predictions and 1 references"):
        metric(name)(["a", "b"], [["a"]])
    with pytest.raises(UniclozeError, match="nothing to compare"):
        metric(name)([], [])
    with pytest.raises(UniclozeError, match="Prediction 2 has no reference"):
        metric(name)(["a", "b"], [["a"], []])
    with pytest.raises(UsageError, match="references of a text must be a list"):
        metric(name)(["a"], ["a"])


def test_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no metric rogue: did you mean rouge"):
        metric("rogue")
    with pytest.raises(UsageError, match="no option profile: it takes tokenize"):
        metric("bleu")(["a"], [["a"]], profile="cnndm")
    with pytest.raises(UsageError, match="tokenize is 'ja': give one of 13a"):
        metric("bleu")(["a"], [["a"]], tokenize="ja")
    assert metric("coco")(["a ' s"], [["a 's"]], profile="squad-qg").values["bleu_2"] == pytest.approx(100)
    monkeypatch.setitem(__import__("sys").modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UniclozeError, match=r'needs rouge_score .* in the clone, pip install -e "\.\[metrics\]"'):
        metric("rouge")(["a"], [["a"]])


def test_a_result_is_shown_with_its_units_and_note() -> None:
    assert str(MetricResult(metric="m", values={"a": 1.5, "bits": 2}, items=1, units={"bits": "bits"}, note="So.")) == (
        "m of 1 item\n  a          1.50 %\n  bits     2.0000 bits\n  So."
    )
