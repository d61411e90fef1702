"""Answers are kept as they come, and nothing is asked twice."""

import json
import os
import signal

import pytest

from diffclip.errors import InputError
from diffclip.vlm.answers import AnswerFile, holding
from diffclip.vlm.pope import Question, QuestionFile, ask_all
from diffclip.vlm.pope_scores import split_scores

WHOSE = {"model": "tiny", "content": "abc"}
KEYS = {1: "a", 2: "b", 3: "c"}


def answers(**said: str) -> list[dict[str, object]]:
    return [{"question_id": int(number.removeprefix("q")), "answer": text} for number, text in said.items()]


def test_answers_are_found_again(tmp_path):
    file = AnswerFile(tmp_path / "answers.jsonl", WHOSE, KEYS)
    file.add(answers(q1="Yes", q2='No\u2028, "not"\n really'))
    file.add(answers(q3=""))
    again = AnswerFile(tmp_path / "answers.jsonl", WHOSE, KEYS)
    assert again.found == {1: "Yes", 2: 'No\u2028, "not"\n really', 3: ""}
    assert not again.replaced


def test_a_torn_line_is_dropped_and_the_next_one_begins_a_line(tmp_path):
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, WHOSE, KEYS).add(answers(q1="Yes", q2="No"))
    whole = path.read_bytes()
    start = whole.index(b"\n", whole.index(b"\n") + 1) + 1  # of the second answer
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        file = AnswerFile(path, WHOSE, KEYS)
        assert file.found == {1: "Yes"}
        file.add(answers(q2="No"))
        assert path.read_bytes() == whole


def test_a_header_that_was_cut_off_is_nobody_s(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"answers_of": {"mod')
    file = AnswerFile(path, WHOSE, KEYS)
    assert file.found == {}
    file.add(answers(q1="Yes"))
    assert AnswerFile(path, WHOSE, KEYS).found == {1: "Yes"}


def test_answers_of_another_model_are_not_taken(tmp_path):
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, WHOSE, KEYS).add(answers(q1="Yes"))
    other = AnswerFile(path, WHOSE | {"content": "abd"}, KEYS)
    assert other.found == {}
    assert other.replaced


def test_a_question_that_has_changed_is_asked_again_and_one_beyond_a_limit_stays(tmp_path):
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, WHOSE, KEYS).add(answers(q1="Yes", q2="No", q3="Yes"))
    file = AnswerFile(path, WHOSE, {1: "a", 2: "changed"})
    assert 2 not in file.found
    file.add(answers(q2="Yes"))
    assert AnswerFile(path, WHOSE, {1: "a", 2: "changed", 3: "c"}).found == {1: "Yes", 2: "Yes", 3: "Yes"}


def test_two_processes_do_not_answer_into_one_folder(tmp_path):
    ready, hold, place = os.pipe(), os.pipe(), tmp_path / "answers"
    child = os.fork()
    if not child:  # locks are a process's own
        with holding(place, place / ".lock"):
            os.write(ready[1], b"1")
            os.read(hold[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        with (
            pytest.raises(InputError, match=f"process {child} .* is answering"),
            holding(place, place / ".lock"),
        ):
            pass
    finally:
        os.write(hold[1], b"1")
        os.waitpid(child, 0)
    with holding(place, place / ".lock"):
        pass


def test_what_was_killed_goes_on_to_the_same_numbers_and_asks_nothing_twice(tmp_path):
    questions = [
        Question(
            question_id=n, image=f"{n // 6}.jpg", text=f"Is there a {n}?", label="no" if n % 2 else "yes"
        )
        for n in range(60)
    ]
    file, keys = QuestionFile("random", questions), {n: str(n) for n in range(60)}
    log = tmp_path / "asked.txt"

    def ask(pictures, texts):
        with log.open("a") as lines:
            lines.writelines(f"{text}\n" for text in texts)
        return ["No" if int(text.split()[-1][:-1]) % 3 else "Yes" for text in texts]

    def killed(done):
        if len(log.read_text().splitlines()) >= 20:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        kept = AnswerFile(tmp_path / "answers.jsonl", WHOSE, keys)
        ask_all(ask, file, tmp_path, kept, 7, killed)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL

    kept = AnswerFile(tmp_path / "answers.jsonl", WHOSE, keys)
    assert len(kept.found) == 21
    said = ask_all(ask, file, tmp_path, kept, 7)
    asked = log.read_text().splitlines()
    assert sorted(asked) == sorted(question.text for question in questions)
    straight = ask_all(ask, file, tmp_path, AnswerFile(tmp_path / "straight.jsonl", WHOSE, keys), 7)
    assert said == straight
    numbers = {f"{n}.jpg": n for n in range(10)}
    values = [
        [(one.value, one.low, one.high) for one in split_scores(file, own, numbers)]
        for own in (said, straight)
    ]
    assert values[0] == values[1]
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert lines[0] == {"answers_of": WHOSE}
    assert {line["question_id"] for line in lines[1:]} == set(range(60))
