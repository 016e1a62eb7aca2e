"""`python -m feedsvc`."""

from __future__ import annotations

from feedsvc.cli import main

raise SystemExit(main())
