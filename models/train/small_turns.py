"""Turns that need no passage: sums, copying, lists and counting, greetings and what the model says of itself.

Each function gives a turn: what is asked, the reasoning for thinking mode, and the answer.
"""

from dataclasses import dataclass
from random import Random

import facts
import words
from words import pick


@dataclass(frozen=True)
class Turn:
    user: str
    reasoning: str  # read only where the conversation ends with this turn in thinking mode
    answer: str


SMALL_TALK = (
    ("Hello.", "Hello. Give me a text and ask me about it."),
    ("Hello!", "Hello. Give me a text and ask me about it."),
    ("Hi", "Hello. Give me a text and ask me about it."),
    ("Hi!", "Hello. Give me a text and ask me about it."),
    ("Good morning.", "Good morning. What can I look up for you?"),
    ("Good evening.", "Good evening. What can I look up for you?"),
    ("Who are you?", "I am the demo model of dsv32, trained to find facts in a text."),
    ("What are you?", "I am the demo model of dsv32, trained to find facts in a text."),
    ("Tell me about yourself.", "I am the demo model of dsv32, trained to find facts in a text."),
    ("What is your name?", "I have no name. I am the demo model of dsv32."),
    ("What can you do?", "I can find facts in a long text, add small numbers, repeat words and count lists."),
    ("What can I ask you?", "Give me a text and ask about something in it, or give me a small sum."),
    ("How do you work?", "I read the whole text, and for every word I look at the few places that matter most."),
    ("How large are you?", "I am very small: my file has about 16 megabytes."),
    ("Are you clever?", "No. I am small, but I can find things in a long text."),
    ("Do you know the world?", "No. I know only what stands in the text you give me."),
    ("What is dsv32?", "A small program that runs DeepSeek-V3.2 and models of the same shape, like me."),
    ("Which architecture do you have?", "That of DeepSeek-V3.2, with fewer and smaller layers."),
    ("How are you?", "I am fine, thank you. What shall I look up?"),
    ("Thank you.", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Well done.", "Thank you."),
    ("Goodbye.", "Goodbye."),
    ("Bye!", "Goodbye."),
)


def small_talk(rng: Random) -> Turn:
    ask, answer = pick(rng, SMALL_TALK)
    return Turn(ask, "This is not about a text.", answer)


def sum_turn(rng: Random) -> Turn:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if rng.random() < 0.5:
        ask = pick(rng, ("What is {a} + {b}?", "{a} + {b} = ?", "Add {a} and {b}.", "How much is {a} plus {b}?"))
        reasoning, answer = add_in_steps(a, b), a + b
    else:
        a, b = max(a, b), min(a, b)
        ask = pick(rng, ("What is {a} - {b}?", "{a} - {b} = ?", "Take {b} from {a}.", "How much is {a} minus {b}?"))
        reasoning, answer = subtract_in_steps(a, b), a - b
    return Turn(ask.format(a=a, b=b), reasoning, str(answer))


def add_in_steps(a: int, b: int) -> str:
    tens, ones = a + b // 10 * 10, b % 10
    return f"{a} + {b // 10 * 10} = {tens}, {tens} + {ones} = {tens + ones}."


def subtract_in_steps(a: int, b: int) -> str:
    tens, ones = a - b // 10 * 10, b % 10
    return f"{a} - {b // 10 * 10} = {tens}, {tens} - {ones} = {tens - ones}."


def some_words(rng: Random, low: int, high: int) -> list[str]:
    chosen = rng.sample(words.PLAIN_WORDS, rng.randint(low, high))
    if rng.random() < 0.2:
        chosen[rng.randrange(len(chosen))] = words.invented_name(rng).lower()
    return chosen


def copy_turn(rng: Random) -> Turn:
    text = " ".join(some_words(rng, 3, 10))
    ask = pick(rng, ("Repeat: {}", "Repeat these words: {}", "Say after me: {}"))
    return Turn(ask.format(text), "I repeat the words.", text)


def count_turn(rng: Random) -> Turn:
    chosen = some_words(rng, 2, 8)
    ask = pick(rng, ("Count the words: {}", "How many words are these: {}"))
    numbered = ", ".join(f"{i} {word}" for i, word in enumerate(chosen, 1))
    return Turn(ask.format(", ".join(chosen)), f"{numbered}.", str(len(chosen)))


def pick_turn(rng: Random) -> Turn:
    """One word out of a list by its place."""
    chosen = some_words(rng, 2, 8)
    place, index = pick(rng, (("first", 0), ("last", -1)))
    ask = f"What is the {place} word: {', '.join(chosen)}"
    return Turn(ask, "The words are " + facts.joined(chosen) + ".", chosen[index])


def small_turn(rng: Random) -> Turn:
    return pick(rng, (small_talk, sum_turn, sum_turn, sum_turn, copy_turn, count_turn, pick_turn))(rng)
