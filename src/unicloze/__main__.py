"""`python -m unicloze` is `unicloze`."""

from __future__ import annotations

import sys

from unicloze.cli import main

sys.exit(main())
