"""Runs the command line as `python -m unicloze`."""

from __future__ import annotations

import sys

from unicloze.cli import main

sys.exit(main())
