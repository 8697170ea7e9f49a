"""What a launcher itself prints about a failure: which of its paragraphs are worth a reader's time."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A paragraph about a failure that the rank agents tell better.
_KNOWN_BETTER = re.compile(
    r"primary job\s+terminated normally|non-zero (exit code|status)|exited on signal|abnormal termination of",
    re.IGNORECASE,
)
_RULE = re.compile(r"-{20,}")


def worth_telling(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines of the paragraphs, which rules divide, that say more than that a rank failed.

    Args:
        lines: What the launcher printed, without the ranks' output.
    """
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if _RULE.fullmatch(line.strip()):
            paragraphs.append([])
        elif line.strip():
            paragraphs[-1].append(line)
    kept = (part for part in paragraphs if not _KNOWN_BETTER.search(" ".join(part)))
    return tuple(line for part in kept for line in part)
