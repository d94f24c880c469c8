"""Conversations about generated passages: everything the demo model learns from.

A passage is a row of sentences, some of them facts (facts.py), the others filler (filler.py); a conversation is a
passage with a question, then further questions, small turns and at times another passage. The length is steered in
tokens: a conversation fills most of what it is given and never more. Some rows of the training hold many short
conversations instead: without a passage, or about facts of a person's own (own_facts.py). All draws come from one
Random: a seed is a text.

    python3 models/train/text.py --show 3 --tokens 512
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import filler
from facts import Fact
from own_facts import own_turns
from small_turns import Turn, small_turn, turn_without_text
from words import pick
from world import World

Count = Callable[[str], int]  # tokens of a text

SEPARATORS = ("\n",) * 8 + ("\n\n", " ")
LEAD_INS = ("By the way, ", "As everybody knows, ", "It is certain that ", "Please remember that ", "I was told that ",
            "According to the list, ", "Note that ")
SYSTEM_TEXTS = ("You are a helpful assistant.", "Answer briefly.", "Find the answer in the text.")

SHARE_THINKING = 0.4
SHARE_SINGLE = 0.12     # a passage and one question
SHARE_NEEDLES = 0.25    # passages with 2 to 10 facts
SHARE_SMALL_TURNS = 0.18
SHARE_SEVERAL_PASSAGES = 0.12
SHARE_SHORT = 0.06      # of rows: filled with conversations of a few turns without a passage
SHARE_OWN = 0.12        # of rows: filled with conversations about people's own facts
SHARE_OWN_IN_SHORT_ROWS = 0.3
SHORT_ROW = 1024        # tokens


@dataclass
class Conversation:
    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    thinking: bool = False  # the last turn comes with its reasoning


@dataclass
class Passage:
    text: str
    facts: list[Fact]  # in the order of the text


def approximate_count(text: str) -> int:
    """For when there is no vocabulary yet."""
    return len(text) // 4 + 1


def n_turn_tokens(turn: Turn, count: Count, thinking: bool = False) -> int:
    """With the marks around the texts: user, assistant, thinking and end."""
    return count(turn.user) + count(turn.answer) + 4 + (count(turn.reasoning) + 1 if thinking else 0)


class PassageWriter:
    """Writes one passage: how many facts, how they are dressed, where the paragraphs end."""

    def __init__(self, world: World, n_tokens: int, min_facts: int):
        self.world, self.rng, self.n_tokens, self.min_facts = world, world.rng, n_tokens, min_facts
        n_sentences = max(1, n_tokens // 13)
        n_needles = max(min_facts, self.rng.randint(2, 10)) if self.rng.random() < SHARE_NEEDLES else 0
        density = n_needles / n_sentences if n_needles else self.rng.uniform(0.1, 0.8)
        self.density = max(density, min_facts / n_sentences)
        self.paragraph = pick(self.rng, (0, 1, self.rng.randint(2, 5), self.rng.randint(3, 12)))
        self.paragraph_end = "\n\n" if self.rng.random() < 0.2 else "\n"
        self.facts: list[Fact] = []

    def write(self, count: Count) -> Passage:
        """A passage that fits into n_tokens, with min_facts facts or more as long as they fit."""
        pieces: list[str] = []
        at_start, left, n_in_paragraph = True, self.n_tokens, 0
        while True:
            text, told = self._sentence(left)
            ends_paragraph = n_in_paragraph + 1 == self.paragraph
            piece = ("" if at_start else " ") + text + (self.paragraph_end if ends_paragraph else "")
            n_tokens = count(piece)
            if n_tokens > left:
                break
            pieces.append(piece)
            self.facts += told
            left -= n_tokens
            at_start, n_in_paragraph = ends_paragraph, 0 if ends_paragraph else n_in_paragraph + 1
        return Passage("".join(pieces).rstrip("\n"), self.facts)

    def _sentence(self, left: int) -> tuple[str, list[Fact]]:
        missing = self.min_facts - len(self.facts)
        must_tell = missing > 0 and left < 16 * missing + 24
        if not must_tell and self.rng.random() >= self.density:
            return filler.sentence(self.world), []
        fact, draw = self.world.new_fact(), self.rng.random()
        if draw < 0.1:
            return fact.after(pick(self.rng, LEAD_INS)), [fact]
        if draw < 0.18 and not must_tell:
            other = self.world.new_fact()
            return other.after(fact.statement[:-1] + ", and "), [fact, other]
        return fact.statement, [fact]


class ConversationWriter:
    """Fills a conversation turn by turn, and keeps count of the tokens."""

    def __init__(self, rng: Random, n_tokens: int, count: Count):
        self.rng, self.count, self.n_tokens = rng, count, n_tokens
        self.world = World(rng, n_tokens)
        self.conversation = Conversation(thinking=rng.random() < SHARE_THINKING)
        self.is_single = rng.random() < SHARE_SINGLE
        self.unasked: list[Fact] = []
        if rng.random() < 0.05:
            self.conversation.system = pick(rng, SYSTEM_TEXTS)
        self.left = n_tokens - 1 - count(self.conversation.system)

    def write(self) -> Conversation:
        if not self.is_single and self.rng.random() < 0.15:
            self._add_small_turns(self.rng.randint(1, 3))
        several = not self.is_single and self.n_tokens >= 1024 and self.rng.random() < SHARE_SEVERAL_PASSAGES
        n_passages = self.rng.randint(2, min(4, self.n_tokens // 400)) if several else 1
        for n_to_come in range(n_passages, 0, -1):
            self._add_passage(self.left // n_to_come, is_last=n_to_come == 1)
        return self.conversation

    def _add_small_turns(self, n_turns: int) -> None:
        for _ in range(n_turns):
            self._add(small_turn(self.rng), reserve=100)

    def _add_passage(self, n_tokens: int, is_last: bool) -> None:
        """A passage with a first question, and further turns; `n_tokens` for all of them."""
        thinking = self.conversation.thinking and is_last
        reserve = 70 if thinking else 0
        end = self.left - n_tokens
        n_turns = 1 if self.is_single else max(1, int(n_tokens * self._share_of_turns() / 20))
        passage = PassageWriter(self.world, n_tokens - 20 * n_turns - 20 - reserve, min_facts=2).write(self.count)
        self.unasked += passage.facts
        self.rng.shuffle(self.unasked)
        first = self._turn(is_first=True)
        before = passage.text + pick(self.rng, SEPARATORS) if passage.text else ""
        self._add(Turn(before + first.user, first.reasoning, first.answer), thinking=thinking and n_turns == 1)
        if n_turns == 1:
            return
        while self._add(self._turn(), reserve=end + reserve):
            pass
        if thinking:
            self.conversation.thinking = any(self._add(self._turn(), thinking=True) for _ in range(5))

    def _share_of_turns(self) -> float:
        """Of the tokens: fewer in long conversations, where a question costs as much and finds more to be asked."""
        return self.rng.uniform(0.5, 1) * 0.45 * (512 / max(512, self.n_tokens)) ** 0.35

    def _turn(self, is_first: bool = False) -> Turn:
        """A question about a fact not asked for, or a small turn."""
        share_small = 0.05 if is_first else SHARE_SMALL_TURNS
        if not self.unasked or self.rng.random() < share_small:
            return small_turn(self.rng)
        fact = self.unasked.pop()
        ask, answer = fact.ask(self.rng)
        return Turn(ask, fact.statement, answer)

    def _add(self, turn: Turn, reserve: int = 0, thinking: bool = False) -> bool:
        """Whether the turn has been added: it is not when fewer than `reserve` tokens would be left."""
        n_tokens = n_turn_tokens(turn, self.count, thinking)
        if n_tokens > self.left - reserve:
            return False
        self.conversation.turns.append(turn)
        self.left -= n_tokens
        return True


def conversation(rng: Random, n_tokens: int, count: Count = approximate_count) -> Conversation:
    """A conversation of at most `n_tokens` (128 or more) by `count`, and most of them."""
    return ConversationWriter(rng, n_tokens, count).write()


def short_conversation(rng: Random) -> Conversation:
    turns = [turn_without_text(rng) for _ in range(pick(rng, (1, 1, 1, 2, 3)))]
    return Conversation(turns=turns, thinking=rng.random() < 0.6)


def own_conversation(rng: Random) -> Conversation:
    return Conversation(turns=own_turns(rng), thinking=rng.random() < 0.5)


def row(rng: Random, n_tokens: int, count: Count = approximate_count) -> list[Conversation]:
    """What is learnt from at a time, at most `n_tokens` and most of them: a conversation, or many short ones."""
    share_own = SHARE_OWN_IN_SHORT_ROWS if n_tokens < SHORT_ROW else SHARE_OWN
    draw = rng.random()
    if draw >= SHARE_SHORT + share_own:
        return [conversation(rng, n_tokens, count)]
    make = own_conversation if draw < share_own else short_conversation
    short: list[Conversation] = []
    left = n_tokens
    while True:
        new = make(rng)
        left -= 1 + sum(n_turn_tokens(turn, count, new.thinking and turn is new.turns[-1]) for turn in new.turns)
        if left < 0:
            return short
        short.append(new)


def show(conversation: Conversation) -> str:
    """As the chat format lays it out, marks by their names."""
    text = "<BOS>" + conversation.system
    for i, turn in enumerate(conversation.turns):
        thinks = conversation.thinking and i + 1 == len(conversation.turns)
        reasoning = f"<think>{turn.reasoning}</think>" if thinks else "</think>"
        text += f"\n<User>{turn.user}\n<Assistant>{reasoning}{turn.answer}<EOS>"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints conversations as the model is trained on.")
    parser.add_argument("--show", type=int, default=3, help="how many rows of them")
    parser.add_argument("--tokens", type=int, default=512, help="length of each, about")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = Random(options.seed)
    rows = [row(rng, options.tokens) for _ in range(options.show)]
    print("\n\n".join(show(conversation) for several in rows for conversation in several))


if __name__ == "__main__":
    main()
