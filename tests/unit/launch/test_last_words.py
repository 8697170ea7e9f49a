"""Which lines wait for the verdict, by a clock that the test turns."""

import pytest

from hvdtrain.launch.last_words import LastWords

FIRST = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "KeyError: 'a'"]
LINK = ["", "During handling of the above exception, another exception occurred:", ""]
SECOND = ["Traceback (most recent call last):", "    f()", "RuntimeError: no"]


@pytest.fixture
def words():
    """What waits, and the list of what was shown."""
    shown = []
    return LastWords(shown.append), shown


def take(words, shown, lines, now=0.0):
    shown += [line for line in lines if not words.take(line, now)]


@pytest.mark.parametrize(
    ("lines", "held"),
    [
        (["a", *FIRST], FIRST),
        ([*FIRST, *LINK, *SECOND], [*FIRST, *LINK, *SECOND]),
        ([*FIRST, *SECOND], SECOND),  # the first was survived: nothing joins them
        ([*FIRST, "went on"], []),
        ([*FIRST, "went on", *SECOND], SECOND),
        ([*FIRST, *LINK, "went on"], []),
        ([*FIRST, "  a note of the exception", ""], [*FIRST, "  a note of the exception", ""]),
        (FIRST[:2], FIRST[:2]),
        (["hvdtrain: error: no such file"], ["hvdtrain: error: no such file"]),
        ([*FIRST, "hvdtrain: error: no such file"], ["hvdtrain: error: no such file"]),
        (["hvdtrain: error: no such file", "went on"], []),
    ],
)
def test_last_traceback_waits(words, lines, held):
    waiting, shown = words
    take(waiting, shown, lines)
    assert waiting.is_waiting == bool(held)
    assert shown == lines[: len(lines) - len(held)]
    assert waiting.close() == held
    assert not waiting.is_waiting


def test_everything_that_an_uncaught_exception_prints_waits(words):
    waiting, shown = words
    waiting.begin(0.0)
    take(waiting, shown, [*FIRST, "a second line of its message"])
    waiting.end(is_lost=True)
    take(waiting, shown, ["W: shutdown"])
    waiting.pass_by()
    waiting.release_if_old(5.0)
    assert shown == ["W: shutdown"]
    assert waiting.close() == [*FIRST, "a second line of its message"]


def test_nothing_takes_the_place_of_the_programs_own_exception(words):
    waiting, shown = words
    waiting.begin(0.0)
    take(waiting, shown, FIRST)
    waiting.end(is_lost=True)
    waiting.begin(1.0)  # of a process that it started
    take(waiting, shown, SECOND, 1.0)
    waiting.end(is_lost=False)
    waiting.release_if_old(3.0)
    assert shown == SECOND
    assert waiting.close() == FIRST


def test_lost_program_that_goes_on_for_long_is_shown_and_told_again(words):
    waiting, shown = words
    waiting.begin(0.0)
    take(waiting, shown, FIRST)
    waiting.end(is_lost=True)
    waiting.release_if_old(9.0)
    take(waiting, shown, ["on"], 9.0)
    assert shown == [*FIRST, "on"]
    assert waiting.close() == FIRST


def test_exception_of_another_process_waits_a_second_only(words):
    waiting, shown = words
    waiting.begin(0.0)
    take(waiting, shown, FIRST, 0.5)
    waiting.end(is_lost=False)
    waiting.release_if_old(1.0)
    assert shown == []
    waiting.release_if_old(1.6)
    assert shown == FIRST
    assert waiting.close() == []


def test_process_that_died_while_it_told_of_its_exception(words):
    waiting, shown = words
    waiting.begin(0.0)
    take(waiting, shown, FIRST[:1])
    waiting.release_if_old(1.1)
    take(waiting, shown, ["on"], 1.2)
    assert shown == [FIRST[0], "on"]


def test_line_of_stdout_shows_that_the_rank_survived(words):
    waiting, shown = words
    take(waiting, shown, FIRST)
    waiting.pass_by()
    assert shown == FIRST
