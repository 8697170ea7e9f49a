import pytest

from hvdtrain.data.braces import expand_braces
from hvdtrain.errors import InputError


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{0..2}.tar", ["a-0.tar", "a-1.tar", "a-2.tar"]),
        ("a-{008..010}", ["a-008", "a-009", "a-010"]),
        ("a-{8..10}", ["a-8", "a-9", "a-10"]),
        ("a-{08..10}", ["a-08", "a-09", "a-10"]),
        ("a-{2..0}", ["a-2", "a-1", "a-0"]),
        ("{x,y}/{0..1}", ["x/0", "x/1", "y/0", "y/1"]),
        ("a{,b}", ["a", "ab"]),
        ("{000..000}", ["000"]),
    ],
)
def test_as_bash_does(pattern, names):
    assert expand_braces(pattern, where="") == names


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a-{}.tar", r"\{\} in 'a-\{\}.tar' stands for nothing"),
        ("a-{0..}.tar", r"\{0..\} .* stands for nothing"),
        ("a-{..7}", "stands for nothing"),
        ("a-{x}", "stands for nothing"),
        ("a-{0..7", "a brace too many"),
        ("a-0..7}", "a brace too many"),
        ("a-{{0..1},b}", "a brace too many"),
        ("{0..999}{0..999}{0..9}", "stands for 10,000,000 names"),
        ("{0..99999999999999999999}", "stands for 100,000,000,000,000,000,000 names"),
    ],
)
def test_refused(pattern, said):
    with pytest.raises(InputError, match=rf"^data.train: .*{said}.*; legal: "):
        expand_braces(pattern, where="data.train")
