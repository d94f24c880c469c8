"""Sentences in which nothing is told that a question asks for: weather, streets, meals, small happenings.

They name the same people, things and places as the facts, and numbers too, so that a fact cannot be known from its
words; only the wordings of the facts themselves are kept out. A sentence is an opening, often empty, and a clause.
"""

import re
from collections.abc import Callable

import words
from words import pick
from world import World

OPENINGS = """
In the morning|In the evening|After lunch|Before dinner|Late at night|On {day}|Last {day}|In {month}|At noon|That day
A little later|For a while|Once again|As usual|Without a word|By chance|At last|Some time ago|At the same moment
On the way home|Despite the {weather} weather|Far away|Around {hour} o'clock|For {number} days|Now and then|To be honest
""".replace("\n", "|").strip("|").split("|")

CLAUSES = """
the weather was {weather} and {weather}
it became {weather} and nobody wanted to go out
the sky over {town} was {colour} and the air was {weather}
the wind came from the {direction} and shook the trees
the rain fell on the roofs of {town}
the streets of {town} were {mood} and empty
the streets near the {building} were full of people
a cold wind blew through the {room}
the sun went down behind the {building}
the snow lay {few} feet deep in {month}
{person} walked slowly to the {building}
{person} took the train to {city} and came back with a {animal}
{person} talked with {person} about the weather
{person} met {person} in front of the {building}
{person} wrote a long letter to {person}
{person} was too {mood} to answer
{person} felt {mood} and went to bed early
{person} bought {food} and {food} at the market
{person} cooked {food} with {food} for {few} people
{person} forgot the {food} on the table
{person} dreamed of a {colour} {animal} in {city}
{person} sat by the window and looked at the rain
{person} read a book about {goods} and fell asleep
{person} counted {number} steps and then stopped
{person} waited {number} minutes for the bus
{person} lost a game of {sport} against {person}
{person} told a story about a {animal} and a {animal}
{person} asked {person} for a cup of tea
{person} laughed and went on with the work
{person} could not find the way to the {building}
{person} helped a {job} to carry some {goods}
{person} spent {few} weeks in {city} and did not like it
{person} looked at the {thing} for a long time
{person} cleaned the {thing} with a wet cloth
{person} nearly fell over the {thing}
{person} saw a picture of the {thing} in the newspaper
{person} thought that the {thing} was quite useless
{person} drew the {thing} on a piece of paper
{person} passed through {town} without stopping
{person} sent {few} postcards from {town}
{person} heard that the road to {town} was closed
{person} was {mood} because the {food} tasted of {food}
nobody talked about the {thing} any more
somebody had moved the {thing} again
everybody wanted to see the {thing}
a {job} came and asked about the {thing}
a {job} and a {job} argued about the price of {goods}
a {job} from {city} told jokes for {few} hours
a {animal} ran across the road and into the {building}
a {animal} and {few} {animal}s slept in the sun
a {colour} {animal} sat on the roof and watched the street
the {animal} looked {mood} and ate some {food}
the children played {sport} behind the {building}
the children learned {few} new words
the old people remembered the year {year}
the newspaper wrote about {sport} and about {goods}
the bus to {town} was {number} minutes late
the train from {city} arrived with {number} people
the shop sold {food}, {food} and {number} kinds of tea
the cook burned the {food} and served {food} again
the guests drank tea and talked about {city}
the lamps in the {room} went out for {few} minutes
the stairs to the {room} were being repaired
the floor of the {room} was {weather} and smelled of {goods}
the door of the {room} would not close
the clock in the {room} struck {few} times
the garden behind the {building} was full of flowers
the roof of the {building} needed {number} new tiles
the walls of the {building} were painted last {month}
the workers carried {number} boxes of {goods} up the hill
the boat with the {goods} was late again
the river near {town} was high and brown
the hills around {town} were covered with snow
the bells of {town} rang {few} times
the radio played the same song {few} times
the meal was good, but the {food} was cold
the music was too loud for {person}
the meeting was long and everybody was {mood}
the plan was changed {few} times and then forgotten
the letter from {city} never arrived
there was a smell of {food} in the {room}
there were {number} birds in the old tree
there was nothing to do but wait
there was a queue in front of the {building}
it was a {weather} day and the {room} was quiet
it took {number} minutes to reach the {building}
it was said that {city} is more beautiful in {month}
nothing happened for {number} minutes
nobody knew what to say
few people noticed the {animal} near the {building}
most people stayed at home and played {sport}
some said {few}, others said {number}
two friends spoke {language} in the {room}
one could hear the {instrument} from far away
several letters were lost between {city} and {town}
they all agreed that {food} goes well with {food}
they sang a song about {city} and danced
they talked about {person} and about the {thing}
we saw {number} lights on the other side of the river
""".strip().split("\n")

SLOTS: dict[str, Callable[[World], str]] = {
    "person": World.person,
    "thing": World.thing,
    "town": World.town,
    "number": lambda world: str(world.rng.randint(2, 99)),
    "year": lambda world: str(world.rng.randint(1700, 1989)),
    "hour": lambda world: str(world.rng.randint(1, 12)),
} | {
    slot: lambda world, items=items: pick(world.rng, items)
    for slot, items in {
        "city": words.CITIES, "building": words.BUILDINGS, "room": words.ROOMS, "food": words.FOODS,
        "animal": words.ANIMALS, "job": words.JOBS, "goods": words.GOODS, "sport": words.SPORTS,
        "colour": words.COLOURS, "weather": words.WEATHERS, "mood": words.MOODS, "day": words.DAYS,
        "month": words.MONTHS, "few": words.NUMBER_WORDS, "language": words.LANGUAGES,
        "instrument": words.INSTRUMENTS, "direction": words.DIRECTIONS[:4],
    }.items()
}


def parse(template: str) -> list[str | Callable[[World], str]]:
    """The template as the parts that a sentence is joined from."""
    return [SLOTS[part[1:-1]] if part.startswith("{") else part
            for part in re.split(r"(\{\w+\})", template) if part]


PARSED_OPENINGS = tuple(parse(opening + ", ") for opening in OPENINGS)
PARSED_CLAUSES = tuple(parse(clause + ".") for clause in CLAUSES)


def sentence(world: World) -> str:
    parts = pick(world.rng, PARSED_CLAUSES)
    if world.rng.random() < 0.35:
        parts = pick(world.rng, PARSED_OPENINGS) + parts
    text = "".join([part if isinstance(part, str) else part(world) for part in parts])
    return text[0].upper() + text[1:]
