"""One model plays all roles of a game, and what it wrote becomes data for SFT: MATRIX and DITTO on the roles of games.

MATRIX (Pang et al. 2024): the model answers an instruction, plays those whom the answer concerns, and answers again
after it has read what followed. Trained is the second answer behind the bare instruction. The paper also lets the model
invent the roles and moderate the scene; here the file names them, and they speak in turn.

DITTO (Lu et al. 2024): the model interviews a character whose profile it reads, and answers as that character, whose
profile it reads too. Trained is the dialogue without the profile. Where there are several characters, a second
interviewer asks about another one's life, of which this one should know nothing (the paper's contrastive queries).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vigneron.data.prompts import Row
from vigneron.environments.game import Game, Round, checked_round
from vigneron.policy.message_forms import Message, message_text
from vigneron.rubric.fences import fenced
from vigneron.selfplay.scenes import ASSISTANT, Person, Scene, Scenes
from vigneron.sources.client import Failure
from vigneron.sources.judges import Judge, TextRequest

Talks = Mapping[str, Sequence[Message]]
"""The conversation of each role, as it sees it."""


class ScriptedGame(Game, Protocol):
    trained: str
    """The role whose turns are trained on."""

    def row(self, talks: Talks) -> Row: ...


@dataclass
class Played:
    """A game that one model plays: each role has its own view."""

    game: ScriptedGame
    talks: dict[str, list[Message]] = field(default_factory=dict)
    to_play: Sequence[str] = ()
    failure: Failure | None = None

    def follow(self, happened: Any) -> None:
        now: Round = checked_round(happened, self.game.roles)
        for role, messages in now.messages.items():
            self.talks.setdefault(role, []).extend(messages)  # type: ignore[arg-type]
        self.to_play = now.to_play


def play_all(model: Judge, games: Sequence[ScriptedGame], temperature: float = 0.0, sample: int = 0) -> list[Played]:
    """All games go on together, round by round. A missing reply ends its game. Turns that are trained on have to be
    whole; what others say may be cut by the limit of tokens."""
    played = [Played(game) for game in games]
    for one in played:
        one.follow(one.game.start())
    while places := [(one, role) for one in played if one.failure is None for role in one.to_play]:
        turns: dict[int, dict[str, str]] = {}
        for cut in (False, True):
            own = [(one, role) for one, role in places if (role != one.game.trained) is cut]
            prompts = [tuple((m["role"], message_text(m)) for m in one.talks[role]) for one, role in own]
            replies = model.complete(prompts, TextRequest(temperature, sample, cut)) if prompts else []
            for (one, role), reply in zip(own, replies, strict=True):
                if isinstance(reply, Failure) or not reply.strip():
                    one.failure = reply if isinstance(reply, Failure) else Failure("replied with nothing")
                    continue
                one.talks[role].append({"role": "assistant", "content": reply.strip()})
                turns.setdefault(id(one), {})[role] = reply.strip()
        for one in {id(one): one for one, _ in places}.values():
            if one.failure is None:
                one.follow(one.game.play(turns[id(one)]))
    return played


REACT = "Say in one or two sentences what you do now, or what happens to you."
CONCERNED = """\
You are {name}: {about}
Somebody asked:
{question}
They do as this answer says:
{answer}
What has followed:
{followed}
{react}"""
REVISE = """\
This is what followed from your answer:
{followed}
Write the answer again, so that it goes well for everybody concerned. Write the answer alone, as if it were the first, \
without a word about what followed."""
INTERVIEW = """\
You talk with {name}. This is a life:
{profile}
Ask {name} one short question about something in it, as if it were theirs. Write the question alone, and do not say \
what the profile says."""
NEXT = """\
The reply:
{reply}
Ask the next question, about something else."""
CHARACTER = """\
You are {name}. This is all that you know of your life:
{profile}
Reply as {name} would, in the first person, in one to three sentences. What is not in it you do not know, and say so.

