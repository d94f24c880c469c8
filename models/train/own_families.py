"""The relations of people's own facts: a family has slots, statements that tell them and questions with their answers.

In a template {p}, {q} are people, {e} is anything, {a} what it is called, {v} the value, {n} a number. A statement may
name the value first, and so a question may ask for the entity.
"""

from collections.abc import Callable
from dataclasses import dataclass

from own_words import Words
from words import pick

Slot = Callable[[Words], str]


@dataclass(frozen=True)
class Family:
    slots: dict[str, Slot]
    statements: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]  # (ask, answer)


VERBS_PAST = (("see", "saw"), ("buy", "bought"), ("find", "found"), ("lose", "lost"), ("paint", "painted"),
              ("break", "broke"),
              ("write", "wrote"), ("eat", "ate"), ("win", "won"), ("sell", "sold"), ("steal", "stole"),
              ("invent", "invented"),
              ("discover", "discovered"), ("build", "built"), ("choose", "chose"), ("bring", "brought"),
              ("visit", "visited"),
              ("repair", "repaired"), ("order", "ordered"), ("hide", "hid"), ("marry", "married"), ("call", "called"))
PREPOSITIONS = ("in", "on", "under", "behind", "next to", "near", "above", "inside", "in front of", "beside", "below",
                "between")
UNITS = ("coins", "dollars", "euros", "pounds", "cents", "francs")
MEASURES = (("metres", "long"), ("feet", "tall"), ("metres", "high"), ("miles", "long"), ("inches", "wide"),
            ("metres", "deep"),
            ("kilos", "heavy"), ("pounds", "heavy"), ("centimetres", "thick"), ("kilometres", "wide"))


def one_of(*items: str) -> Slot:
    return lambda words: pick(words.rng, items)


def between(words: Words) -> str:
    """An attribute and its entity: mostly the cook of, at times the cook at the Blue Star."""
    return "of" if words.rng.random() < 0.85 else pick(words.rng, ("at", "in", "on", "for", "from"))


def place_of(words: Words) -> str:
    """under the mat, between the door and the shelf"""
    preposition = pick(words.rng, PREPOSITIONS)
    place = f"{preposition} the {words.noun()}"
    return f"{place} and the {words.noun()}" if preposition == "between" else place


def object_of(words: Words) -> str:
    return pick(words.rng, (words.a_noun, words.a_noun, words.thing, words.plural, words.name, words.place,
                            words.phrase))()


def some_verb(words: Words) -> str:
    return words.word("verb")


ROLE = Family(
    {"a": lambda w: w.word("role"), "o": between, "e": Words.anything, "v": Words.name},
    ("the {a} {o} {e} is {v}.", "the {a} {o} {e} is {v}.", "{v} is the {a} {o} {e}.", "{v} is the {a} {o} {e}.",
     "{e} has {v} as {a}.", "{e}'s {a} is {v}.", "the name of the {a} {o} {e} is {v}.", "{v} became the {a} {o} {e}.",
     "{v} works as {a} {o} {e}.", "the {a} {o} {e} is called {v}.", "{v} is {e}'s {a}.", "for {e} the {a} is {v}.",
     "{e} has a {a} called {v}."),
    (("who is the {a} {o} {e}?", "{v}"), ("who is the {a} {o} {e}?", "{v}"), ("who is the {a} {o} {e}?", "{v}"),
     ("what is the name of the {a} {o} {e}?", "{v}"), ("who is {e}'s {a}?", "{v}"), ("name the {a} {o} {e}.", "{v}"),
     ("what is {v} the {a} {o}?", "{e}"), ("tell me the {a} {o} {e}.", "The {a} {o} {e} is {v}.")))
ATTRIBUTE = Family(
    {"a": Words.noun, "o": between, "e": Words.anything, "v": Words.value},
    ("the {a} {o} {e} is {v}.", "the {a} {o} {e} is {v}.", "{v} is the {a} {o} {e}.", "{v} is the {a} {o} {e}.",
     "{e}'s {a} is {v}.", "{e} has the {a} {v}.", "{e} has {v} as its {a}.", "{v} is {e}'s {a}.", "{a} {o} {e}: {v}."),
    (("what is the {a} {o} {e}?", "{v}"), ("what is the {a} {o} {e}?", "{v}"), ("what is the {a} {o} {e}?", "{v}"),
     ("what is {e}'s {a}?", "{v}"), ("which {a} does {e} have?", "{v}"), ("what is {v} the {a} {o}?", "{e}"),
     ("tell me the {a} {o} {e}.", "The {a} {o} {e} is {v}.")))
