"""What the model of a run sees, as HTML: the mask picture of one row, with an explanation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from unicloze.files import RECIPE, TOKENIZER
from unicloze.mixtures import parts
from unicloze.objectives.groups import Shown
from unicloze.recipes import load_recipe
from unicloze.report.example_view import ExampleView, example_of, view_of
from unicloze.report.history import History, mapping, sequence
from unicloze.report.picture import draw_mask
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer

_PICTURE_WINDOW = 28
_FEW_WORDS = 8
_SENTENCE = "A cloze test hides some words of a text and asks for them back, one after the other or several at once."

_CONTEXT: Mapping[tuple[bool, bool], str] = {
    (False, False): "C is the text",
    (False, True): "C is the given text",
    (True, False): "C is the text with its masked positions",
    (True, True): "C is the text with its masked positions",
}
"""Meaning of C, by whether it has masked positions and whether there are other groups."""
_ORIGINALS: Mapping[tuple[bool, bool], str] = {
    (False, False): "O the same text without masks",
    (False, True): "O the original tokens of what is predicted, visible to later steps",
    (True, False): "O the text to generate, token by token: each predicts the next",
    (True, True): "O the text to generate, token by token: each predicts the next",
}
"""Meaning of O, by whether its slots predict and whether they have steps."""


@dataclass(frozen=True, kw_only=True)
class Fed:
    """One row of a run."""

    view: ExampleView  # the row
    caption: str  # origin of its text, and its part of a mixture
    noisy: bool  # whether masked positions may show a random or the original token, which happens in training only

    @classmethod
    def of(cls, history: History) -> Fed:
        """A row of the first tokens of a held-out sample, or of a sentence if there is none."""
        recipe = load_recipe(history.run / RECIPE)
        trained_on = recipe.data.window
        if (history.run / TOKENIZER).is_file():
            tokenizer = Tokenizer.load(history.run)
        else:
            tokenizer = whitespace_tokenizer(_SENTENCE, recipe.tokenizer.extra_tokens)
        window = min(trained_on, _PICTURE_WINDOW)
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, window=window))
        text, origin = _sample_text(history, tokenizer)
        token_ids = tokenizer.encode_batch([text])[0]
        view = view_of(recipe, token_ids, recipe.training.seed, tokenizer)
        caption = f"{origin}, cut to {window} tokens; this recipe trains on windows of {trained_on} tokens."
        part, *others = parts(recipe.objective)
        if others:
            names = ", ".join(f"“{other.label}”" for other in others)
            caption += f" The row is of the part “{part.label}”; other rows: {names}."
        noisy = isinstance(part.settings, Shown) and part.settings.mask_share < 1
        if isinstance(part.settings, Shown) and noisy:
            noise = [dataclasses.replace(part.settings, mask_share=share, random_share=0.0) for share in (0.0, 1.0)]
            kept, hidden = (
                example_of(
                    dataclasses.replace(recipe, objective=made), token_ids, recipe.training.seed, tokenizer
                ).input_ids
                for made in noise
            )
            noisy = not np.array_equal(kept, hidden)
        return cls(view=view, caption=caption, noisy=noisy)

    def to_html(self) -> str:
        """The picture, with an explanation of its groups above and the origin of its text below."""
        lead = f"Each row of the matrix is a slot that reads, each column a slot that is read. {groups_in_words(self.view)}"
        return (
            f'<p class="lead">{escape(lead)}</p><figure class="panel">'
            f'<div class="picture">{draw_mask(self.view).to_svg()}</div>'
            f"<figcaption>{escape(self.caption)}</figcaption></figure>"
        )


def groups_in_words(view: ExampleView) -> str:
    """Explanation of the groups that a row has."""
    says = view.predictions
    masked = any(slot.kind == "mask" for slot in view.slots)
    names = [name for name, _ in view.groups]
    originals = [slot for slot in view.slots if slot.group == "O"]
    predicting = any(slot.slot in says for slot in originals)
    stepped = any(slot.step is not None for slot in originals)
    said = {
        "C": _CONTEXT[masked, len(set(names)) > 1],
        "O": _ORIGINALS[predicting, stepped],
        "P": "P the mask that predicts its first token" if predicting else "P the pseudo masks that predict them",
        "M": "M a memory of the preceding text",
    }
    words = f"{', '.join(said[name] for name in said if name in names)}."
    if names == ["C", "O", "P"]:
        words += (
            " O and P are in the order in which the steps predict them. A pseudo mask reads the context, the originals "
            "of earlier steps and the pseudo masks of its own step."
        )
    return words


def _sample_text(history: History, tokenizer: Tokenizer) -> tuple[str, str]:
    """The held-out sample with the most words at its start, unmasked, or else a sentence; with its origin."""
    texts = []
    for sample in next(iter(history.samples.values()), []):
        tokens = [str(token) for token in sequence(sample.get("tokens"))]
        for place in map(mapping, sequence(sample.get("masked"))):
            position = place.get("position")
            if isinstance(position, int) and 0 <= position < len(tokens):
                tokens[position] = str(place.get("truth", tokens[position]))
        ids = [tokenizer.token_id(token) for token in tokens]
        texts.append(tokenizer.decode([i for i in ids if i is not None], skip_special=True))
    best = max(texts, key=_words_at_start, default="")
    if _words_at_start(best) >= _FEW_WORDS:
        return best, "The start of a held-out window"
    return _SENTENCE, "An example sentence, as no held-out sample has enough words"


def _words_at_start(text: str) -> int:
    return sum(word.isalpha() for word in text.split()[:_PICTURE_WINDOW])
