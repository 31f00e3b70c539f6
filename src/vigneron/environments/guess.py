"""A guessing game: the model names numbers and is told whether the one that is sought is higher or lower.

In a recipe:

    data: {task: guess-16}
    environment: {kind: python, class: "vigneron.environments.guess:GuessingGame", max_turns: 7}
    reward: {kind: environment}
"""

from vigneron.data import guess
from vigneron.data.prompts import Row
from vigneron.environments.columns import needed
from vigneron.environments.reply import Reply
from vigneron.policy.message_forms import Message, message_text


class GuessingGame:
    """Rewards a find by the guesses it took: 1, (turns − 1)/turns, …, 1/turns; else 0. Every reply is a guess."""

    def __init__(self, row: Row, seed: int) -> None:
        self.row = {name: needed(row, name, int) for name in ("lowest", "highest", "secret", "turns")}
        self.used = 0

    def reply(self, messages: list[Message]) -> Reply:
        self.used += 1
        guessed = guess.read_guess(message_text(messages[-1]))
        found = guessed == self.row["secret"]
        log = {"found": float(found), "malformed": float(guessed is None)}
        if found:
            return Reply(reward=guess.reward(self.row, self.used), done=True, log=log)
        if self.used == self.row["turns"]:
            return Reply(reward=0.0, done=True, log=log)
        return Reply(guess.hint(self.row, guessed), log=log)
