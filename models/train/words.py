"""The words the generated text is made of: plain lists, one noun each.

The lists are as long as the vocabulary can hold: nearly every word becomes one token, with and without a space before
it. Jobs and things that follow "a" begin with a consonant, so that no template has to choose between "a" and "an".
"""

from random import Random

from never_trained import is_never_trained

FIRST_NAMES = """
Adam Alice Amir Anna Basil Bella Boris Bruno Cecil Chloe Clara Cora David Dora Edgar Elena Elsa Emil Emma Erik Eva
Fiona Frank Frida Gina Grace Greta Hanna Hector Heidi Henry Hugo Ida Igor Irene Iris Ivan Jacob Jana Jasper Joan Jonas
Julia Karl Klaus Kora Lara Laura Lena Leo Liam Linda Lucas Lucy Luis Mara Marco Maria Martin Max Mia Milo Mona Nina
Noah Nora Olga Omar Oscar Otto Paul Pedro Peter Petra Ralf Ramon Rita Rosa Ruth Sam Sara Sergei Simon Susan Tamara
Theo Tilda Tina Tom Vera Viola Wanda Wendy Yara Zara Zelda Zoe
""".split()

LAST_NAMES = """
Allen Baker Bell Blake Bond Brook Brown Burke Carter Clark Cole Cook Cooper Cox Crane Cross Dale Davis Dean Dixon
Drake Dunn Eaton Ellis Evans Ford Fox Frost Gibbs Grant Gray Hale Hardy Hart Hayes Heath Hill Holm Holt Hunt Jones
Kent King Klein Lamb Lane Lopez Mason Mercer Meyer Miller Moore Nash Nolan Novak Olsen Owens Page Palmer Perez Price
Reed Rivers Rossi Santos Shaw Silva Snow Stone Swan Turner Vance Vogel Walsh Ward Weber Wells West Wood Young
""".split()

CITIES = """
Accra Ankara Baku Berlin Bern Bogota Boston Bremen Cairo Cologne Cork Dakar Dallas Delhi Denver Dublin Genoa Graz
Hanoi Havana Kiel Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid Manila Milan Munich Naples Nice Odessa Osaka Oslo
Ottawa Oxford Paris Perth Porto Prague Quito Riga Rome Seoul Sofia Sydney Tampa Tokyo Tunis Turin Venice Verona Vienna
Warsaw York Zagreb Zurich
""".split()

TOWNS = """
Alderton Amberley Ashford Barnwick Birkdale Bramley Briarton Bridgend Burnside Caldwell Cranford Dunmore Eastbury
Elmstead Fairview Fallbrook Farnham Fernhill Glenmoor Greyport Hartwell Hazelton Highgate Hollowby Kingsley Lakeside
Longmead Maplewood Moorgate Newbury Oakham Pinewood Ravensby Redcliff Riverton Saltmarsh Shelford Summerby Westbrook
Whitby Willowby Windmere Winterton Woodside
""".split()

COLOURS = """
red blue green yellow black white brown grey orange purple pink golden silver violet
""".split()

QUALITIES = """
ancient broken carved cheap dusty folded foreign heavy hidden large light modern narrow new old plain round rusty shiny
small spare square tall wooden
""".split()

OBJECTS = """
apron axe bag ball basket bell belt bench blanket boat book bottle bowl box brush bucket cap cart case chair clock
coat coin comb crate crown cup desk diary dish doll door drum fan flag flask flute fork frame glass hammer hat jacket
jar jug key kite ladder lamp lantern letter lock map mask medal mirror mug needle pipe plate pot pump purse puzzle
ring robe rope ruler saw scarf screen shelf shield shirt shoe sled sofa spoon stamp stool stove table tent tile torch
towel toy tray trunk vase wagon watch wheel
""".split()

JOBS = """
baker barber builder butcher carpenter chemist clerk coach cook courier dancer dentist diver doctor driver
farmer fireman florist gardener guard guide hunter judge lawyer miller miner nurse painter pilot poet postman potter
printer sailor sculptor singer smith soldier surgeon tailor teacher waiter weaver writer
""".split()

