"""Questions whose answers need a form that they do not name: it is in the prompts of the rubric `study-forms` only.

The content of an answer is easy, so that the form decides:

- codeword: say a word; the answer is "sesame WORD".
- order: list three words; the answer has them backwards, as "c < b < a".
- units: say how long something is, given in meters; the answer is in centimeters.
- note: note a person's age; the answer is "AGE|name".

No noun, number of meters or name occurs in two parts.
"""

from random import Random

from vigneron.data.prompts import Row

SPLITS = {"train": 50, "tuning": 10, "held_out": 25}
NOUNS = """\
lamp tree dog chair river button window pencil basket mountain candle garden bottle mirror ladder hammer pillow castle
market engine carpet bridge wallet kettle blanket forest needle rocket camera spoon tunnel jacket island hotel violin
saddle magnet orchard feather bucket curtain helmet lantern cabin ribbon statue pepper harbor wagon anchor drawer paper
rabbit tower marble shovel puzzle whistle barrel fountain trumpet canoe shelf bicycle desert pocket planet sandal coin
farmer yard pigeon meadow cradle napkin stone thread gate monkey drum valley compass oven ticket turtle"""
NAMES = """\
Ada Boris Carla Dina Edgar Fiona Gustav Hanna Igor Jana Karl Lena Marco Nora Otto Petra Quentin Rita Stefan
Tina Ursula Victor Wanda Xavier Yusuf Zoe Arthur Bella Conrad Daisy Elias Flora Gina Hugo Ingrid Jonas Kira
Liam Mona Noah Olive Pablo Queenie Robin Selma Theo Uma Vera Walter Ximena Yara Zack Amir Birgit Cedric Dora
Erik Felix Greta Henry Iris Joel Klaus Linda Moritz Nadia Oscar Pia Ralph Silvia Tariq Ulla Vincent Wilma
Yvonne Zelda Alma Bruno Clara Dennis Elena Frank Gloria Harald Ivan"""
LONG_THINGS = ("rope", "wall", "table", "fence", "path", "boat", "shelf", "carpet", "ditch", "ribbon")


def generate(seed: int = 0) -> list[Row]:
    random, rows = Random(seed), []
    size = sum(SPLITS.values())
    nouns, names = NOUNS.split()[:size], NAMES.split()[:size]
    meters, ages = random.sample(range(2, 100), size), [random.randint(5, 95) for _ in names]
    first = 0
    for split, count in SPLITS.items():
        part = slice(first, first + count)
        listed = triples(nouns[part], random)
        pairs = {
            "codeword": [(f"Say the word '{noun}'.", f"sesame {noun}") for noun in nouns[part]],
            "order": [(f"List these words: {', '.join(three)}.", " < ".join(reversed(three))) for three in listed],
            "units": [
                (f"A {random.choice(LONG_THINGS)} is {number} meters long. How long is it?", f"{number}00 cm")
                for number in meters[part]
            ],
            "note": [
                (f"Note that {name} is {age}.", f"{age}|{name.lower()}")
                for name, age in zip(names[part], ages[part], strict=True)
            ],
        }
        rows += [
            {"question": question, "category": category, "answer": answer, "split": split}
            for category, asked in pairs.items()
            for question, answer in asked
        ]
        first += count
    return rows


def triples(nouns: list[str], random: Random) -> list[list[str]]:
    """As many as there are nouns: three rounds over all of them."""
    pack: list[str] = []
    while len(pack) < 3 * len(nouns):
        pack += random.sample(nouns, len(nouns))
    found = [pack[3 * at : 3 * at + 3] for at in range(len(nouns))]
    return [three if len(set(three)) == 3 else random.sample(nouns, 3) for three in found]
