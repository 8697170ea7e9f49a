"""Where a script's loops over epochs begin when it goes on."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.train.course import Course

A, B, OWN = "a loader", "another loader", None


def begin(course, loader, batches=1):
    """A loop over a loader that takes batches and makes a step of each."""
    loop = course.enter(loader)
    for _ in range(batches):
        course.took(loop)
        course.passed()
    return loop


def in_an_epoch():
    """A script in its first epoch, and what leads to the next."""
    course = Course()
    epochs = course.over(2)
    assert next(epochs) == 0
    return course, epochs


def walk(course, stop=None):
    """Two loops of 3 and 2 epochs with training in each; the places behind the training of each epoch."""
    done, places = [], []
    for loop, count in enumerate((3, 2)):
        for epoch in course.over(count):
            before = course.next_place()
            assert before == (loop, epoch)
            course.leave(begin(course, OWN))
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
    course.go_on(*places[-1], 7)
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
    course.go_on(0, 4, 9)
    assert list(course.over(3)) == []
    assert list(course.over(2)) == [0, 1]


def inside(course):
    """Whether a save is refused, and the epoch in which a run would go on."""
    course.check_place()
    return course.next_place()[1]


def test_only_loops_that_make_steps_move_the_script_on():
    course, epochs = in_an_epoch()
    for loader in (A, OWN):  # a look at the first batch
        looked = course.enter(loader)
        course.took(looked)
        course.leave(looked)
        assert inside(course) == 0
    outer = begin(course, A)
    validation = course.enter(OWN)
    course.took(validation)
    course.leave(validation)
    assert inside(course) == 0
    course.took(outer)
    course.leave(outer)
    assert inside(course) == 1
    assert next(epochs) == 1
    assert inside(course) == 1


def test_a_step_of_one_batch_that_was_taken_before():
    course, _epochs = in_an_epoch()
    looked = course.enter(A)
    course.took(looked)
    course.leave(looked)
    course.passed()
    assert inside(course) == 1


@pytest.mark.parametrize("second", [A, B])
def test_a_second_loop_over_training_data_of_one_epoch_is_refused(second):
    course, epochs = in_an_epoch()
    course.leave(begin(course, A))
    again = begin(course, second)
    with pytest.raises(InputError, match="inside a second loop over training data of one epoch"):
        course.check_place()
    course.leave(again)
    assert inside(course) == 1
    next(epochs)
    begin(course, A)
    assert inside(course) == 1


def test_two_loaders_side_by_side():
    course, _epochs = in_an_epoch()
    first, second = course.enter(A), course.enter(B)
    for _ in range(2):
        course.took(first)
        course.took(second)
        course.passed()
        assert inside(course) == 0
    course.leave(first)
    with pytest.raises(InputError, match="second loop"):  # who knows whether the second one goes on
        course.check_place()
    course.leave(second)
    assert inside(course) == 1


def test_steps_on_other_batches_inside_of_a_step():
    course, _epochs = in_an_epoch()
    outer = begin(course, A)
    for _ in range(2):
        course.leave(begin(course, OWN, 3))
        assert inside(course) == 0
        course.took(outer)
        course.passed()
    course.leave(outer)
    assert inside(course) == 1


def test_inside_a_loader_of_the_users_own():
    course, _epochs = in_an_epoch()
    for loops in ((OWN,), (OWN, A)):
        opened = [begin(course, loader) for loader in loops]
        with pytest.raises(InputError, match="a loader of your own, whose place is not known"):
            course.check_place()
        for loop in reversed(opened):
            course.leave(loop)
    assert inside(course) == 1


def test_a_loop_that_another_one_over_its_loader_ended():
    course, _epochs = in_an_epoch()
    course.took(older := course.enter(A))
    newer = begin(course, A)
    assert not course.leave(older)
    assert inside(course) == 0
    assert course.leave(newer)
    assert inside(course) == 1


def test_steps_of_several_models():
    """Those of one batch are one, of whichever models they are."""
    course, loop = Course(), Course().enter(A)
    for optimizers, steps in (("ab", 1), ("b", 2), ("b", 3), ("bbba", 6)):
        course.took(loop)
        for optimizer in optimizers:
            course.stepped(optimizer)
        assert course.num_steps == steps
