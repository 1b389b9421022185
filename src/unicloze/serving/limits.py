"""How much a request may ask for, and the error for a request that is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LONGEST_OUTPUT = 512
"""Maximum number of tokens to generate."""
MOST_TEXTS_OUT = 16
"""Maximum number of beams, and of generated texts per source."""
MOST_CANDIDATES = 50
"""Maximum number of candidates per mask."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Args:
        body: Bytes of a request.
        texts: Texts of a request.
        characters: Characters of all texts of a request that reads each text once.
        careful_characters: Characters of all texts of a request that takes a forward pass for each token or mask.
        masks: Masks of a text.
        waiting: Requests that wait for the model; more are refused.
        seconds: Time from the end of a request's headers to the last byte of its answer.
        head_seconds: Time until the headers of a request have come.
        connections: Open connections; more are refused.
    """

    body: int = 1 << 20
    texts: int = 512
    characters: int = 200_000
    careful_characters: int = 4_000
    masks: int = 64
    waiting: int = 128
    seconds: float = 60.0
    head_seconds: float = 10.0
    connections: int = 512


class Refused(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        sentence: What is wrong and how to fix it.
        headers: Additional headers of the answer.
        code: Name of the error for clients of OpenAI's interface.
    """

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers, self.code = status, sentence, dict(headers or {}), code


def check_texts(texts: Sequence[str], most: int, characters: int) -> None:
    """Refuse too many or blank texts, and texts that are too long together.

    Raises:
        Refused: The texts exceed a limit (413), or there is none or a blank one (422).
    """
    if not texts:
        raise Refused(422, "There is no text: give at least one.")
    if len(texts) > most:
        raise Refused(
            413, f"The request has {len(texts):,} texts, but at most {most:,} are read at once: send them in parts."
        )
    total = sum(map(len, texts))
    if total > characters:
        raise Refused(413, f"The text has {total:,} characters, but at most {characters:,} are read: shorten it.")
    blank = next((number for number, text in enumerate(texts, start=1) if not text.strip()), None)
    if blank is not None:
        which = "The text" if len(texts) == 1 else f"Text {blank} of {len(texts):,}"
        raise Refused(422, f"{which} is empty: give it at least one word.")
