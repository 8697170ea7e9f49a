"""Where the measurements of ``hvdtrain bench`` go: a document on stdout or in a file, notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError


def deliver(document: Mapping[str, Any], save: Path | None, as_json: bool) -> None:
    """Prints the document where JSON is asked for, and writes it to a file where one is named.

    Raises:
        InputError: The file cannot be written.
    """
    text = json.dumps(document)
    if save is not None:
        from hvdtrain.files import write_atomically

        try:
            write_atomically(save, text + "\n")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(save)) from None
    if as_json:
        print(text)


def tell_note(text: str) -> None:
    """A note to the user."""
    print(f"hvdtrain: note: {text}", file=sys.stderr, flush=True)


def words(text: str | None) -> tuple[str, ...]:
    """The words of a list; none where nothing was said."""
    return () if text is None else tuple(word.strip() for word in text.split(","))