ALONE = Family(
    {"a": Words.noun, "v": Words.value},
    ("the {a} is {v}.", "the {a} is {v}.", "{v} is the {a}.", "the {a} was {v}.", "{a}: {v}.",
     "remember that the {a} is {v}.",
     "our {a} is {v}.", "we have {v} as {a}.", "I tell you the {a}: {v}."),
    (("what is the {a}?", "{v}"), ("what is the {a}?", "{v}"), ("which {a} is it?", "{v}"),
     ("what is {v}?", "the {a}")))
MINE = Family(
    {"a": lambda w: w.word(pick(w.rng, ("noun", "role"))), "v": Words.value},
    ("my {a} is {v}.", "my {a} is {v}.", "{v} is my {a}.", "my {a} is called {v}.", "my {a} was {v}.",
     "the name of my {a} is {v}.",
     "I have {v} as my {a}."),
    (("what is my {a}?", "{v}"), ("who is my {a}?", "{v}"), ("what is my {a} called?", "{v}"),
     ("what is the name of my {a}?", "{v}")))
MY_NAME = Family(
    {"v": Words.name},
    ("my name is {v}.", "my name is {v}.", "I am {v}.", "{v} is my name.", "I am called {v}.", "people call me {v}."),
    (("what is my name?", "{v}"), ("who am I?", "{v}"), ("what am I called?", "{v}")))
NAMED = Family(
    {"e": Words.thing, "v": lambda w: pick(w.rng, (w.word("first"), w.name(), w.word("place"), w.phrase().title()))},
    ("{e} is called {v}.", "{e} is named {v}.", "the name of {e} is {v}.", "{v} is the name of {e}.",
     "{v} is what we call {e}."),
    (("what is {e} called?", "{v}"), ("what is the name of {e}?", "{v}"), ("what is called {v}?", "{e}")))
DOES = Family(
    {"p": Words.person, "d": some_verb, "v": object_of},
    ("{p} {d}s {v}.", "{p} {d}s {v}.", "{p} {d}s {v}.", "{v} is what {p} {d}s.", "what {p} {d}s is {v}.",
     "every day {p} {d}s {v}."),
    (("what does {p} {d}?", "{v}"), ("what does {p} {d}?", "{v}"), ("who {d}s {v}?", "{p}")))
HAS = Family(
    {"p": Words.person, "v": object_of},
    ("{p} has {v}.", "{p} owns {v}.", "{v} belongs to {p}.", "{p} is the owner of {v}."),
    (("what does {p} have?", "{v}"), ("what does {p} own?", "{v}"), ("who has {v}?", "{p}"), ("who owns {v}?", "{p}"),
     ("what belongs to {p}?", "{v}")))
I_DO = Family(
    {"d": some_verb, "v": object_of},
    ("I {d} {v}.", "{v} is what I {d}.", "every day I {d} {v}."),
    (("what do I {d}?", "{v}"),))
THEY_DO = Family(
    {"p": Words.plural, "d": some_verb, "v": object_of},
    ("the {p} {d} {v}.", "{v} is what the {p} {d}."),
    (("what do the {p} {d}?", "{v}"),))
DID = tuple(Family(
    {"p": Words.person, "v": object_of, "w": Words.place},
    (f"{{p}} {past} {{v}}.", f"{{p}} {past} {{v}} in {{w}}.", f"in {{w}} {{p}} {past} {{v}}.",
     f"yesterday {{p}} {past} {{v}}.",
     f"it was {{p}} who {past} {{v}}.", f"{{v}} is what {{p}} {past}."),
    ((f"what did {{p}} {verb}?", "{v}"), (f"who {past} {{v}}?", "{p}"))) for verb, past in VERBS_PAST)