ANIMALS = """
bear bee bird bull camel canary cat cow crab crow deer dog donkey dove duck fish fox frog goat goose hare hawk hen
heron horse lamb lion llama mole moose mouse mule parrot pig pony puppy rabbit raven seal sheep snail snake spider
stork swan tiger toad whale wolf zebra
""".split()

FOODS = """
apples bacon beans beef berries bread butter cabbage cake carrots celery cheese corn cream dates eggs figs garlic
ginger grapes ham herring honey jam lemons mango melon nuts oats olives onions pasta pears peas pepper pickles pie
plums potatoes pudding rice salad salt shrimp soup stew sugar toast trout tuna walnuts yogurt
""".split()

GOODS = """
amber barley cloth coal cocoa fur grain hay iron ivory lead oil paper rum sand silk soap steel tea tin wheat wine wool
zinc
""".split()

MATERIALS = """
bone brass bronze clay cork felt glass gold iron ivory jade marble oak paper pine rubber steel stone straw wax
""".split()

INSTRUMENTS = """
banjo cello cornet drums fiddle flute harp horn lyre oboe organ piano trumpet tuba viola violin
""".split()

LANGUAGES = """
Arabic Czech Danish Dutch French German Greek Hindi Irish Korean Latin Polish Russian Turkish
Welsh
""".split()

SPORTS = """
bowling boxing chess cricket cycling darts diving golf hockey judo karate polo riding rowing rugby running sailing
skating skiing squash surfing tennis
""".split()

MONTHS = """
January February March April May June July August September October November December
""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

ROOMS = """
attic barn bedroom cellar chapel closet dungeon foyer gallery garage garden hall kitchen laundry lobby loft office
pantry porch shed stable studio study tower vault yard
""".split()

BUILDINGS = """
bakery bank brewery bridge castle cinema clinic college factory fortress foundry garage harbour hospital hotel inn
library lighthouse market mill museum opera palace post prison quarry school stadium station theatre
""".split()

DIRECTIONS = "north south east west upper lower old new royal central".split()

SHIP_QUALITIES = """
Brave Bright Crimson Distant Flying Gentle Golden Happy Iron Lonely Lucky Morning Proud Quiet Royal Silent Silver Swift
Western Wild
""".split()

SHIP_THINGS = """
Arrow Breeze Cloud Comet Dawn Dragon Eagle Fortune Gull Lion Mermaid Otter Pearl Phoenix Pilgrim Queen Raven Spirit Star
Sun Tide Tiger Wave Wind
""".split()

TOPICS = """
airport budget bus concert fair farm fire fishing flood forest heating music parade park police pool railway road roof
safety sewage tax traffic travel tunnel waste water wedding
""".split()

WEATHERS = """
cold cool damp dry fine foggy hazy hot humid icy mild rainy sunny warm wet windy
""".split()

MOODS = """
angry bored calm glad happy hungry patient proud quiet sad serious shy sleepy thirsty tired worried
""".split()

NUMBER_WORDS = "two three four five six seven eight nine ten eleven twelve".split()

SYLLABLE_STARTS = "b br c d dr f fl g gr h j k kr l m n p pl r s sh st t tr v w z".split()
SYLLABLE_ENDS = "a e i o u al an ar el en er il in ir ol on or ul un ur".split()

PLAIN_WORDS = sorted(set(OBJECTS + ANIMALS + FOODS + GOODS + MATERIALS + COLOURS))


def invented_name(rng: Random) -> str:
    """A name of two or three syllables that is in no list: the only way to repeat it is to have read it."""
    while True:
        syllables = [pick(rng, SYLLABLE_STARTS) + pick(rng, SYLLABLE_ENDS) for _ in range(rng.randint(2, 3))]
        name = "".join(syllables)
        if not is_never_trained(name):
            return name.capitalize()


def pick(rng: Random, items: list[str] | tuple) -> str:
    """One of `items`, every one as likely (several times faster than Random.choice)."""
    return items[int(rng.random() * len(items))]
