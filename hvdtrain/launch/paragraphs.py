"""What a launcher itself prints: which of its paragraphs are worth a reader's time, and when."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable

# A paragraph about a failure that the rank agents tell better.
_KNOWN_BETTER = re.compile(
    r"primary job\s+terminated normally|non-zero (exit code|status)|exited on signal|abnormal termination of",
    re.IGNORECASE,
)
_MAX_LINES = 500
_WAIT_S = 1.0  # for the rest of a paragraph, and for the launcher's end, which tells all of it
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


class Talk:
    """What a launcher says around its ranks.

    Attributes:
        lines: The last of it.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._untold: deque[str] = deque(maxlen=_MAX_LINES)
        self._since = float("inf")

    def hear(self, line: str, now: float) -> None:
        """Takes a line."""
        self.lines.append(line)
        self._untold.append(line)
        self._since = min(self._since, now)

    def tell_if_old(self, now: float) -> None:
        """Shows what was said a moment ago: for a launcher that goes on, as one that waits for its ranks."""
        if now - self._since > _WAIT_S:
            self.tell()

    def tell(self) -> None:
        """Shows on stderr what has not been shown and is worth telling."""
        sys.stderr.writelines(f"{line}\n" for line in worth_telling(self._untold))
        sys.stderr.flush()
        self._untold.clear()
        self._since = float("inf")
