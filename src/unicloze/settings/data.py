"""Settings of the corpus and its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from unicloze.settings.values import PYTHON_DOCS


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Documents and the windows cut from them.

    Args:
        corpus: Files, folders or globs of .txt, .jsonl or .parquet (also .gz, .zst), `python-docs`, or a Hugging Face dataset
            as `hf:NAME[:SPLIT[:COLUMN]]`, where NAME is a folder or OWNER/NAME[/CONFIG]. Files, folders and globs may also be
            URLs such as `s3://bucket/*.jsonl.zst` (fsspec). Each entry is a source.
        weights: Passes over each source per epoch; default: 1.
        text_field: Field of .jsonl or column of .parquet that holds the text.
        spans_field: Field of .jsonl with the spans of a text that `objective.mask_unit` phrase and entity mask as a whole: a
            list of [first character, end, kind] with kind `phrase` or `entity` (default); those of a kind do not overlap.
            Default: spans are not read.
        prepared: Folder written by `prepare`, to read instead of preparing the corpus again.
        window: Length of a window in tokens, special tokens included.
        segments: 2 for "[SOS] S1 [EOS] S2 [EOS]" (paper Section 2.2), 1 for "[SOS] S1 [EOS]".
        documents: `separate` cuts windows within documents (the last window of each may be short); `joined` concatenates all
            documents with an [EOS] between them, so that every window is full (RoBERTa's full sentences, GPT).
        order: `shuffled`, or `streams`: row i of a batch continues the text of row i of the previous batch, as segment
            recurrence needs (XLNet); its two segments are then contiguous.
        overlap: Share of a window's text in `streams` that the next window reads again. Only the other tokens enter the
            memory, and they are in one segment, so that the other segment can come from elsewhere (`objective.pairs`
            next_sentence; XLNet). It needs `joined` documents and two segments.
        directions: With `backward`, the rows of `streams` read the text from its last window to its first, so that the memory
            of a window is the text after it; with `both`, half of them do (XLNet); with `forward`, none do.
        lengths: With `random`, each step draws the length of its windows around `window` (a normal distribution of deviation
            5; in 5 % of the steps around half of it), and its learning rate is scaled by their share of `window` (AWD-LSTM).
            It needs `joined` documents, one segment and `streams`. Evaluations read whole windows.
        heldout_share: Share of the documents held out for evaluation, chosen by a hash of their text; at least one document
            of every source is kept for training.
        deduplicate: Drop documents whose text was seen before (ignoring white space and case).
        decontaminate: Evaluation files, folders or globs. Training text that shares `decontaminate_ngram` consecutive words
            with one of their texts is cut, with 200 characters on either side.
        decontaminate_ngram: Number of words that must be equal.
        phrases: Text file with one phrase per line, for `objective.mask_unit` phrase and entity; default: phrases found in
            the training text.
    """

    corpus: list[str] = field(default_factory=lambda: [PYTHON_DOCS])
    weights: list[float] | None = None
    text_field: str = "text"
    spans_field: str | None = None
    prepared: str | None = None
    window: int = 512
    segments: Literal[1, 2] = 2
    documents: Literal["separate", "joined"] = "separate"
    order: Literal["shuffled", "streams"] = "shuffled"
    overlap: float = 0.0
    directions: Literal["forward", "backward", "both"] = "forward"
    lengths: Literal["fixed", "random"] = "fixed"
    heldout_share: float = 0.02
    deduplicate: bool = True
    decontaminate: list[str] = field(default_factory=list)
    decontaminate_ngram: int = 13
    phrases: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Text to token ids.

    Args:
        path: A `vocab.txt`, `tokenizer.json` or `vocab.json` (with `merges.txt`) to load; default: train one on the corpus.
        kind: Tokenizer to train: `wordpiece` (BERT) or `bpe` (byte-level, GPT-2 and RoBERTa).
        vocab_size: Size of the trained vocabulary, special tokens included.
        lowercase: Lower-case the text when training a tokenizer (WordPiece only). For a loaded `vocab.txt`, the
            `tokenizer_config.json` next to it decides, else whether the vocabulary has capitals.
        strip_accents: Strip accents when training a tokenizer (WordPiece only), as BERT's uncased vocabularies do. In many
            scripts this removes the vowels.
        extra_tokens: Number of special tokens [EXTRA0], [EXTRA1], ... in a trained vocabulary: T5's sentinels, UL2's mode
            tokens.
    """

    path: str | None = None
    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    vocab_size: int = 30522
    lowercase: bool = True
    strip_accents: bool = False
    extra_tokens: int = 0