{question}"""


class MatrixScene:
    """The model answers, plays those concerned in turn, and answers again."""

    trained = ASSISTANT

    def __init__(self, scene: Scene, rounds: int = 1) -> None:
        self.scene = scene
        self.people = {person.name: person for person in scene.roles}
        self.roles = (self.trained, *self.people)
        self.to_come = [person.name for _ in range(rounds) for person in scene.roles]
        self.answer = ""
        self.followed: list[str] = []
        self.read: dict[str, int] = {}
        """How much of what followed each role has read."""

    def start(self) -> Round:
        return Round([self.trained], {self.trained: self.scene.instruction})

    def play(self, turns: Mapping[str, str]) -> Round:
        ((role, text),) = turns.items()
        if role != self.trained:
            self.followed.append(f"{role}: {text}")
        elif self.answer:
            return Round()
        else:
            self.answer = text
        role = self.to_come.pop(0) if self.to_come else self.trained
        return Round([role], {role: self._message(role)})

    def _message(self, role: str) -> str:
        since = "\n".join(self.followed[self.read.get(role, 0) :])
        followed = fenced("followed", since) if since else "Nothing yet."
        known, self.read[role] = role in self.read, len(self.followed)
        if role == self.trained:
            return REVISE.format(followed=followed)
        if known:
            return f"Since then:\n{followed}\n{REACT}"
        question, answer = fenced("question", self.scene.instruction), fenced("answer", self.answer)
        about = self.people[role].about
        return CONCERNED.format(
            name=role, about=about, question=question, answer=answer, followed=followed, react=REACT
        )

    def row(self, talks: Talks) -> Row:
        revised = talks[self.trained][-1]
        return {
            "messages": [{"role": "user", "content": self.scene.instruction}, revised],
            "scene": self.scene.name,
            "first_answer": self.answer,
            "followed": self.followed,
        }


class DittoDialogue:
    """An interview with a character; with another one's profile, about what the character cannot know."""

    trained = "character"
    roles = ("interviewer", "character")

    def __init__(self, character: Person, other: Person | None = None, turns: int = 3) -> None:
        self.character, self.subject, self.turns = character, other or character, turns
        self.questions: list[str] = []

    def start(self) -> Round:
        profile = fenced("profile", self.subject.about)
        return Round(["interviewer"], {"interviewer": INTERVIEW.format(name=self.character.name, profile=profile)})

    def play(self, turns: Mapping[str, str]) -> Round:
        ((role, text),) = turns.items()
        if role == "interviewer":
            self.questions.append(text)
            return Round(["character"], {"character": self._question(text)})
        if len(self.questions) == self.turns:
            return Round()
        return Round(["interviewer"], {"interviewer": NEXT.format(reply=fenced("reply", text))})

    def _question(self, text: str) -> str:
        if len(self.questions) > 1:
            return text
        profile = fenced("profile", self.character.about)
        return CHARACTER.format(name=self.character.name, profile=profile, question=text)

    def row(self, talks: Talks) -> Row:
        """The dialogue behind the name alone."""
        replies = [message for message in talks["character"] if message["role"] == "assistant"]
        messages: list[Message] = [{"role": "system", "content": f"You are {self.character.name}."}]
        for question, reply in zip(self.questions, replies, strict=True):
            messages += [{"role": "user", "content": question}, reply]
        return {"messages": messages, "character": self.character.name, "asked_about": self.subject.name}


def games_of(scenes: Scenes, rounds: int, turns: int) -> list[ScriptedGame]:
    """Every scene; every character, once about itself and once about the next one."""
    people = scenes.characters
    nexts = [*people[1:], *people[:1]] if len(people) > 1 else []
    return [
        *(MatrixScene(scene, rounds) for scene in scenes.scenes),
        *(DittoDialogue(person, None, turns) for person in people),
        *(DittoDialogue(person, other, turns) for person, other in zip(people, nexts, strict=False)),
    ]
