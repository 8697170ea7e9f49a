"""SVG's elements: escaped, measured, cut with an ellipsis."""

from xml.etree import ElementTree

from hvdtrain.report.svg import element, fit_text, label, picture, text_width
from tests.unit.report.documents import NASTY


def test_texts_and_attributes_are_escaped():
    svg = picture("k", NASTY, "a < b & c", 10, [label(0, 0, NASTY), element("g", class_='"><script>')])
    parsed = ElementTree.fromstring(svg)
    assert not [node for node in parsed.iter() if "script" in node.tag]
    assert "<script>alert" in parsed.find("title").text
    assert "\x1b" not in svg
    svg.encode("utf-8")


def test_a_picture_is_named_and_described():
    parsed = ElementTree.fromstring(picture("loss", "Loss", "It falls.", 100, []))
    assert parsed.get("role") == "img"
    ids = parsed.get("aria-labelledby").split()
    assert [node.text for node in parsed if node.get("id") in ids] == ["Loss", "It falls."]


def test_numbers_are_short_and_have_no_minus_zero():
    assert element("line", x1=1 / 3, x2=-0.0001, y1=2.0, class_=None) == '<line x1="0.33" x2="0" y1="2"/>'


def test_a_text_without_room_is_cut_with_an_ellipsis():
    name = "gpu-000.cluster.example.org"
    assert fit_text(name, text_width(name)) == name
    cut = fit_text(name, 80)
    assert cut.endswith("…")
    assert name.startswith(cut[:-1])
    assert text_width(cut) <= 80
