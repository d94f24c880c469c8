"""Facts: sentences that give one attribute of one entity a value, and the questions that ask for it.

A kind of entity (person, object, town, ship, building, room, meeting) has several attributes, and an attribute
belongs to many entities, so an answer takes both to be matched. Values are drawn at random: nothing about the entity
tells them. A statement names the entity first: a causal model then meets the value knowing what it belongs to.
In a template {e} is the entity ({E} at the beginning of a sentence), {v} the value, {n} how many names a list has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import words
from words import pick


@dataclass(frozen=True)
class Attribute:
    """What can be said about an entity, in two or three wordings, and asked. The wording of a question alone decides
    the form of its answer, so that there is one right answer to the letter."""
    values: Callable[[Random], str]
    statements: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]  # (ask, answer)


@dataclass(frozen=True)
class Fact:
    entity: str
    value: str
    statement: str  # a whole sentence
    attribute: Attribute

    def ask(self, rng: Random, value_only: bool = False) -> tuple[str, str]:
        """A question about this fact and its answer. `value_only`: of those whose answer is just the value."""
        wordings = [w for w in self.attribute.questions if w[1] == "{v}" or not value_only]
        question, answer = pick(rng, wordings)
        return fill(question, self.entity, self.value), fill(answer, self.entity, self.value)

    @property
    def is_list(self) -> bool:
        return any("{n}" in answer for _, answer in self.attribute.questions)

    def after(self, words_before: str) -> str:
        """The statement with `words_before` before it, in one sentence."""
        starts_with_name = self.statement.startswith((self.entity, self.value))
        first = self.statement[0] if starts_with_name else self.statement[0].lower()
        return words_before + first + self.statement[1:]


def fill(template: str, entity: str, value: str) -> str:
    text = template.replace("{e}", entity).replace("{E}", entity[0].upper() + entity[1:]).replace("{v}", value)
    return text.replace("{n}", str(len(list_items(value)))) if "{n}" in text else text


def list_items(listed: str) -> list[str]:
    """The items of "a, b and c"."""
    return listed.replace(" and ", ", ").split(", ")


def from_list(items: list[str]) -> Callable[[Random], str]:
    return lambda rng: pick(rng, items)


def from_range(low: int, high: int, unit: str = "") -> Callable[[Random], str]:
    return lambda rng: str(rng.randint(low, high)) + unit


def code(rng: Random) -> str:
    if rng.random() < 0.6:
        return str(rng.randint(100, 999))
    return pick(rng, "ABCDEFGHJKLMNPQRSTUVWXYZ") + str(rng.randint(10, 99))


def full_name(rng: Random) -> str:
    first, last = pick(rng, words.FIRST_NAMES), pick(rng, words.LAST_NAMES)
    if rng.random() < 0.04:
        last = words.invented_name(rng)
    return f"{first} {last}"


def town_or_city(rng: Random) -> str:
    draw = rng.random()
    return words.invented_name(rng) if draw < 0.03 else pick(rng, words.CITIES if draw < 0.7 else words.TOWNS)


def password(rng: Random) -> str:
    return words.invented_name(rng).lower() if rng.random() < 0.1 else pick(rng, words.PLAIN_WORDS)


def joined(items: list[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1]


def listed(items: list[str]) -> Callable[[Random], str]:
    """Two to eight different items, fewer more often: "a, b and c"."""
    return lambda rng: joined(rng.sample(items, min(rng.randint(2, 8), rng.randint(2, 8))))


PERSON = (
    Attribute(town_or_city,
              ("{E} lives in {v}.", "{E} has a house in {v}.", "The home of {e} is in {v}."),
              (("Where does {e} live?", "{v}"), ("In which city does {e} live?", "{v}"),
               ("Tell me where {e} lives.", "{E} lives in {v}."))),
    Attribute(from_list(words.JOBS),
              ("{E} works as a {v}.", "The job of {e} is {v}.", "{E} makes a living as a {v}."),
              (("What is the job of {e}?", "{v}"), ("What does {e} work as?", "{v}"),
               ("Tell me the job of {e}.", "The job of {e} is {v}."))),
    Attribute(from_list(words.COLOURS),
              ("The favourite colour of {e} is {v}.", "{E} likes the colour {v} best."),
              (("What is the favourite colour of {e}?", "{v}"), ("Which colour does {e} like best?", "{v}"),
               ("Tell me the favourite colour of {e}.", "The favourite colour of {e} is {v}."))),
    Attribute(from_list(words.ANIMALS),
              ("{E} keeps a {v}.", "The pet of {e} is a {v}.", "{E} has a {v} as a pet."),
              (("Which animal does {e} keep?", "{v}"), ("What is the pet of {e}?", "{v}"),
               ("Tell me about the pet of {e}.", "The pet of {e} is a {v}."))),
    Attribute(from_range(18, 95),
              ("{E} is {v} years old.", "The age of {e} is {v}."),
              (("How old is {e}?", "{v}"), ("What is the age of {e}?", "{v}"),
               ("Tell me how old {e} is.", "{E} is {v} years old."))),
    Attribute(from_list(words.MONTHS),
              ("{E} was born in {v}.", "The birthday of {e} is in {v}."),
              (("In which month was {e} born?", "{v}"), ("When is the birthday of {e}?", "{v}"),
               ("Tell me when {e} was born.", "{E} was born in {v}."))),
    Attribute(from_range(100, 999),
              ("The badge number of {e} is {v}.", "{E} wears badge number {v}."),
              (("What is the badge number of {e}?", "{v}"), ("Which badge number does {e} have?", "{v}"),
               ("Tell me the badge number of {e}.", "The badge number of {e} is {v}."))),
    Attribute(from_list(words.INSTRUMENTS),
              ("{E} plays the {v}.", "The instrument of {e} is the {v}."),
              (("Which instrument does {e} play?", "{v}"), ("What is the instrument of {e}?", "{v}"),
               ("Tell me what {e} plays.", "{E} plays the {v}."))),
    Attribute(from_list(words.FOODS),
              ("The favourite food of {e} is {v}.", "{E} likes to eat {v} most of all."),
              (("What is the favourite food of {e}?", "{v}"), ("What does {e} like to eat most?", "{v}"),
               ("Tell me the favourite food of {e}.", "The favourite food of {e} is {v}."))),
    Attribute(from_list(words.LANGUAGES),
              ("{E} speaks {v}.", "The first language of {e} is {v}."),
              (("Which language does {e} speak?", "{v}"), ("What is the first language of {e}?", "{v}"),
               ("Tell me which language {e} speaks.", "{E} speaks {v}."))),
    Attribute(from_list(words.SPORTS),
              ("The favourite sport of {e} is {v}.", "{E} goes to {v} every week."),
              (("What is the favourite sport of {e}?", "{v}"), ("Which sport does {e} like?", "{v}"),
               ("Tell me the favourite sport of {e}.", "The favourite sport of {e} is {v}."))),
    Attribute(full_name,
              ("The best friend of {e} is {v}.", "{E} has {v} as a best friend."),
              (("Who is the best friend of {e}?", "{v}"), ("What is the name of the best friend of {e}?", "{v}"),
               ("Tell me the best friend of {e}.", "The best friend of {e} is {v}."))),
    Attribute(listed(words.FIRST_NAMES),
              ("The guests of {e} are {v}.", "{E} has invited {v}."),
              (("List the guests of {e}.", "{v}"), ("How many guests does {e} have?", "{n}"))),
)

OBJECT = (
    Attribute(code,
              ("The code of the {e} is {v}.", "The {e} carries the code {v}.", "The code on the {e} reads {v}."),
              (("What is the code of the {e}?", "{v}"), ("Which code does the {e} have?", "{v}"),
               ("Tell me the code of the {e}.", "The code of the {e} is {v}."))),
    Attribute(from_range(10, 999),
              ("The price of the {e} is {v} coins.", "The {e} costs {v} coins."),
              (("How many coins does the {e} cost?", "{v}"), ("What is the price of the {e} in coins?", "{v}"),
               ("Tell me the price of the {e}.", "The price of the {e} is {v} coins."))),
    Attribute(from_range(2, 99),
              ("The {e} weighs {v} pounds.", "The weight of the {e} is {v} pounds."),
              (("How many pounds does the {e} weigh?", "{v}"), ("What is the weight of the {e} in pounds?", "{v}"),
               ("Tell me the weight of the {e}.", "The weight of the {e} is {v} pounds."))),
    Attribute(full_name,
              ("The {e} belongs to {v}.", "The owner of the {e} is {v}."),
              (("Who owns the {e}?", "{v}"), ("Who is the owner of the {e}?", "{v}"),
               ("Tell me the owner of the {e}.", "The owner of the {e} is {v}."))),
    Attribute(from_list(words.ROOMS),
              ("The {e} is kept in the {v}.", "The {e} stands in the {v}.", "You will find the {e} in the {v}."),
              (("In which room is the {e}?", "{v}"), ("Where is the {e} kept?", "{v}"),
               ("Tell me where the {e} is.", "The {e} is in the {v}."))),
    Attribute(from_list(words.MATERIALS),
              ("The {e} is made of {v}.", "Somebody made the {e} out of {v}."),
              (("What is the {e} made of?", "{v}"), ("Which material is the {e} made of?", "{v}"),
               ("Tell me what the {e} is made of.", "The {e} is made of {v}."))),
    Attribute(from_list(words.FIRST_NAMES),
              ("The {e} was a gift from {v}.", "The {e} was given to us by {v}."),
              (("Who gave us the {e}?", "{v}"), ("From whom was the {e} a gift?", "{v}"),
               ("Tell me who gave us the {e}.", "The {e} was a gift from {v}."))),
    Attribute(listed(words.FOODS),
              ("Inside the {e} are {v}.", "The {e} holds {v}."),
              (("List what is inside the {e}.", "{v}"), ("How many things are inside the {e}?", "{n}"))),
)

TOWN = (
    Attribute(full_name,
              ("The mayor of {e} is {v}.", "{E} has {v} as mayor."),
              (("Who is the mayor of {e}?", "{v}"), ("What is the name of the mayor of {e}?", "{v}"),
               ("Tell me the mayor of {e}.", "The mayor of {e} is {v}."))),
    Attribute(from_range(20, 999),
              ("In {e} there live {v} families.", "{E} is home to {v} families."),
              (("How many families live in {e}?", "{v}"), ("What is the number of families in {e}?", "{v}"),
               ("Tell me how many families live in {e}.", "{E} is home to {v} families."))),
    Attribute(from_list(words.FOODS),
              ("{E} is famous for its {v}.", "People come to {e} for the {v}."),
              (("What is {e} famous for?", "{v}"), ("For which food do people come to {e}?", "{v}"),
               ("Tell me what {e} is famous for.", "{E} is famous for its {v}."))),
    Attribute(from_range(1100, 1989),
              ("{E} was founded in {v}.", "The founding year of {e} is {v}."),
              (("When was {e} founded?", "{v}"), ("In which year was {e} founded?", "{v}"),
               ("Tell me when {e} was founded.", "{E} was founded in {v}."))),
    Attribute(from_list(words.DAYS),
              ("Market day in {e} is {v}.", "{E} holds its market on {v}."),
              (("When is market day in {e}?", "{v}"), ("On which day does {e} hold its market?", "{v}"),
               ("Tell me the market day of {e}.", "Market day in {e} is {v}."))),
    Attribute(from_list(words.ANIMALS),
              ("The flag of {e} shows a {v}.", "On the flag of {e} there is a {v}."),
              (("What does the flag of {e} show?", "{v}"), ("Which animal is on the flag of {e}?", "{v}"),
               ("Tell me what the flag of {e} shows.", "The flag of {e} shows a {v}."))),
)

SHIP = (
    Attribute(full_name,
              ("The captain of the {e} is {v}.", "The {e} sails under {v}."),
              (("Who is the captain of the {e}?", "{v}"), ("Who commands the {e}?", "{v}"),
               ("Tell me the captain of the {e}.", "The captain of the {e} is {v}."))),
    Attribute(from_list(words.GOODS),
              ("The {e} carries {v}.", "The cargo of the {e} is {v}."),
              (("What does the {e} carry?", "{v}"), ("What is the cargo of the {e}?", "{v}"),
               ("Tell me the cargo of the {e}.", "The cargo of the {e} is {v}."))),
    Attribute(from_list(words.CITIES),
              ("The {e} is bound for {v}.", "The next port of the {e} is {v}."),
              (("Where is the {e} bound for?", "{v}"), ("What is the next port of the {e}?", "{v}"),
               ("Tell me the next port of the {e}.", "The next port of the {e} is {v}."))),
    Attribute(from_range(10, 99),
              ("The {e} has {v} sailors on board.", "The crew of the {e} counts {v} sailors."),
              (("How many sailors does the {e} have?", "{v}"), ("How large is the crew of the {e}?", "{v}"),
               ("Tell me the crew of the {e}.", "The {e} has {v} sailors on board."))),
    Attribute(from_range(1700, 1989),
              ("The {e} was built in {v}.", "The building year of the {e} is {v}."),
              (("When was the {e} built?", "{v}"), ("In which year was the {e} built?", "{v}"),
               ("Tell me when the {e} was built.", "The {e} was built in {v}."))),
)

BUILDING = (
    Attribute(password,
              ("The password of the {e} is {v}.", "At the {e} the password is {v}."),
              (("What is the password of the {e}?", "{v}"), ("Which password opens the {e}?", "{v}"),
               ("Tell me the password of the {e}.", "The password of the {e} is {v}."))),
    Attribute(full_name,
              ("The director of the {e} is {v}.", "The {e} is led by {v}."),
              (("Who is the director of the {e}?", "{v}"), ("Who leads the {e}?", "{v}"),
               ("Tell me the director of the {e}.", "The director of the {e} is {v}."))),
    Attribute(from_range(10, 999),
              ("The {e} had {v} visitors today.", "At the {e} there were {v} visitors today."),
              (("How many visitors did the {e} have today?", "{v}"),
               ("How many visitors came to the {e} today?", "{v}"),
               ("Tell me the visitors of the {e} today.", "The {e} had {v} visitors today."))),
    Attribute(from_list(words.DAYS),
              ("The {e} is closed on {v}.", "The closing day of the {e} is {v}."),
              (("On which day is the {e} closed?", "{v}"), ("What is the closing day of the {e}?", "{v}"),
               ("Tell me when the {e} is closed.", "The {e} is closed on {v}."))),
    Attribute(from_list(words.COLOURS),
              ("The door of the {e} is {v}.", "The {e} has its door painted {v}."),
              (("What colour is the door of the {e}?", "{v}"), ("Which colour does the door of the {e} have?", "{v}"),
               ("Tell me the colour of the door of the {e}.", "The door of the {e} is {v}."))),
)

HOTEL_ROOM = (
    Attribute(full_name,
              ("{E} is reserved for {v}.", "{E} is taken by {v}."),
              (("Who stays in {e}?", "{v}"), ("For whom is {e} reserved?", "{v}"),
               ("Tell me who stays in {e}.", "{E} is reserved for {v}."))),
    Attribute(from_list(words.COLOURS),
              ("The key to {e} is {v}.", "{E} opens with the {v} key."),
              (("Which colour is the key to {e}?", "{v}"), ("What is the colour of the key to {e}?", "{v}"),
               ("Tell me the colour of the key to {e}.", "The key to {e} is {v}."))),
    Attribute(from_range(20, 300),
              ("A night in {e} costs {v} coins.", "The price of {e} is {v} coins a night."),
              (("How many coins does a night in {e} cost?", "{v}"), ("What is the price of {e} in coins?", "{v}"),
               ("Tell me the price of {e}.", "A night in {e} costs {v} coins."))),
)

MEETING = (
    Attribute(from_list(words.DAYS),
              ("The {e} is on {v}.", "The {e} takes place on {v}."),
              (("On which day is the {e}?", "{v}"), ("When does the {e} take place?", "{v}"),
               ("Tell me the day of the {e}.", "The {e} is on {v}."))),
    Attribute(from_list(words.ROOMS),
              ("The {e} is held in the {v}.", "The place of the {e} is the {v}."),
              (("Where is the {e} held?", "{v}"), ("What is the place of the {e}?", "{v}"),
               ("Tell me where the {e} is held.", "The {e} is held in the {v}."))),
    Attribute(full_name,
              ("The chair of the {e} is {v}.", "The {e} is chaired by {v}."),
              (("Who is the chair of the {e}?", "{v}"), ("Who chairs the {e}?", "{v}"),
               ("Tell me the chair of the {e}.", "The chair of the {e} is {v}."))),
    Attribute(listed(words.FIRST_NAMES),
              ("The members of the {e} are {v}.", "At the {e} we will see {v}."),
              (("List the members of the {e}.", "{v}"), ("How many members does the {e} have?", "{n}"))),
)

ATTRIBUTES = {"person": PERSON, "object": OBJECT, "town": TOWN, "ship": SHIP, "building": BUILDING,
              "hotel room": HOTEL_ROOM, "meeting": MEETING}
