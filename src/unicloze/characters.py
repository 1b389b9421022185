"""Character classes shared by text processing and metrics."""

from __future__ import annotations

import re

IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
"""Characters that tokenizers isolate even without spaces; others, such as kana, are not split."""
