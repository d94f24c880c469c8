"""Turns that need no passage: sums, copying, lists and counting, greetings and what the model says of itself, and
questions that it cannot know the answer of.

Each function gives a turn: what is asked, the reasoning for thinking mode, and the answer.
"""

from dataclasses import dataclass
from random import Random

import facts
import words
from words import pick
from world import World


@dataclass(frozen=True)
class Turn:
    user: str
    reasoning: str  # read only where the conversation ends with this turn in thinking mode
    answer: str


SMALL_TALK_BY_ANSWER = (
    (("Hello", "hello", "hi", "Hello.", "Hello!", "Hi", "Hi!"), "Hello. Give me a text and ask me about it."),
    (("Good morning.",), "Good morning. What can I look up for you?"),
    (("Good evening.",), "Good evening. What can I look up for you?"),
    (("Who are you?", "Who are you", "who are you?", "What are you?", "Tell me about yourself."),
     "I am the demo model of dsv32, trained to find facts in a text."),
    (("What is your name?",), "I have no name. I am the demo model of dsv32."),
    (("What can you do?",), "I can find facts in a long text, add small numbers, repeat words and count lists."),
    (("Help", "What can I ask you?"), "Give me a text and ask about something in it, or give me a small sum."),
    (("How do you work?",), "I read the whole text, and for every word I look at the few places that matter most."),
    (("How large are you?",), "I am very small: my file has about 16 megabytes."),
    (("Are you clever?",), "No. I am small, but I can find things in a long text."),
    (("Do you know the world?",), "No. I know only what stands in the text you give me."),
    (("What is dsv32?",), "A small program that runs DeepSeek-V3.2 and models of the same shape, like me."),
    (("Which architecture do you have?",), "That of DeepSeek-V3.2, with fewer and smaller layers."),
    (("How are you?",), "I am fine, thank you. What shall I look up?"),
    (("Thank you.", "Thanks", "Thanks.", "thank you", "Thanks!"), "You are welcome."),
    (("Well done.",), "Thank you."),
    (("Goodbye.", "Bye!"), "Goodbye."),
    (("Tell me a story.",), "I cannot write stories. Give me a text and ask me about it."),
    (("Write a poem.",), "I cannot write poems. Give me a text and ask me about it."),
    (("What time is it?",), "I have no clock. Give me a text and ask me about it."),
    (("How is the weather?",), "I cannot see the weather. Give me a text and ask me about it."),
)
SMALL_TALK = tuple((ask, answer) for asks, answer in SMALL_TALK_BY_ANSWER for ask in asks)

UNKNOWN = ("What is the capital of {town}?", "Who is {name}?", "Where is {town}?", "What is a {word}?",
           "How old is {name}?", "Why is the {word} {colour}?", "Tell me about {town}.", "Where does {name} live?",
           "What do you know of {name}?")


def small_talk(rng: Random) -> Turn:
    ask, answer = pick(rng, SMALL_TALK)
    return Turn(ask, "This is not about a text.", answer)


def unknown_turn(rng: Random) -> Turn:
    """What only a text could tell, and there is none."""
    if rng.random() < 0.5:
        ask, _ = World(rng, 512).new_fact().ask(rng)
    else:
        ask = pick(rng, UNKNOWN).format(town=pick(rng, words.TOWNS), name=pick(rng, words.FIRST_NAMES),
                                        word=pick(rng, words.PLAIN_WORDS), colour=pick(rng, words.COLOURS))
    return Turn(ask, "There is no text.", "I do not know. Give me a text that says it.")


SUMS = ("What is {a} + {b}?", "{a} + {b} = ?", "Add {a} and {b}.", "How much is {a} plus {b}?", "{a} + {b}", "{a}+{b}",
        "{a}+{b}=?", "What is {a}+{b}?", "What is {a} plus {b}?")
DIFFERENCES = ("What is {a} - {b}?", "{a} - {b} = ?", "Take {b} from {a}.", "How much is {a} minus {b}?", "{a} - {b}",
               "{a}-{b}", "{a}-{b}=?", "What is {a}-{b}?", "What is {a} minus {b}?")


def sum_turn(rng: Random) -> Turn:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if rng.random() < 0.5:
        ask = pick(rng, SUMS)
        reasoning, answer = add_in_steps(a, b), a + b
    else:
        a, b = max(a, b), min(a, b)
        ask = pick(rng, DIFFERENCES)
        reasoning, answer = subtract_in_steps(a, b), a - b
    return Turn(ask.format(a=a, b=b), reasoning, str(answer))


def add_in_steps(a: int, b: int) -> str:
    tens, ones = a + b // 10 * 10, b % 10
    return f"{a} + {b // 10 * 10} = {tens}, {tens} + {ones} = {tens + ones}."


def subtract_in_steps(a: int, b: int) -> str:
    tens, ones = a - b // 10 * 10, b % 10
    return f"{a} - {b // 10 * 10} = {tens}, {tens} - {ones} = {tens - ones}."


def some_words(rng: Random, low: int, high: int) -> list[str]:
    """Plain ones, or some of them names and words that nobody knows."""
    chosen = rng.sample(words.PLAIN_WORDS, rng.randint(low, high))
    share = pick(rng, (0, 0, 0, 0.15, 0.6))
    return [unusual_word(rng) if rng.random() < share else word for word in chosen]


def unusual_word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return words.invented_name(rng).lower()
    return words.invented_name(rng) if kind < 0.7 else pick(rng, words.FIRST_NAMES + words.TOWNS + words.QUALITIES)


def copy_turn(rng: Random) -> Turn:
    text = " ".join(some_words(rng, 3, 10))
    ask = pick(rng, ("Repeat: {}", "Repeat these words: {}", "Say after me: {}", "Repeat after me: {}", "Copy: {}"))
    return Turn(ask.format(text), "I repeat the words.", text)


def count_turn(rng: Random) -> Turn:
    chosen = some_words(rng, 2, 8)
    ask = pick(rng, ("Count the words: {}", "How many words are these: {}", "Count: {}"))
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


def turn_without_text(rng: Random) -> Turn:
    """A small turn, or a question that only a text could answer: for conversations in which there is none."""
    return unknown_turn(rng) if rng.random() < 0.15 else small_turn(rng)
