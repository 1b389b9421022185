"""Names of special tokens, by their role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unicloze.settings import TokenizerSettings

PAD, UNUSED, UNK, SOS, EOS, MASK, PSEUDO = "[PAD]", "[unused1]", "[UNK]", "[SOS]", "[EOS]", "[MASK]", "[PSEUDO]"
SPECIAL_TOKENS = PAD, UNUSED, UNK, SOS, EOS, MASK, PSEUDO
"""Special tokens of a trained vocabulary, by id. Id 1 is never used because MPNet treats it as padding."""

ROLES = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "sos": (SOS, "[CLS]", "<cls>", "<s>"),
    "eos": (EOS, "[SEP]", "<sep>", "</s>"),
    "mask": (MASK, "<mask>"),
}
STAND_INS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "<extra_id_0>": {"sos": ROLES["eos"], "mask": ("<extra_id_0>",)},
    "<|endoftext|>": dict.fromkeys(ROLES, ("<|endoftext|>",)),
}
"""Tokens that take the roles a vocabulary lacks, by a token it has: T5's rows use neither [SOS] nor masks, and GPT-2 has one
special token, which separates texts."""
PSEUDO_NAMES = PSEUDO, "[P]", "<pseudo>"


def names_with_a_role() -> list[str]:
    """All names of special tokens that have a role."""
    return [*(token for names in (*ROLES.values(), PSEUDO_NAMES) for token in names), *STAND_INS]


def special_tokens(settings: TokenizerSettings) -> list[str]:
    """Special tokens of a trained vocabulary, in the order of their ids."""
    return [*SPECIAL_TOKENS, *(f"[EXTRA{i}]" for i in range(settings.extra_tokens))]
