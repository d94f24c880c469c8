"""Facts as people type them themselves: one to a few sentences of any kind, and a question about one of them.

Unlike the facts of the passages (facts.py) these are about anything, in words that the model does not know
(own_words.py), the value before the entity or after it (own_families.py), and the question often stands on the same
line. A question is asked only where its wording stands for one answer among all that was told.
"""

import re
from dataclasses import dataclass
from random import Random

import filler
from own_families import FAMILIES, Family
from own_words import Words
from small_turns import Turn, small_turn
from words import pick
from world import World

N_FACTS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7)
BEFORE_TELLING = ("",) * 24 + ("Remember: ", "Listen. ", "Here is what I know: ", "Please note: ")
BEFORE_ASKING = ("",) * 24 + ("Question: ", "Q: ", "Now: ")
ANSWER_TO_TELLING = "I have read it. What do you want to know?"
UNKNOWN = "I do not know. Give me a text that says it."


@dataclass(frozen=True)
class OwnFact:
    statement: str
    questions: tuple[tuple[str, str], ...]


def new_fact(words: Words, family: Family) -> OwnFact:
    filled: dict[str, str] = {}
    while len(set(filled.values())) < len(family.slots):  # p and q are two people
        filled = {name: make(words) for name, make in family.slots.items()}
    statement = capital(with_articles(pick(words.rng, family.statements).format(**filled)))
    questions = ((template.format(**filled) for template in question) for question in family.questions)
    return OwnFact(statement, tuple((capital(with_articles(ask)), as_in(statement, with_articles(answer)))
                                    for ask, answer in questions))


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def with_articles(text: str) -> str:
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def as_in(statement: str, answer: str) -> str:
    """An answer is written as the sentence writes it: with a capital letter where it begins with it."""
    begins = statement[:len(answer)]
    return begins if begins[1:] == answer[1:] and begins.lower() == answer.lower() else answer


def some_facts(words: Words, n_facts: int) -> list[OwnFact]:
    """Told together. Their questions have one answer each: a fact that shares one with another is drawn again."""
    rng, facts = words.rng, list[OwnFact]()
    asked: set[str] = set()
    are_alike = rng.random() < 0.5  # then they differ in words alone
    families = pick(rng, FAMILIES)
    while len(facts) < n_facts:
        fact = new_fact(words, pick(rng, families))
        asks = {ask.lower() for ask, _ in fact.questions}
        is_new = not asks & asked
        if is_new:
            facts.append(fact)
            asked |= asks
        if not (is_new and are_alike) or rng.random() < 0.1:
            families = pick(rng, FAMILIES)
    return facts


def told(rng: Random, sentences: list[str]) -> str:
    """The sentences on one line or below each other; now and then two are joined, or the points are left out."""
    between = pick(rng, (" ",) * 7 + ("\n",) * 3)
    if len(sentences) > 1 and rng.random() < 0.1:
        first, second, *others = sentences
        sentences = [first[:-1] + pick(rng, (", and ", " and ", "; ")) + continued(second), *others]
    if between == "\n" and rng.random() < 0.3:
        sentences = [sentence.removesuffix(".") for sentence in sentences]
    return pick(rng, BEFORE_TELLING) + between.join(sentences)


def continued(sentence: str) -> str:
    """As it stands behind another."""
    return capital_off(sentence) if sentence.split(" ")[0] in ("The", "My", "In", "Every", "Yesterday") else sentence


def capital_off(text: str) -> str:
    return text[0].lower() + text[1:]


def message(rng: Random, sentences: list[str], ask: str) -> str:
    """What is told and asked, mostly on one line; the question may stand first, or without its mark."""
    text = told(rng, sentences)
    if rng.random() < 0.06:
        return ask + pick(rng, (" ", "\n")) + text
    if rng.random() < 0.06:
        ask = ask.removesuffix("?")
    return text + pick(rng, (" ",) * 7 + ("\n",) * 3 + ("\n\n",)) + pick(rng, BEFORE_ASKING) + ask


def ask_of(rng: Random, fact: OwnFact) -> Turn:
    ask, answer = pick(rng, fact.questions)
    return Turn(ask, fact.statement, answer)


def asked_with(rng: Random, sentences: list[str], turn: Turn) -> Turn:
    return Turn(message(rng, sentences, turn.user), turn.reasoning, turn.answer)


def one_message(words: Words) -> Turn:
    """A few facts and a question about one of them."""
    rng = words.rng
    facts = some_facts(words, pick(rng, N_FACTS))
    return asked_with(rng, [fact.statement for fact in facts], ask_of(rng, pick(rng, facts)))


def in_small_letters(turn: Turn) -> Turn:
    return Turn(turn.user.lower(), turn.reasoning.lower(), turn.answer.lower())


def with_other_sentences(rng: Random, sentences: list[str]) -> list[str]:
    """Sentences of passages among them."""
    world = World(rng, 512)
    for _ in range(rng.randint(1, 4)):
        other = filler.sentence(world) if rng.random() < 0.6 else world.new_fact().statement
        sentences.insert(rng.randint(0, len(sentences)), other)
    return sentences


def several_messages(words: Words) -> list[Turn]:
    """Facts told with the first question or before it, further questions, some of them with a further fact."""
    rng = words.rng
    facts = some_facts(words, pick(rng, N_FACTS) + 1)
    n_first = rng.randint(1, len(facts))
    sentences = [fact.statement for fact in facts[:n_first]]
    if rng.random() < 0.3:
        sentences = with_other_sentences(rng, sentences)
    unasked = rng.sample(facts[:n_first], n_first)
    first = ask_of(rng, unasked.pop())
    if rng.random() < 0.3:
        turns = [Turn(told(rng, sentences), "There is no question.", ANSWER_TO_TELLING), first]
    else:
        turns = [asked_with(rng, sentences, first)]
    for fact in facts[n_first:]:
        if rng.random() < 0.15:
            turns.append(small_turn(rng))
        turns.append(asked_with(rng, [fact.statement], ask_of(rng, fact)))
        if rng.random() < 0.5:
            break
    return turns + [ask_of(rng, fact) for fact in unasked[:pick(rng, (0, 0, 1, 2, 3))]]


def own_turns(rng: Random) -> list[Turn]:
    """A conversation about a person's own facts."""
    words, draw = Words(rng), rng.random()
    if draw < 0.04:
        return [Turn(ask_of(rng, some_facts(words, 1)[0]).user, "There is no text.", UNKNOWN)]
    if draw < 0.5:
        return [one_message(words)]
    return [in_small_letters(one_message(words))] if draw < 0.55 else several_messages(words)
