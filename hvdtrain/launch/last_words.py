"""Holds back what may be a rank's last words, so that they are told once: with the verdict.

A traceback that ends what a rank prints tells why it failed. One that the rank survives is output like any
other, and is shown in its place as soon as anything follows it, or after a second.
"""

from __future__ import annotations

from collections.abc import Callable

_TRACEBACK = "Traceback (most recent call last):"
_OWN_ERROR = "hvdtrain: error: "
# How Python joins the tracebacks of one failure.
_LINKS = ("During handling of the above exception", "The above exception was the direct cause")
_PATIENCE_S = 1.0  # how long a traceback stays unseen of which nobody knows whether the rank survives it
_LOST_PATIENCE_S = 8.0  # and one that no rank survives: other threads may go on


class LastWords:
    """What a rank printed last, while it may be the reason of its end.

    Args:
        say: Shows one line of stderr.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._held: list[str] = []
        self._since_s = 0.0
        self._is_open = False  # an uncaught exception is being printed, whatever its lines look like
        self._is_whole = False  # the line that names the exception has come
        self._is_lost = False  # the exception was uncaught in the program itself: it is about to end
        self._shown: list[str] = []  # words of a lost program that were shown, because it went on for long

    @property
    def is_waiting(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def take(self, text: str, now: float) -> bool:
        """Takes one line of stderr; returns whether it is held back."""
        if self._is_lost:
            return False  # what was to be held is
        if not self._is_open and not (self._held and self._goes_on(text)):
            self.release()
            if not text.startswith((_TRACEBACK, _OWN_ERROR)):
                return False
        if not self._held:
            self._since_s = now
        if text.startswith(_TRACEBACK):
            self._is_whole = False
        elif text.strip() and not text.startswith((" ", "\t")):
            self._is_whole = True
        self._held.append(text)
        return True

    def pass_by(self) -> None:
        """Takes notice of a line of stdout: whoever prints one has survived."""
        if not self._is_open and not self._is_lost:
            self.release()

    def begin(self, now: float) -> None:
        """An uncaught exception is about to be printed."""
        if self._is_lost:
            return  # of another process: the program's own is what counts
        self.release()
        self._is_open, self._since_s = True, now

    def end(self, *, is_lost: bool) -> None:
        """It was printed.

        Args:
            is_lost: Whether the program itself raised it, not another process that it started.
        """
        self._is_open, self._is_whole, self._is_lost = False, True, self._is_lost or is_lost

    def release_if_old(self, now: float) -> None:
        """Shows what has been held back for long enough."""
        patience_s = _LOST_PATIENCE_S if self._is_lost else _PATIENCE_S
        if self._held and now - self._since_s > patience_s:
            self._shown = self._held if self._is_lost else []
            self.release()

    def release(self) -> None:
        """Shows what is held back."""
        held, self._held = self._held, []
        self._is_open = self._is_whole = False
        for text in held:
            self._say(text)

    def close(self) -> list[str]:
        """The last words of a rank that failed, for the verdict; they are not shown before."""
        held, self._held = self._held, []
        return held or self._shown

    def _goes_on(self, text: str) -> bool:
        """Whether a line belongs to what is held."""
        if text.startswith(_TRACEBACK):
            last = next((line for line in reversed(self._held) if line.strip()), "")
            return last.startswith(_LINKS)
        return not self._is_whole or not text.strip() or text.startswith((" ", "\t", *_LINKS))