LIVES = tuple(Family(
    {"p": Words.person, "v": Words.place},
    (f"{{p}} {verb}s in {{v}}.", f"{{p}} {verb}s in {{v}}.", f"{{v}} is where {{p}} {verb}s.",
     f"in {{v}} {verb}s {{p}}."),
    ((f"where does {{p}} {verb}?", "{v}"), (f"where does {{p}} {verb}?", "{v}"), (f"who {verb}s in {{v}}?", "{p}"),
     (f"in which city does {{p}} {verb}?", "{v}"))) for verb in ("live", "live", "work", "stay"))
COMES = Family(
    {"p": Words.person, "v": Words.place},
    ("{p} comes from {v}.", "{p} is from {v}.", "{v} is where {p} comes from.", "{p} was born in {v}.",
     "{v} is the home of {p}."),
    (("where does {p} come from?", "{v}"), ("where is {p} from?", "{v}"), ("who comes from {v}?", "{p}")))
I_LIVE = Family(
    {"v": Words.place},
    ("I live in {v}.", "I come from {v} and live there.", "{v} is where I live.", "my home is in {v}."),
    (("where do I live?", "{v}"), ("in which city do I live?", "{v}")))
WENT = Family(
    {"p": Words.person, "v": Words.place, "t": Words.date},
    ("{p} went to {v}.", "{p} moved to {v}.", "{p} flew to {v}.", "{p} goes to {v}.", "{v} is where {p} went.",
     "yesterday {p} went to {v}."),
    (("where did {p} go?", "{v}"), ("who went to {v}?", "{p}")))
STANDS = Family(
    {"e": Words.thing, "v": place_of},
    ("{e} is {v}.", "{e} is {v}.", "{e} stands {v}.", "{e} lies {v}.", "{v} is {e}.", "{v} there is {e}.",
     "I put {e} {v}."),
    (("where is {e}?", "{v}"), ("where is {e}?", "{v}"), ("what is {v}?", "{e}")))
HAS_MANY = Family(
    {"p": Words.person, "x": Words.plural, "n": Words.count},
    ("{p} has {n} {x}.", "{p} owns {n} {x}.", "{n} {x} belong to {p}.", "there are {n} {x} that {p} has."),
    (("how many {x} does {p} have?", "{n}"), ("how many {x} does {p} have?", "{n}"), ("who has {n} {x}?", "{p}")))
I_HAVE_MANY = Family(
    {"x": Words.plural, "n": Words.count}, ("I have {n} {x}.", "{n} {x} are mine.", "I own {n} {x}."),
    (("how many {x} do I have?", "{n}"),))
HOLDS = Family(
    {"e": Words.thing, "x": Words.plural, "n": Words.count},
    ("there are {n} {x} in {e}.", "{e} holds {n} {x}.", "in {e} there are {n} {x}.", "{n} {x} are in {e}.",
     "{e} has {n} {x}."),
    (("how many {x} are in {e}?", "{n}"), ("how many {x} are there in {e}?", "{n}"),
     ("how many {x} does {e} have?", "{n}")))
COSTS = Family(
    {"e": Words.thing, "n": Words.number, "u": one_of(*UNITS)},
    ("{e} costs {n} {u}.", "the price of {e} is {n} {u}.", "{n} {u} is the price of {e}.", "{n} {u} is what {e} costs.",
     "I paid {n} {u} for {e}."),
    (("how much does {e} cost?", "{n} {u}"), ("how much is {e}?", "{n} {u}"), ("how many {u} does {e} cost?", "{n}"),
     ("what is the price of {e}?", "{n} {u}"), ("what costs {n} {u}?", "{e}")))
MEASURES_ = tuple(Family(
    {"e": Words.thing, "n": Words.number},
    (f"{{e}} is {{n}} {unit} {how}.", f"{{n}} {unit} {how} is {{e}}."),
    ((f"how {how} is {{e}}?", f"{{n}} {unit}"), (f"what is {{n}} {unit} {how}?", "{e}"))) for unit, how in MEASURES)
AGE = Family(
    {"p": Words.person, "n": lambda w: str(w.rng.randint(1, 120))},
    ("{p} is {n} years old.", "{p} is {n}.", "{n} is the age of {p}.", "the age of {p} is {n}.", "{p} turned {n}."),
    (("how old is {p}?", "{n}"), ("what is the age of {p}?", "{n}")))
