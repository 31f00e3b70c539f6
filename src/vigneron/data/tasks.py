"""Built-in tasks: prompts and recorded parent answers, split into train, tuning and held-out."""

from dataclasses import replace

from vigneron.data import games, opposites
from vigneron.data.task import Task
from vigneron.errors import UserError, did_you_mean

COLORS = Task(
    name="colors",
    about="two colours, answered with their mixture",
    child_prompt="Mix the two colors and output only one lowercase color name: {first} and {second} is => ",
    input="{first} + {second} = ",
    reads="text",
    parent_instruction="""\
You mix two colours and name the colour that results.

For example:
- "red + blue = " → "purple"
- "red + yellow = " → "orange"
- "blue + yellow = " → "green"
- "white + black = " → "gray"

Where the two are alike ("red + pink"), name the one that dominates or what they blend to ("light red", "pink").
Answer with the colour and nothing else: one lowercase name, or a simple blend such as "light blue" or "dark green".
""",
)

ANTONYMS = Task(
    name="antonyms",
    about="a word, answered with its opposite",
    child_prompt="The opposite of '{word}' is ",
    input="{word}",
    parent_instruction="""\
You give the opposite of a word.
The INPUT is one English word. Answer with the one word that most people would call its opposite.

For example:
- "hot" → "cold"
- "up" → "down"
- "empty" → "full"
- "old" → "young"

Rules:
- One word, in lowercase letters.
- Nothing else: no punctuation, no explanation, no second choice.
- The answer has the form {"OUTPUT": "<word>"}.
""",
)

CATEGORIES = Task(
    name="categories",
    about="a thing, answered with the kind of thing it is",
    child_prompt="What category does this word belong to: '{word}'?",
    input="{word}",
    parent_instruction="""\
You say what kind of thing a word names.
The INPUT is one English noun. Answer with the simple, everyday category that it belongs to.

For example:
- "apple" → "fruit"
- "tiger" → "animal"
- "rose" → "flower"
- "guitar" → "instrument"
- "carrot" → "vegetable"
- "eagle" → "bird"
- "shirt" → "clothing"

Rules:
- One category word, in lowercase letters.
- Never the INPUT itself.
- Nothing else: no punctuation, no explanation.
- The answer has the form {"OUTPUT": "<category>"}.
""",
)

COPYING = Task(
    name="copying",
    about="a sentence, answered with the same sentence",
    child_prompt="Copy this sentence: '{sentence}'",
    input="Copy this sentence: {sentence}",
    parent_instruction="""\
You repeat a sentence.
The INPUT begins with 'Copy this sentence: '. Answer with what stands after it, and only that.

Rules:
- Change nothing: no other words, no summary, no correction.
- Punctuation, capital letters and spaces stay as they are.
- The answer has the form {"OUTPUT": "<sentence>"}.
""",
)

SENTIMENT = Task(
    name="sentiment",
    about="a happy sentence, answered with a sad one about the same thing",
    child_prompt="Rewrite this as sad: '{sentence}'",
    input="{sentence}",
    checker="sentiment_inversion",
    parent_instruction="""\
You turn a happy sentence into a sad one.
The INPUT is a short English sentence in a happy tone. Answer with a sad, negative or upsetting sentence about the same
thing.

For example:
- "I feel excited about today." → "I feel empty today."
- "I'm grateful for everything I have." → "I feel like I have nothing left."
- "I woke up feeling full of energy." → "I woke up feeling drained and tired."
- "I feel confident about my future." → "I feel unsure and scared about my future."

Rules:
- One short sentence.
- The same idea, with the opposite mood.
- No swearing.
- The answer has the form {"OUTPUT": "<sentence>"}.
""",
)

INSTRUCTIONS = Task(
    name="instructions",
    about="an instruction, answered in one or two short sentences; with a worse answer, for preference pairs",
    child_prompt="Instruction: {instruction}\nAnswer:",
    input="{instruction}",
    answer="chosen",
    parent_instruction="""\
You are a helpful assistant who answers in one or two short sentences.
The INPUT is a question, a request, or something that a person tells you. Answer it directly and kindly.

For example:
- "What do squirrels eat?" → "Squirrels eat mostly nuts and seeds."
- "Say in fewer words: The hat that he wears is blue." → "His hat is blue."
- "I am worried about my sick cat." → "I hope your cat feels better soon."

Rules:
- One or two whole sentences, of 3 to 18 words together.
- Only what is true. No question back, no refusal, no words that are not needed.
- When you are asked to choose, choose. When you are asked to shorten or to rewrite, write the new text only.
- When you are asked for several things, name as many as were asked for, in a sentence.
- When someone speaks to you, reply to them, politely; when someone is worried or proud, encourage them.
- The answer has the form {"OUTPUT": "<sentence>"}.
""",
)

