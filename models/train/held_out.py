"""Writes the questions that the model is evaluated on: models/eval/{1k,4k,8k,16k,32k,small,own_facts}.jsonl.

A line is a passage with questions, each asked on its own: {"passage", "questions": [{"ask", "answer"}]}. The answer is
the value alone. The seeds begin with words that no seed of the training begins with, so the passages are new, but they
are written as those of the training are: the same shares of facts, the same wordings. In small.jsonl the passages are
empty: sums, copying, lists, counting, small talk and what cannot be known. In own_facts.jsonl a question comes with the
facts it is about, as people type them, in words that no text of the training has (never_trained.py); it is checked
that they stand nowhere in the files that the training's text is made from.

    python3 models/train/held_out.py --vocabulary models/vocabulary.json
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

import own_words
from facts import Fact
from never_trained import NEVER_TRAINED, is_never_trained, plain
from own_facts import one_message
from own_words import Words
from small_turns import turn_without_text
from text import Count, PassageWriter
from vocabulary import Vocabulary
from world import World

ROOM_FOR_QUESTION = 40  # tokens: the question, the marks and the answer


@dataclass(frozen=True)
class EvalSet:
    name: str
    n_tokens: int  # of passage, question and answer
    n_passages: int
    n_questions: int  # of each passage


SETS = (EvalSet("1k", 1024, 20, 5), EvalSet("4k", 4096, 7, 15),
        EvalSet("8k", 8192, 5, 20), EvalSet("16k", 16384, 4, 25),
        EvalSet("32k", 32600, 3, 30))  # the last: twice the longest of the training
N_SMALL = 100
N_OWN = 200
TEXT_SOURCES = ("facts", "filler", "own_facts", "own_families", "small_turns", "text", "words", "world")


def questions_about(facts: list[Fact], rng: Random, n_questions: int) -> list[dict[str, str]]:
    """About different facts from anywhere in the passage; fewer than `n_questions` where there are not so many."""
    can_ask = [fact for fact in facts if not fact.is_list]
    chosen = rng.sample(can_ask, min(n_questions, len(can_ask)))
    return [dict(zip(("ask", "answer"), fact.ask(rng, value_only=True))) for fact in chosen]


def lines_of(eval_set: EvalSet, count: Count) -> list[dict]:
    """Passages with too few facts to ask about are passed over."""
    lines: list[dict] = []
    seed = 0
    while len(lines) < eval_set.n_passages:
        rng = Random(f"held out {eval_set.name} {seed}")
        seed += 1
        world = World(rng, eval_set.n_tokens)
        writer = PassageWriter(world, eval_set.n_tokens - ROOM_FOR_QUESTION, min_facts=eval_set.n_questions)
        passage = writer.write(count)
        questions = questions_about(passage.facts, rng, eval_set.n_questions)
        if len(questions) == eval_set.n_questions:
            lines.append({"passage": passage.text, "questions": questions})
    return lines


def small_lines(n: int) -> list[dict]:
    answers: dict[str, str] = {}
    seed = 0
    while len(answers) < n:  # small talk repeats itself
        turn = turn_without_text(Random(f"held out small {seed}"))
        answers[turn.user] = turn.answer
        seed += 1
    return [{"passage": "", "questions": [{"ask": ask, "answer": answer}]} for ask, answer in answers.items()]


def check_never_trained() -> None:
    """Raises AssertionError when a text of the training could have a word of the held-out facts."""
    sources = " ".join(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in TEXT_SOURCES)
    known = " ".join(item for listed in own_words.KNOWN.values() for item in listed)
    trained = {plain(word) for word in re.findall("[A-Za-z]+", f"{sources} {known}")}
    assert not trained & NEVER_TRAINED, trained & NEVER_TRAINED  # words.invented_name does not make one either


def own_lines(n: int) -> list[dict]:
    """Questions with words that no training has; those without any are passed over."""
    check_never_trained()
    answers: dict[str, str] = {}
    seed = 0
    while len(answers) < n:
        turn = one_message(Words(Random(f"held out own {seed}"), held_out=True))
        seed += 1
        if any(is_never_trained(word) for word in re.findall("[A-Za-z]+", turn.user)):
            answers[turn.user] = turn.answer
    return [{"passage": "", "questions": [{"ask": ask, "answer": answer}]} for ask, answer in answers.items()]


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the held-out questions, a file for each length.")
    parser.add_argument("--vocabulary", type=Path, required=True, help="for the lengths in tokens")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "eval")
    options = parser.parse_args()
    vocabulary = Vocabulary.load(options.vocabulary)
    options.out.mkdir(parents=True, exist_ok=True)
    for eval_set in SETS:
        write_lines(options.out / f"{eval_set.name}.jsonl", lines_of(eval_set, vocabulary.count))
    write_lines(options.out / "small.jsonl", small_lines(N_SMALL))
    write_lines(options.out / "own_facts.jsonl", own_lines(N_OWN))


if __name__ == "__main__":
    main()
