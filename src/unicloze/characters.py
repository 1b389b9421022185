"""Classes of characters that text and metrics both tell apart."""

import re

IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
"""What a tokenizer sets apart though no space stands around it; kana, for one, it leaves as they are written."""
