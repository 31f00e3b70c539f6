"""The page of `vigneron view --chat`: completions of a run's checkpoints. A model is loaded with the first message."""

from collections.abc import Callable
from dataclasses import dataclass
from json import loads
from pathlib import Path
from threading import Lock
from typing import Any

from vigneron.errors import UserError
from vigneron.values import is_number

MAX_TEXT = 20_000
MAX_TOKENS = 4096


@dataclass(frozen=True)
class Message:
    """What is asked: of the checkpoint of `step`, or of the model before training (0)."""

    run: str
    step: int
    talk: tuple[str, ...]
    """The user's texts and the replies in turn; the last one is to be answered."""
    temperature: float
    max_new_tokens: int | None

    @classmethod
    def of(cls, body: bytes) -> "Message":
        try:
            given = loads(body)
            talk = given["talk"]
            message = cls(given["run"], given["step"], tuple(talk), given["temperature"], given["max_new_tokens"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise UserError("the request must have run, step, talk, temperature and max_new_tokens") from None
        texts = all(isinstance(text, str) for text in (message.run, *message.talk))
        if not texts or len(message.talk) % 2 == 0:
            raise UserError("talk: expected texts of the user and of the model in turn, the user's first and last")
        if sum(map(len, message.talk)) > MAX_TEXT:
            raise UserError(f"the conversation has more than {MAX_TEXT:,} characters: begin a new one")
        if type(message.step) is not int or message.step < 0:
            raise UserError("step: expected a whole number")
        if not is_number(message.temperature) or not 0 <= message.temperature <= 10:
            raise UserError("temperature: expected a number from 0 to 10")
        tokens = message.max_new_tokens
        if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS):
            raise UserError(f"max_new_tokens: expected 1 to {MAX_TOKENS}")
        return message


def chat_device(trains: bool) -> str:
    """The CPU while a run is trained, or where other processes hold half of the GPU's memory: a second model could end
    them."""
    import torch

    if not torch.cuda.is_available():
        return "auto"
    if trains:
        return "cpu"
    free, total = torch.cuda.mem_get_info()
    return "cpu" if free < total / 2 else "auto"


class Chats:
    """One model in memory, and one reply at a time. `trains`: whether a run is being trained, which needs the GPU."""

    def __init__(self, trains: Callable[[], bool]) -> None:
        self._lock = Lock()
        self._trains = trains
        self._loaded: tuple[Path, int] | None = None
        self._trained: Any = None

    def reply(self, folder: Path, message: Message) -> str:
        from vigneron.training.out_of_memory import is_out_of_memory

        with self._lock:
            try:
                return self._reply(folder, message)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._loaded = self._trained = None
                raise UserError("out of memory: ask for fewer new tokens, or chat with a smaller model") from error

    def _reply(self, folder: Path, message: Message) -> str:
        trained = self._of(folder, message.step)
        sample = trained.sample if message.step else trained.sample_before
        sampling = {"temperature": message.temperature, "max_new_tokens": message.max_new_tokens}
        (reply,) = sample([self._prompt(message)], seed=len(message.talk), **sampling)
        return str(reply)

    def _of(self, folder: Path, step: int) -> Any:
        """The model before training is part of every checkpoint's run."""
        from vigneron.api import load_run  # imports torch

        same = self._loaded is not None and self._loaded[0] == folder and step in (0, self._loaded[1])
        if not same:
            self._loaded = self._trained = None  # its memory is needed
            trained = load_run(folder, step=step or None, device=chat_device(self._trains()))
            if trained.config.method.trains == "scorer":
                raise UserError("this run trained a reward model, which cannot generate text")
            self._loaded, self._trained = (folder, trained.step), trained
        return self._trained

    def _prompt(self, message: Message) -> Any:
        """Of a run whose prompts are texts, the last message alone: it does not converse."""
        from vigneron.run_data.stored import first_rows
        from vigneron.run_data.typed_prompt import typed_prompt, typed_template
        from vigneron.run_store.folder import RunFolder

        config = self._trained.config
        (row,) = first_rows(RunFolder(self._trained.folder).data(config), ("train", "held_out"), 1)
        template = typed_template(config)
        if isinstance(row["prompt"], str):
            return typed_prompt(message.talk[-1], template, conversational=False)
        first, *rest = message.talk
        roles = ("assistant", "user")
        later = [{"role": roles[place % 2], "content": text} for place, text in enumerate(rest)]
        return [*typed_prompt(first, template, conversational=True), *later]
