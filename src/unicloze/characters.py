"""Classes of characters that text and metrics both tell apart."""

import re

IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
"""Characters that tokenizers isolate although no spaces surround them; they leave others, such as kana, as written."""
