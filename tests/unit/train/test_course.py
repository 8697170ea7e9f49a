"""Where a script's loops over epochs begin when it goes on."""

import pytest

from hvdtrain.train.course import Course


def walk(course, stop=None):
    """Two loops of 3 and 2 epochs with training in each; the places behind the training of each epoch."""
    done, places = [], []
    for loop, count in enumerate((3, 2)):
        for epoch in course.over(count):
            before = course.next_place()
            assert before == (loop, epoch)
            course.passed()
            done.append((loop, epoch))
            places.append(course.next_place())
            if done[-1] == stop:
                return done, places
    return done, places


def test_all_epochs_of_all_loops():
    course = Course()
    done, places = walk(course)
    assert done == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert places == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    assert (course.epoch, course.num_epochs, course.next_place()) == (None, None, (2, 0))


@pytest.mark.parametrize("stop", [(0, 0), (0, 2), (1, 0), (1, 1)])
def test_nothing_is_left_out_or_done_twice(stop):
    before, places = walk(Course(), stop)
    course = Course()
    course.go_on(*places[-1])
    after, _ = walk(course)
    assert before + after == walk(Course())[0]


def test_inside_an_epoch_it_is_the_same_epoch():
    course = Course()
    for epoch in course.over(5):
        if epoch == 2:
            assert course.next_place() == (0, 2)
            break
    assert course.next_place() == (1, 0)


def test_fewer_epochs_than_were_done():
    course = Course()
    course.go_on(0, 4)
    assert list(course.over(3)) == []
    assert list(course.over(2)) == [0, 1]
