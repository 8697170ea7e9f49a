"""How a rank's output becomes lines."""

from hvdtrain.launch.outlet import LineBuffer


def test_lines_come_when_they_are_complete():
    buffer = LineBuffer()
    assert buffer.feed(b"a\nb", 0.0) == [b"a"]
    assert buffer.progress(100.0) == []  # no progress bar: it may be half a word
    assert buffer.feed(b"c\n\nd", 101.0) == [b"bc", b""]
    assert (buffer.close(), buffer.close()) == ([b"d"], [])


def test_progress_bar_is_shown_once_a_second():
    buffer = LineBuffer()
    assert buffer.feed(b"\r10%", 0.0) == []
    assert buffer.progress(0.5) == []
    assert buffer.feed(b"\r20%", 0.9) == []
    assert buffer.progress(1.1) == [b"\r10%\r20%"]
    assert buffer.feed(b"\r30%", 1.2) == []
    assert buffer.progress(1.9) == []
    assert buffer.feed(b"\r40%\nnext", 2.3) == [b"\r30%\r40%"]


def test_newline_after_a_bar_that_was_shown_is_no_empty_line():
    buffer = LineBuffer()
    buffer.feed(b"\r99%", 0.0)
    assert buffer.progress(2.0) == [b"\r99%"]
    assert buffer.feed(b"\n\nnext\n", 2.1) == [b"", b"next"]


def test_endless_line_comes_in_parts():
    buffer = LineBuffer()
    assert [len(line) for line in buffer.feed(b"x" * 3_000_000, 0.0)] == [3_000_000]
