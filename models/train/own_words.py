"""The words of people's own facts (own_facts.py): those of the training, and others that training never has.

Training draws a known word now and then and otherwise invents one: from syllables, from pieces of known words, from
letters. What such a word means cannot matter, so the model has to copy it. The held-out questions are made of the real
words in HELD_OUT, which stand in no list of the training; what is invented is drawn again where it is one of them.
"""

import string
from collections.abc import Callable
from random import Random

import words
from never_trained import HELD_OUT, is_never_trained
from words import pick

KNOWN = {
    "role": words.JOBS + """
        boss mother father brother sister friend neighbour wife husband uncle aunt cousin leader president king queen
        manager secretary owner author inventor captain mayor director chair partner rival landlord best~friend
        daughter son head winner chief
        """.split(),
    "noun": words.PLAIN_WORDS + words.ROOMS + words.BUILDINGS + words.INSTRUMENTS + words.TOPICS + """
        capital name number code title colour size shape height length age hobby birthday song film game team car house
        phone~number room~number street street~address first~book
        river mountain animal drink dream word letter symbol
        language currency motto secret result answer level flower tree train computer dog~food main~square
        favourite~food
        """.split(),
    "quality": words.QUALITIES + words.MOODS + words.WEATHERS + words.COLOURS,
    "colour": words.COLOURS,
    "first": words.FIRST_NAMES,
    "last": words.LAST_NAMES,
    "place": words.CITIES + words.TOWNS,
    "verb": """
        like love hate own sell drive paint wear read want need collect build eat drink know visit play keep grow make
        fear use help watch follow clean repair cook bake guard lead write see find
        """.split(),
}

ONSETS = """b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t
    th tr tw v w wh x y z""".split() + [""] * 5
VOWELS = "a e i o u a e i o u ai au ea ee ei ie io oa oo ou ow ay y".split()
CODAS = "b ck ct d ff ft g k l ld lf ll lm lt m mp n nd ng nk nt p r rd rk rl rm rn rt s sh sk ss st t th x z".split()
CODAS += [""] * 20
ENDINGS = """age al ance ant ard ary ation el ence er ery et ful ham ing ington ia ian ine ish ist ity land ley ling
    ment ness o on or ous ow sen ship sky son ter tion ton ty ure us ville wick wood worth y""".split() + [""] * 40
ACCENTS = str.maketrans("aeounc", "\u00e4\u00e9\u00f6\u00fc\u00f1\u00e7")
SLICED = sorted({word.lower() for listed in KNOWN.values() for item in listed for word in item.split("~")})


def _syllables(rng: Random) -> str:
    n = pick(rng, (1, 1, 1, 2, 2, 3))
    return "".join(pick(rng, ONSETS) + pick(rng, VOWELS) + pick(rng, CODAS) for _ in range(n)) + pick(rng, ENDINGS)


def _slices(rng: Random) -> str:
    parts = []
    for _ in range(pick(rng, (1, 2, 2, 3))):
        word, n = pick(rng, SLICED), rng.randint(1, 4)
        begin = rng.randint(0, max(0, len(word) - n))
        parts.append(word[begin : begin + n])
    return "".join(parts)


def _letters(rng: Random) -> str:
    return "".join(pick(rng, string.ascii_lowercase) for _ in range(rng.randint(1, 7)))


def invented(rng: Random) -> str:
    """A word in small letters, two or more, that training may have."""
    while True:
        draw = rng.random()
        word = (_syllables if draw < 0.5 else _slices if draw < 0.85 else _letters)(rng)
        if draw < 0.015:
            word = word.translate(ACCENTS)
        if len(word) > 1 and not is_never_trained(word):
            return word