MY_AGE = Family({"n": lambda w: str(w.rng.randint(1, 120))}, ("I am {n} years old.", "I am {n}.", "my age is {n}."),
                (("how old am I?", "{n}"), ("what is my age?", "{n}")))
WHEN = Family(
    {"e": Words.thing, "v": Words.time},
    ("{e} begins at {v}.", "{e} opens at {v}.", "at {v} {e} begins.", "{e} is at {v}.", "{e} starts at {v}."),
    (("when does {e} begin?", "{v}"), ("when is {e}?", "{v}"), ("at what time is {e}?", "{v}"),
     ("when does {e} open?", "{v}"),
     ("what is at {v}?", "{e}")))
DATED = Family(
    {"e": Words.anything, "v": Words.date},
    ("the date of {e} is {v}.", "{v} is the date of {e}.", "{e} is due on {v}.", "{e} is on {v}.",
     "{e} was founded on {v}.", "{e} was born on {v}.",
     "{e} arrives on {v}."),
    (("when is {e}?", "{v}"), ("what is the date of {e}?", "{v}"), ("when was {e} founded?", "{v}"),
     ("when was {e} born?", "{v}"),
     ("when does {e} arrive?", "{v}")))
COLOURED = Family(
    {"e": Words.thing, "v": lambda w: w.word("colour")},
    ("{e} is {v}.", "{e} has the colour {v}.", "the colour of {e} is {v}.", "{v} is the colour of {e}.",
     "{e} was painted {v}."),
    (("what colour is {e}?", "{v}"), ("which colour does {e} have?", "{v}"), ("what is the colour of {e}?", "{v}"),
     ("what is {v}?", "{e}")))
IS_A = Family(
    {"p": Words.name, "v": lambda w: w.word("role")},
    ("{p} is a {v}.", "{p} works as a {v}.", "the job of {p} is {v}.", "{v} is the job of {p}."),
    (("what is the job of {p}?", "{v}"), ("what does {p} work as?", "{v}"), ("what is {p}'s job?", "{v}")))
GAVE = Family(
    {"p": Words.person, "q": Words.person, "v": object_of},
    ("{p} gave {q} {v}.", "{p} gave {v} to {q}.", "{q} got {v} from {p}.", "{v} was given to {q} by {p}.",
     "from {p} {q} got {v}."),
    (("what did {p} give {q}?", "{v}"), ("what did {q} get from {p}?", "{v}"), ("who gave {q} {v}?", "{p}"),
     ("to whom did {p} give {v}?", "{q}"), ("who got {v} from {p}?", "{q}")))
MET = Family(
    {"p": Words.name, "q": Words.name, "v": Words.place},
    ("{p} met {q} in {v}.", "in {v} {p} met {q}.", "{v} is where {p} met {q}."),
    (("where did {p} meet {q}?", "{v}"), ("who met {q} in {v}?", "{p}"), ("whom did {p} meet in {v}?", "{q}")))
MEANS = Family(
    {"a": Words.noun, "v": Words.phrase},
    ("{a} means {v}.", "the word {a} means {v}.", "{v} is what {a} means.", "{a} stands for {v}."),
    (("what does {a} mean?", "{v}"), ("what does {a} stand for?", "{v}"), ("which word means {v}?", "{a}")))

FAMILIES: tuple[tuple[Family, ...], ...] = (
    (ROLE,), (ROLE,), (ROLE,), (ATTRIBUTE,), (ATTRIBUTE,), (ATTRIBUTE,), (ALONE,), (ALONE,), (MINE,), (MINE,),
    (MY_NAME,), (NAMED,),
    (DOES,), (DOES,), (HAS,), (I_DO,), (THEY_DO,), DID, DID, LIVES, LIVES, (COMES,), (I_LIVE,), (WENT,), (STANDS,),
    (STANDS,),
    (HAS_MANY,), (I_HAVE_MANY,), (HOLDS,), (COSTS,), MEASURES_, (AGE,), (MY_AGE,), (WHEN,), (DATED,), (COLOURED,),
    (IS_A,), (GAVE,),
    (MET,), (MEANS,))
