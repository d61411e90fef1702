"""Rate and time left, by a clock that is handed in."""

from __future__ import annotations

from datetime import datetime

import pytest

from diffclip.training.pace import Pace, clock_time, duration


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A run whose steps of 8 samples take as long as they are told to."""

    def __init__(self, steps: int, done: int = 0, **pauses: int | None) -> None:
        self.clock = Clock()
        self.pace = Pace(steps, done, **pauses, clock=self.clock)
        self.done = done

    def step(self, seconds: float, times: int = 1, wait: float = 0.0, samples: int = 8) -> Run:
        for _ in range(times):
            self.clock.now += seconds
            self.done += 1
            self.pace.step(self.done, samples * self.done, wait)
        return self

    def pause(self, kind: str, seconds: float) -> Run:
        with self.pace.pause(kind):
            self.clock.now += seconds
        return self


def test_nothing_is_known_before_the_second_step() -> None:
    run = Run(100)
    assert (run.pace.samples_per_second, run.pace.data_wait, run.pace.seconds_left) == (None, None, None)
    run.step(60)
    assert (run.pace.samples_per_second, run.pace.seconds_left) == (None, None)
    run.step(4)
    assert (run.pace.samples_per_second, run.pace.seconds_left) == (2, 98 * 4)


def test_the_start_and_slow_first_steps_do_not_count_once_there_are_usual_ones() -> None:
    run = Run(1000).step(600).step(300).step(40).step(9).step(2, times=3)
    assert run.pace.seconds_left == 2 * (1000 - 7)
    run.step(2, times=20)
    assert run.pace.seconds_left == 2 * (1000 - 27)
    assert run.pace.samples_per_second == 4


def test_the_first_step_after_a_resume_does_not_count() -> None:
    run = Run(1000, done=500).step(900).step(2, times=10)
    assert run.pace.seconds_left == 2 * (1000 - 511)
    # the samples before the start were not made in this one
    assert run.pace.samples_per_second == 4


def test_a_run_that_became_slower_is_forecast_by_its_recent_steps() -> None:
    run = Run(10_000).step(1, times=500)
    assert run.pace.seconds_left == 9500
    # two minutes are 40 such steps, so the window is 50
    run.step(3, times=49)
    assert run.pace.seconds_left == pytest.approx((10_000 - 549) * (49 * 3 + 1) / 50)
    run.step(3)
    assert run.pace.seconds_left == (10_000 - 550) * 3


def test_the_window_of_fast_steps_is_two_minutes() -> None:
    run = Run(100_000).step(0.5, times=1000)
    run.step(0.25, times=240)
    assert run.pace.seconds_left == pytest.approx((100_000 - 1240) * 120 / (240 + 120))
    run.step(0.25, times=240)
    assert run.pace.seconds_left == (100_000 - 1480) * 0.25


def test_the_share_of_waiting_is_that_of_the_window_by_time() -> None:
    run = Run(100).step(1, times=7)
    run.step(1, times=3, wait=0.0).step(3, wait=0.5)
    # 1.5 of the 7 seconds since the first steps
    assert run.pace.data_wait == pytest.approx(1.5 / 7)


def test_samples_are_those_that_were_counted() -> None:
    run = Run(1000).step(2, times=20, samples=512)
    assert run.pace.samples_per_second == 256


def test_pauses_are_no_part_of_a_step_and_unknown_ones_are_not_expected() -> None:
    run = Run(100, steps_per_epoch=50, validate_every=1)
    run.step(2, times=9).pause("looking about", 1000).step(2)
    # of validations none has been yet, so none is counted in
    assert run.pace.seconds_left == 2 * 90
    assert run.pace.samples_per_second == 4


def test_validations_and_checkpoints_to_come_take_as_long_as_they_took() -> None:
    run = Run(80, steps_per_epoch=20, validate_every=1).step(2, times=20)
    run.pause("validation", 30).pause("checkpoint", 10)
    assert run.pace.seconds_left == 60 * 2 + 3 * 30 + 3 * 10
    run.step(2, times=10)
    assert run.pace.seconds_left == 50 * 2 + 3 * 30 + 3 * 10
    run.step(2, times=10)
    # the second of each is due now
    assert run.pace.seconds_left == 40 * 2 + 3 * 30 + 3 * 10
    run.pause("validation", 50)
    assert run.pace.seconds_left == 40 * 2 + 2 * 40 + 3 * 10
    run.pause("checkpoint", 10)
    assert run.pace.seconds_left == 40 * 2 + 2 * 40 + 2 * 10
    run.step(2, times=40)
    assert run.pace.seconds_left == 40 + 10
    run.pause("validation", 40).pause("checkpoint", 10)
    assert run.pace.seconds_left == 0


def test_a_last_epoch_is_validated_whatever_its_number() -> None:
    run = Run(50, steps_per_epoch=10, validate_every=2).step(1, times=20).pause("validation", 5)
    # after epoch 4, and after 5, the last
    assert run.pace.seconds_left == 30 + 2 * 5
    run = Run(40, steps_per_epoch=10, validate_every=2).step(1, times=20).pause("validation", 5)
    assert run.pace.seconds_left == 20 + 5


@pytest.mark.parametrize(
    ("every", "to_come"),
    # after 20: ends of epochs 40, 60; every 15: 30, 45, 60; every 10: 30, 40, 50, 60
    [(None, 2), (15, 4), (10, 4), (20, 2)],
)
def test_checkpoints_between_the_ends_of_epochs_are_counted_once(every: int | None, to_come: int) -> None:
    run = Run(60, steps_per_epoch=20, checkpoint_every=every).step(1, times=20).pause("checkpoint", 7)
    assert run.pace.seconds_left == 40 + to_come * 7


def test_the_first_step_of_an_epoch_is_a_pause_of_its_own() -> None:
    run = Run(90, steps_per_epoch=30).step(2, times=30)
    run.step(20).step(2, times=9)
    # a third epoch begins once more, 18 seconds late
    assert run.pace.seconds_left == 50 * 2 + 18
    assert run.pace.samples_per_second == 4
    run.step(2, times=20)
    assert run.pace.seconds_left == 30 * 2 + 18
    run.step(22)
    assert run.pace.seconds_left == 29 * 2
    assert run.pace.samples_per_second == 4


def test_epochs_of_one_step_have_a_rate() -> None:
    run = Run(20, steps_per_epoch=1, validate_every=1)
    for _ in range(10):
        run.step(2).pause("validation", 3)
    assert run.pace.seconds_left == 10 * 2 + 10 * 3


def test_a_pause_within_a_pause_counts_once() -> None:
    run = Run(40, steps_per_epoch=20, validate_every=1).step(1, times=20)
    with run.pace.pause("validation"):
        run.clock.now += 4
        run.pause("checkpoint", 6)
    assert run.pace.seconds_left == 20 + 10
    run.step(1)
    assert run.pace.samples_per_second == 8


def test_a_pause_that_fails_is_over() -> None:
    run = Run(40, steps_per_epoch=20, validate_every=1).step(1, times=20)
    with pytest.raises(KeyError), run.pace.pause("validation"):
        run.clock.now += 4
        raise KeyError
    assert run.step(1).pace.seconds_left == 19 + 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (98.7, "99 s"),
        (100, "2 min"),
        (59 * 60, "59 min"),
        (3599, "1 h 00 min"),
        (3 * 3600 + 5 * 60, "3 h 05 min"),
        (24 * 3600 - 1, "1 d 00 h"),
        (52 * 3600, "2 d 04 h"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_moments_in_words() -> None:
    now = datetime(2026, 12, 1, 22, 30).timestamp()
    assert clock_time(now + 3600, now) == "23:30"
    assert clock_time(now + 2 * 3600, now) == "Wed 00:30"
    assert clock_time(now - 24 * 3600, now) == "Mon 22:30"
    assert clock_time(now + 8 * 24 * 3600, now) == "9 Dec 22:30"