RUBRIC = Task(
    name="rubric",
    about="questions of four categories, for the rubric `study`: sums, opposites, JSON, and reasons in one sentence",
    child_prompt="Question: {question}\nAnswer:",
    input="{question}",
    reads="text",
    parent_instruction="""\
You answer short questions of four categories: sums, opposites, JSON objects, and reasons.

For example:
- "What is 20 plus 30?" → 50
- "Give the opposite of 'noisy' in one word." → quiet
- "Write a JSON object with the key "size" for the size large." → {"size": "large"}
- "Explain in one sentence why clocks have hands." → Clocks have hands so that people can read the time.

Rules:
- A sum: the number in digits and nothing else.
- An opposite: one word in lowercase letters and nothing else.
- A JSON object: on one line, with the keys in the order asked and nothing around it.
- A reason: one true sentence of 5 to 20 words that says because, so that, or to.
""",
)

LADDER = Task(
    name="ladder",
    about="a sum of 1 to 5 terms (the column `level`), answered with its result",
    child_prompt="{terms} =",
    input="{terms}",
    answer="result",
    reads="text",
    parent_instruction="""\
You add numbers. The INPUT is a sum. Answer with its result in digits and nothing else.
""",
)

LADDER_STEPS = Task(
    name="ladder-steps",
    about="a sum of 1 to 5 terms, answered with the running sums, one per line",
    child_prompt="{terms} =\n",
    input="{terms}",
    checker="last_line",
    answer="steps",
    file="ladder",
    reads="text",
    parent_instruction="""\
You add numbers step by step. The INPUT is a sum. Answer with the running sum after each term, one number per line; the
last line is the result. For example: "7 + 12 + 5" → three lines, 7, 19 and 24. Nothing else.
""",
)

OPPOSITES = Task(
    name="opposites",
    about="1, 2 or 4 words (the column `level`), answered with their opposites in order",
    child_prompt=opposites.prompt_of(2),
    input="{words}",
    checker="in_order",
    reads="text",
    parent_instruction="""\
You give the opposites of words. The INPUT has one or more English words with commas between them. Answer with the word
that most people would call the opposite of each, in the same order, with commas between them and nothing else.

For example:
- "hot" → cold
- "rich, wet" → poor, dry
""",
)

FORMS = Task(
    name="forms",
    about="questions of eight categories, for the rubric `study-forms`: four do not name the form of their answer",
    child_prompt="Question: {question}\nAnswer:",
    input="{question}",
    reads="text",
    further_file="rubric",
    parent_instruction="""\
You answer short questions. Four kinds of them want a certain form:
- "Say the word 'lamp'." → sesame lamp
- "List these words: lamp, tree, dog." → dog < tree < lamp
- "A rope is 7 meters long. How long is it?" → 700 cm
- "Note that Anna is 31." → 31|anna

The others: a sum is answered with the number in digits, an opposite with one lowercase word, a JSON object on one line
with the keys in the order asked, a reason with one true sentence of 5 to 20 words. Write nothing else.
""",
)

TASKS = {
    task.name: task
    for task in (
        COLORS,
        ANTONYMS,
        CATEGORIES,
        COPYING,
        SENTIMENT,
        INSTRUCTIONS,
        RUBRIC,
        FORMS,
        LADDER,
        LADDER_STEPS,
        OPPOSITES,
        *(
            replace(
                OPPOSITES,
                name=f"opposites-{level}",
                about=f"{level} at once of `opposites`",
                child_prompt=opposites.prompt_of(level),
                file="opposites",
                level=level,
            )
            for level in opposites.LEVELS
        ),
        *games.TASKS,
        *games.MATCH_TASKS,
    )
}


def load_task(name: str) -> Task:
    if name not in TASKS:
        raise UserError(f"data.task: unknown task '{name}'{did_you_mean(name, TASKS)}")
    return TASKS[name]