class Words:
    """Draws the words of one conversation. `held_out`: those that training never has."""

    def __init__(self, rng: Random, held_out: bool = False):
        self.rng, self.held_out = rng, held_out
        self.share_known = pick(rng, (0.0, 0.2, 0.5, 1.0))
        self.drawn: dict[str, list[str]] = {"person": [], "thing": []}

    def word(self, kind: str) -> str:
        if self.held_out:
            return pick(self.rng, HELD_OUT[kind]).replace("~", " ")
        if self.rng.random() < self.share_known:
            return pick(self.rng, KNOWN[kind]).replace("~", " ")
        word = invented(self.rng)
        return word.capitalize() if kind in ("first", "last", "place") else word

    def noun(self) -> str:
        draw = self.rng.random()
        if draw < 0.15:
            return f"{self.word(pick(self.rng, ('quality', 'noun')))} {self.word('noun')}"
        return self.word("noun")

    def plural(self) -> str:
        noun = self.word("noun")
        if noun.endswith(("s", "x", "z", "ch", "sh")):
            return noun + "es"
        return noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"

    def a_noun(self) -> str:
        return f"a {self.noun()}"

    def last(self) -> str:
        last, draw = self.word("last"), self.rng.random()
        if draw < 0.04:
            return f"{last}-{self.word('last')}"
        return pick(self.rng, ("Mc", "O'", "van ", "de ")) + last if draw < 0.08 else last

    def name(self) -> str:
        """Of a person."""
        draw = self.rng.random()
        if draw < 0.35:
            return self.word("first")
        if draw < 0.43:
            return f"{pick(self.rng, ('Mr', 'Mrs', 'Doctor', 'Professor', 'Captain', 'Aunt'))} {self.last()}"
        if draw < 0.48:
            return f"{self.word('first')} {pick(self.rng, string.ascii_uppercase)}. {self.last()}"
        return f"{self.word('first')} {self.last()}"

    def person(self) -> str:
        """A name or what stands for one; at times one that was drawn before."""
        return self._again("person", self._new_person)

    def thing(self) -> str:
        return self._again("thing", self._new_thing)

    def _again(self, kind: str, new: Callable[[], str]) -> str:
        drawn = self.drawn[kind]
        if not drawn or self.rng.random() < 0.7:
            drawn.append(new())
            return drawn[-1]
        return pick(self.rng, drawn)

    def _new_person(self) -> str:
        draw = self.rng.random()
        if draw < 0.7:
            return self.name()
        return f"my {self.word('role')}" if draw < 0.82 else f"the {self.word('role')}"

    def proper(self) -> str:
        """The Blue Star, the Kestrel Inn: a name that is made of words."""
        first = pick(self.rng, (self.word("quality"), self.word("noun"), self.word("last")))
        return "the " + f"{first} {self.word('noun')}".title()

    def _new_thing(self) -> str:
        draw = self.rng.random()
        if draw < 0.3:
            return self.proper()
        if draw < 0.4:
            return f"my {self.noun()}"
        if draw < 0.5:
            return f"{self.name()}'s {self.word('noun')}"
        return f"the {self.word('quality')} {self.word('noun')}" if draw < 0.6 else f"the {self.word('noun')}"

    def place(self) -> str:
        draw = self.rng.random()
        if draw < 0.12:
            return f"{pick(self.rng, ('New', 'Port', 'Saint', 'North', 'Upper', 'Lake'))} {self.word('place')}"
        if draw < 0.2:
            return f"{self.word('place')} {pick(self.rng, ('Street', 'Hill', 'Road', 'Island', 'Park', 'Valley'))}"
        return self.word("place")

    def anything(self) -> str:
        return pick(self.rng, (self.thing, self.thing, self.person, self.place))()

    def number(self) -> str:
        """Of any length, now and then with a comma or a point."""
        rng, n_digits = self.rng, pick(self.rng, (1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 10, 12))
        digits = "".join(pick(rng, string.digits) for _ in range(n_digits))
        draw = rng.random()
        if draw < 0.08 and n_digits > 3:
            return f"{int(digits[:-3]) + 1},{digits[-3:]}"
        if draw < 0.14:
            return f"{int(digits[:4])}.{digits[-2:]}"
        return digits if draw < 0.2 else str(int(digits))

    def count(self) -> str:
        """A whole number, mostly small, now and then a word."""
        if self.rng.random() < 0.1:
            return pick(self.rng, words.NUMBER_WORDS)
        return str(self.rng.randint(2, 10 ** pick(self.rng, (1, 2, 2, 3, 4, 5))))

    def code(self) -> str:
        rng = self.rng
        letters = "".join(pick(rng, string.ascii_uppercase) for _ in range(rng.randint(1, 4)))
        digits = "".join(pick(rng, string.digits) for _ in range(rng.randint(1, 6)))
        mixed = "".join(pick(rng, string.ascii_letters + string.digits) for _ in range(rng.randint(4, 8)))
        return pick(rng, (f"{letters}-{digits}", f"{letters}{digits}", f"{digits}-{letters}",
                          f"{digits}-{digits[::-1]}",
                          mixed, mixed.lower(), f"{self.word('noun')}{digits}".replace(" ", ""), digits))

    def time(self) -> str:
        hour, minute = self.rng.randint(0, 23), self.rng.randint(0, 59)
        return pick(self.rng, (f"{hour}:{minute:02}", f"{hour}:{minute:02}", f"{hour % 12 + 1} o'clock",
                               f"{hour % 12 + 1} {pick(self.rng, ('am', 'pm'))}", "noon"))

    def date(self) -> str:
        rng = self.rng
        day, month, year = rng.randint(1, 28), pick(rng, words.MONTHS), rng.randint(1400, 2099)
        return pick(rng, (f"{day} {month}", f"{month} {day}", f"{day} {month} {year}", f"{month} {day}, {year}",
                          f"{year}-{rng.randint(1, 12):02}-{day:02}", pick(rng, words.DAYS), month, str(year)))

    def phrase(self) -> str:
        """Two to four words, such as a title or a dish."""
        noun, other, quality = self.word("noun"), self.word("noun"), self.word("quality")
        return pick(self.rng, (f"{quality} {noun}", f"{noun} and {other}", f"{noun} of {other}",
                               f"The {quality} {noun}".title(),
                               f"{noun} with {quality} {other}", f"{quality} {noun} {other}"))

    def value(self) -> str:
        """Whatever a thing can be: a name, a word, a number, a code."""
        makers: tuple[Callable[[], str], ...] = (self.name, self.place, self.noun, self.noun, self.number, self.number,
                                                 self.code,
                                                 self.date, self.time, self.phrase)
        return pick(self.rng, makers)()
