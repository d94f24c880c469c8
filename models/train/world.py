"""The world of one conversation: who and what is in it, and which facts have been told.

No (entity, attribute) is told twice, so every question has one answer. Each world draws from its own small pools of
names, qualities and attributes; the smaller the pools, the more its entities resemble each other.
"""

from collections.abc import Callable
from random import Random

import facts
import words
from facts import Attribute, Fact
from words import pick

ALL_ATTRIBUTES = tuple((kind, attribute) for kind, several in facts.ATTRIBUTES.items() for attribute in several)
LONG = 1500  # tokens; longer conversations need more names than there are first names


class World:
    def __init__(self, rng: Random, n_tokens: int):
        """`n_tokens`: about how long the conversation becomes."""
        self.rng = rng
        self.first_names_only = rng.random() < 0.4 and n_tokens < LONG
        self.first_names = self._pool(words.FIRST_NAMES, 0.3)
        self.last_names = self._pool(words.LAST_NAMES, 0.1)
        self.qualities = self._pool(words.COLOURS + words.QUALITIES, 0.1)
        self.objects = self._pool(words.OBJECTS, 0.1)
        self.attributes = self._choose_attributes()
        self.entities: dict[str, list[str]] = {kind: [] for kind in facts.ATTRIBUTES}
        self._told: set[tuple[str, Attribute]] = set()

    def new_fact(self) -> Fact:
        """Something not told before. Where the pools run dry they become whole again."""
        while True:
            for _ in range(20):
                kind, attribute = pick(self.rng, self.attributes)
                entity = self._some_entity(kind)
                if (entity, attribute) not in self._told:
                    return self._tell(kind, entity, attribute)
            self._widen()

    def person(self) -> str:
        """Somebody for a sentence that is no fact: often one of whom facts are told."""
        return self._known_or_new("person")

    def thing(self) -> str:
        return self._known_or_new("object")

    def town(self) -> str:
        return self._known_or_new("town")

    def _known_or_new(self, kind: str) -> str:
        known = self.entities[kind]
        return pick(self.rng, known) if known and self.rng.random() < 0.6 else self._new_entity(kind)

    def _some_entity(self, kind: str) -> str:
        known = self.entities[kind]
        return pick(self.rng, known) if known and self.rng.random() < 0.4 else self._new_entity(kind)

    def _tell(self, kind: str, entity: str, attribute: Attribute) -> Fact:
        self._told.add((entity, attribute))
        if entity not in self.entities[kind]:
            self.entities[kind].append(entity)
        value = attribute.values(self.rng)
        return Fact(entity, value, facts.fill(pick(self.rng, attribute.statements), entity, value), attribute)

    def _new_entity(self, kind: str) -> str:
        rng = self.rng
        maker: dict[str, Callable[[], str]] = {
            "person": self._new_person,
            "object": lambda: f"{pick(rng, self.qualities)} {pick(rng, self.objects)}",
            "town": lambda: words.invented_name(rng) if rng.random() < 0.05 else pick(rng, words.TOWNS),
            "ship": lambda: f"{pick(rng, words.SHIP_QUALITIES)} {pick(rng, words.SHIP_THINGS)}",
            "building": lambda: f"{pick(rng, words.DIRECTIONS)} {pick(rng, words.BUILDINGS)}",
            "hotel room": lambda: f"room {rng.randint(1, 499)}",
            "meeting": lambda: f"{pick(rng, words.TOPICS)} {pick(rng, ('meeting', 'debate', 'lecture'))}",
        }
        return maker[kind]()

    def _new_person(self) -> str:
        invented = self.rng.random() < 0.04
        if self.first_names_only:
            return words.invented_name(self.rng) if invented else pick(self.rng, self.first_names)
        last = words.invented_name(self.rng) if invented else pick(self.rng, self.last_names)
        return f"{pick(self.rng, self.first_names)} {last}"

    def _pool(self, items: list[str], least: float) -> list[str]:
        """Some of `items`, at least the share `least`."""
        share = self.rng.uniform(least, 1)
        return self.rng.sample(items, max(4, int(len(items) * share)))

    def _choose_attributes(self) -> tuple[tuple[str, Attribute], ...]:
        """All kinds and attributes, or a few: then many facts differ in nothing but the entity."""
        if self.rng.random() < 0.5:
            return ALL_ATTRIBUTES
        kinds = self.rng.sample(list(facts.ATTRIBUTES), self.rng.randint(1, 4))
        return tuple((kind, attribute) for kind in kinds
                     for attribute in self.rng.sample(facts.ATTRIBUTES[kind], self.rng.randint(1, 3)))

    def _widen(self) -> None:
        self.first_names, self.last_names = words.FIRST_NAMES, words.LAST_NAMES
        self.qualities, self.objects = words.COLOURS + words.QUALITIES, words.OBJECTS
        self.attributes = ALL_ATTRIBUTES
