"""Real words that no text of the training has: the held-out facts of models/eval/own_facts.jsonl are made of them.

They stand in no list of the training, and what invents words draws again where it has made one of them. By kind, as in
own_words.KNOWN.
"""

HELD_OUT = {
    "role": """
        warden treasurer curator plumber rector abbot ferryman jockey chauffeur midwife plaintiff understudy goalkeeper
        librarian welder mentor skipper godfather nephew fiance magician ranger prefect housekeeper bishop
        """.split(),
    "noun": """
        passport umbrella thermostat backpack orchid kayak hedgehog saxophone laptop bracelet cathedral telescope
        voucher nickname deadline recipe surname podcast mushroom volcano sandwich keyboard cactus dishwasher
        headquarters firewall blueprint parachute trophy wallet scooter zipper glacier walrus pancake napkin helmet
        mailbox thunder planet pyramid bonfire syrup gadget jigsaw chimney pelican octopus broccoli cushion stapler
        thermos balcony warranty syndrome theorem molecule villain dragonfly wifi mascot anthem gearbox
        """.split(),
    "quality": """
        gloomy fluffy sturdy crooked jagged sleek mossy hollow brittle vintage rugged shabby stubborn velvet mighty
        nimble rotten dazzling pickled tangled
        """.split(),
    "colour": "turquoise maroon ochre beige indigo lilac magenta teal khaki scarlet mauve".split(),
    "first": """
        Bartholomew Priya Nikolai Yusuf Ingrid Mateo Beatrice Chinedu Agnieszka Thibault Saoirse Rashid Genevieve Kwame
        Leticia Dmitri Anneliese Hiroshi Philippa Augustus Fatima Gwendolyn Zachary Mirabel Hamish Octavia Sanjay Ulrike
        Cornelius Josephine
        """.split(),
    "last": """
        Quill Abernathy Kowalczyk Fitzgerald Nakamura Okafor Lindqvist Montgomery Vasquez Pettigrew Thackeray Delacroix
        Bhattacharya Winterbottom Sorensen Castellano Ashworth Grimaldi Hathaway Papadopoulos Rutherford Yamamoto
        Blackwood Zielinski Featherstone Underhill Marchetti Kensington Oyelaran Thistlewood
        """.split(),
    "place": """
        Samarkand Reykjavik Timbuktu Albuquerque Montevideo Ljubljana Kathmandu Nairobi Vancouver Saskatoon Marrakesh
        Dubrovnik Casablanca Chattanooga Winnipeg Antwerp Jakarta Zanzibar Heidelberg Thessaloniki Bruges Cartagena
        Inverness Wollongong Tallinn
        """.split(),
    "verb": "admire juggle scrub photograph borrow inspect trust despise rescue interview manage translate".split(),
}


def plain(word: str) -> str:
    """As words are compared: in small letters, without the ending of a plural."""
    word = word.lower()
    return word[:-3] + "y" if word.endswith("ies") else word.removesuffix("s").removesuffix("e")


NEVER_TRAINED = frozenset(plain(word) for listed in HELD_OUT.values() for word in listed)


def is_never_trained(word: str) -> bool:
    return plain(word) in NEVER_TRAINED
