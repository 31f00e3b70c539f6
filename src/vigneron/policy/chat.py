"""Conversations as token ids: turns are delimited by tokens, never by strings (`rlmt-grape` §1).

Uses the model's chat template, or two added tokens with a template of ours (`chat: minted`). Either way text that looks
like a delimiter, such as `<|im_start|>` in a user's question, is ordinary text and cannot begin a turn.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from vigneron.errors import UserError, first_line
from vigneron.files import parse_json
from vigneron.policy.assistant_spans import (
    SENTINELS,
    AssistantSpans,
    HistoryDiffers,
    after_answer,
    any_of,
    assistant_spans,
    turn_format,
)
from vigneron.policy.chat_template import TemplateError, render
from vigneron.policy.message_forms import as_parts, call_names, message_text, needs_parts, writable
from vigneron.policy.token_boundaries import ids_with_cuts, sections_with_cuts

USER, MODEL = "<|vigneron_user|>", "<|vigneron_model|>"
"""Text form of the added tokens; the same strings in a message have no special meaning."""

# A system message has no token: it begins the first user turn.
TEMPLATE = f"""\
{{%- set system = messages and messages[0]['role'] == 'system' -%}}
{{%- set turns = messages[1:] if system else messages -%}}
{{%- if system and (not turns or turns[0]['role'] != 'user') -%}}
{{{{- raise_exception('a system message must be the first, followed by a user message') -}}}}
{{%- endif -%}}
{{%- for turn in turns -%}}
{{%- if turn['role'] == 'user' -%}}
{{{{- '{USER}' + (messages[0]['content'] + '\\n\\n' if system and loop.first else '') + turn['content'] -}}}}
{{%- elif turn['role'] == 'assistant' -%}}
{{{{- '{MODEL}' + turn['content'] + eos_token -}}}}
{{%- else -%}}
{{{{- raise_exception('unknown role ' + turn['role'] + ': expected system, user or assistant') -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{- '{MODEL}' -}}}}
{{%- endif -%}}
"""

Message = Mapping[str, Any]


def add_chat_tokens(model: Any, tokenizer: Any) -> None:
    """Add two tokens for user and model turns, and a chat template that uses them.

    A new token's embedding (and its row of an untied head) starts as the mean of the existing ones and is trained like
    any other. A model that already has the tokens, such as a checkpoint, keeps its embeddings.
    """
    known = len(tokenizer)
    mint(tokenizer)
    new = [i for i in tokenizer.convert_tokens_to_ids([USER, MODEL]) if i >= known]
    if not new:
        return
    if max(new) >= model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(max(new) + 1, mean_resizing=False)
    head = model.get_output_embeddings()
    rows = [model.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)]
    import torch  # reading data imports this module, and does not need torch

    with torch.no_grad():
        for weight in {id(each): each for each in rows if each is not None}.values():
            weight[new] = weight[:known].double().mean(0).to(weight.dtype)


def mint(tokenizer: Any) -> None:
    """The tokenizer's part of `add_chat_tokens`."""
    from tokenizers import AddedToken

    if tokenizer.eos_token is None:
        raise UserError("model.chat: minted needs a tokenizer with an end-of-text token; this one has none")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in (USER, MODEL)])
    # If the tokenizer puts BOS before every text, the template does too.
    begins = tokenizer.bos_token_id is not None and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    tokenizer.chat_template = ("{{- bos_token -}}\n" if begins else "") + TEMPLATE


def set_template_defaults(tokenizer: Any, given: Mapping[str, Any]) -> None:
    """Give arguments of the chat template a default. They are saved with it."""
    if not given:
        return
    if not isinstance(getattr(tokenizer, "chat_template", None), str):
        raise UserError("model.chat_template_kwargs has no effect: the model has no chat template: remove it")
    template = tokenizer.chat_template
    for name in given:
        if not re.search(rf"\b{name}\b", template):
            raise UserError(f"model.chat_template_kwargs: the model's chat template does not use '{name}': remove it")
    literals = {name: "none" if v is None else json.dumps(v, ensure_ascii=False) for name, v in given.items()}
    defaults = [f"{{%- set {name} = {name} if {name} is defined else {text} %}}" for name, text in literals.items()]
    # The line break belongs to the last block, so that the template's own beginning stays as it is.
    tokenizer.chat_template = "".join(defaults) + "\n" + template


class UnwritableReply(UserError):
    """A reply that the chat template refuses; the text says why, and follows "the environment" or "it"."""

    def __init__(self, roles: Iterable[str], why: str) -> None:
        named = ", ".join(map(repr, sorted(roles)))
        super().__init__(f"gave a message that the model's chat template cannot write, with the role {named}: {why}")


@dataclass(frozen=True)
class Conversation:
    """Messages in which text that looks like a delimiter is replaced by marks until it is tokenized."""

    tokenizer: Any
    messages: Sequence[Message]
    tools: Any = None
    delimiters: tuple[str, ...] = ()
    mark: str = ""
    """A character that does not occur in the messages; empty if nothing had to be replaced."""

    @classmethod
    def of(cls, tokenizer: Any, messages: Sequence[Message], tools: Any = None) -> "Conversation":
        if not getattr(tokenizer, "chat_template", None):
            raise UserError("it is a conversation, but the model has no chat template: set `model.chat: minted`")
        tools = _tools(tools)
        if tools and "tools" not in str(tokenizer.chat_template):
            raise UserError("the model's chat template does not write `tools`: remove the column")
        if any(not isinstance(message.get("content"), str) or message.get("tool_calls") for message in messages):
            messages = [dict(message) for message in writable(tokenizer, messages)]
        special, named = _delimiters(tokenizer)
        # An assistant message may contain added tokens that are not special, such as <think>.
        of_role = [special if message.get("role") == "assistant" else (*special, *named) for message in messages]
        contents = [list(_texts(message)) for message in messages]
        patterns = [any_of(own) for own in of_role]
        if not any(own.search(text) for texts, own in zip(contents, patterns, strict=True) for text in texts):
            return cls(tokenizer, messages, tools)
        everything = "".join([str(tokenizer.chat_template), *(text for texts in contents for text in texts)])
        mark = next(character for character in map(chr, range(0xF0000, 0xFFFFE)) if character not in everything)
        delimiters = (*special, *named)
        marked = [_marked(m, delimiters, own, mark) for m, own in zip(messages, patterns, strict=True)]
        return cls(tokenizer, marked, tools, delimiters, mark)

    def before(self, turn: int) -> str:
        """The template's text up to the start of the answer at `turn`: the prompt that the model completes. An
        assistant's message at its end is the beginning of the answer."""
        if (
            turn
            and self.messages[turn - 1].get("role") == "assistant"
            and not self.messages[turn - 1].get("tool_calls")
        ):
            return self.before(turn - 1) + self.text(turn - 1)
        messages = self.messages[:turn]
        try:
            (text,) = render(self.tokenizer, [(messages, True)], self.tools)
            if not self._writes(messages, text) and needs_parts(self.tokenizer):
                (text,) = render(self.tokenizer, [(as_parts(messages), True)], self.tools)
        except TemplateError as error:
            if needs_parts(self.tokenizer) and as_parts(messages) != messages:
                return replace(self, messages=as_parts(messages)).before(turn)
            raise UserError(f"the model's chat template fails: {first_line(error)}") from error
        self._check_calls(messages, text)
        return text

    def after(self, turn: int, closing: str = "") -> tuple[str, bool]:
        """The template's text from the end of the answer at `turn` to the beginning of the next one: a reply. And
        whether the answer ends with calls that the special token `closing` closes."""
        messages = as_parts(self.messages) if needs_parts(self.tokenizer) else self.messages
        try:
            text, closed = after_answer(
                self.tokenizer, messages, turn, *_delimiters(self.tokenizer), self.tools, closing
            )
        except TemplateError as error:
            roles = {str(message.get("role")) for message in messages[turn + 1 :]}
            raise UnwritableReply(roles, first_line(error)) from error
        except HistoryDiffers:
            raise UserError(
                "the model's chat template leaves an earlier answer out: set `model.chat: minted`"
            ) from None
        if not all(_is_in(message_text(message).strip(), text) for message in self.messages[turn + 1 :]):
            raise UserError("the model's chat template leaves a reply out: set `model.chat: minted`")
        return text, closed

    def assistant_spans(self, turns: Sequence[int]) -> AssistantSpans | None:
        """The template's text for all messages, of which the last is an answer, and where the answers at `turns` are.

        None if it writes a single answer differently from what follows its generation prompt.
        """
        special, named = _delimiters(self.tokenizer)
        messages = as_parts(self.messages) if needs_parts(self.tokenizer) else self.messages
        try:
            answers = assistant_spans(self.tokenizer, messages, turns, special, named, self.tools)
            self._check_calls(messages, answers.text)
            return answers
        except TemplateError as error:
            raise UserError(f"the model's chat template fails: {first_line(error)}") from error
        except HistoryDiffers:
            if len(turns) == 1 and not messages[turns[0]].get("tool_calls"):
                return None
            self._check_calls(messages, render(self.tokenizer, [(messages, False)], self.tools)[0])
            raise UserError(
                "the model's chat template writes earlier answers differently from what follows its generation prompt, "
                "so they cannot all be trained in one row: set `model.chat: minted`, or give `prompt` and `completion`"
            ) from None

    def _check_calls(self, messages: Sequence[Message], text: str) -> None:
        """Raise if a tool call is not in the text: some templates leave it out next to a content."""
        for turn, message in enumerate(messages, start=1):
            if any(name not in text for name in call_names(message)):
                raise UserError(f"the model's chat template does not write the tool calls of turn {turn}: remove them")

    def _writes(self, messages: Sequence[Message], text: str) -> bool:
        """Whether the last user message is in the text; most templates trim it."""
        last = next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
        return not isinstance(last, str) or last.strip() in text

    def text(self, turn: int) -> str:
        return message_text(self.messages[turn])

    def special_text(self) -> str | None:
        """The first special token of the template whose text a message contains: perhaps the template was applied
        before."""
        if not self.mark:
            return None
        template, (special, _) = str(self.tokenizer.chat_template), _delimiters(self.tokenizer)
        tokens = (
            self.delimiters[int(number)]
            for message in self.messages
            for text in _texts(message)
            for number in re.findall(f"{self.mark}(\\d+){self.mark}", text)
        )
        return next((token for token in tokens if token in special and token in template), None)

    def ids(self, text: str) -> list[int]:
        """Ids of a text from `before`, `assistant_spans` or `text`. Only the template's delimiters are special."""
        return list(self.encode([text])[0])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """`ids` of several texts."""
        if not texts:
            return []
        if not self.mark:
            return [list(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
        backend, meant = _reader(self.tokenizer, self.delimiters, self.mark)
        pattern = re.compile(f"{self.mark}(\\d+){self.mark}|{any_of(self.delimiters).pattern}")

        def replacement(match: re.Match[str]) -> str:
            if match[1] is not None:
                return self.delimiters[int(match[1])]
            return _alias(self.delimiters.index(match[0]), self.mark)

        escaped = [pattern.sub(replacement, text) for text in texts]
        return [[meant.get(i, i) for i in each.ids] for each in backend.encode_batch(escaped, add_special_tokens=False)]

    def cut_ids(self, text: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
        """`ids` of a text, and for each cut the number of tokens before it."""
        if self.mark:
            return ids_with_cuts(self.encode, text, cuts)
        return sections_with_cuts(self.tokenizer, self.encode, text, cuts)


def _is_in(content: str, text: str) -> bool:
    """Whether a template's text has the content, as it is or as JSON: Llama writes results of tools so."""
    return content in text or any(json.dumps(content, ensure_ascii=ascii)[1:-1] in text for ascii in (False, True))


def turn_end_ids(tokenizer: Any) -> list[int]:
    """The special tokens that the template writes after an answer; the last of them ends the turn."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    ending = turn_format(tokenizer, *_delimiters(tokenizer)).ending
    return list(_ending_ids(tokenizer, len(tokenizer), ending)) if ending else []


def generation_prompts(tokenizer: Any, tools: Any = None) -> dict[str, str]:
    """What the template writes between a message and the next answer, for a user's message and for a tool's result.
    Empty where it refuses the conversation."""
    mark = SENTINELS[0]
    asked: list[Message] = [{"role": "user", "content": mark}]
    call = {"type": "function", "id": "call00001", "function": {"name": "tool", "arguments": {}}}
    result = {"role": "tool", "name": "tool", "tool_call_id": "call00001", "content": mark}
    called: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        result,
    ]
    prompts = {}
    for role, messages in (("user", asked), ("tool", called)):
        with suppress(UserError):
            prompts[role] = Conversation.of(tokenizer, messages, tools).before(len(messages)).rpartition(mark)[2]
    return prompts


@lru_cache(maxsize=16)
def _ending_ids(tokenizer: Any, count: int, ending: str) -> tuple[int, ...]:
    """Once for a tokenizer of `count` tokens: it is asked for with every reply of a conversation."""
    return tuple(tokenizer(ending, add_special_tokens=False)["input_ids"])


def stop_at_turn_end(policy: Any, prompts: Iterable[Any]) -> None:
    """Let the token with which the template ends an answer end completions, if a prompt is a conversation.

    A base model's end tokens may lack it (Qwen2.5: `<|im_end|>`). It is saved with the model's generation config.
    """
    if all(isinstance(prompt, str) for prompt in prompts):
        return
    stop_at(policy, turn_end_ids(policy.tokenizer)[-1:])


def stop_at(policy: Any, ids: Iterable[int]) -> None:
    """Let these tokens end completions too. They are saved with the model's generation config."""
    new = set(ids) - policy.eos_ids
    if new:
        policy.eos_ids = policy.eos_ids | new
        generation = getattr(policy.causal, "generation_config", None)
        if generation is not None:
            generation.eos_token_id = sorted(policy.eos_ids)


def _tools(given: Any) -> list[Any] | None:
    """The tools of a conversation: a list of objects, or its JSON text, as many datasets have it."""
    try:
        tools = parse_json(given) if isinstance(given, str) and given.strip() else given
    except ValueError:
        tools = given
    if tools in (None, "", []):
        return None
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        return tools
    raise UserError("`tools` must be a list of objects, or its JSON text: rename the column if it means something else")


def _delimiters(tokenizer: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Special tokens, and added tokens that are not special but occur in the template."""
    return _added_texts(tokenizer, len(tokenizer), str(tokenizer.chat_template))


@lru_cache(maxsize=16)
def _added_texts(tokenizer: Any, count: int, template: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    added = [(str(token.content), bool(token.special)) for token in tokenizer.added_tokens_decoder.values()]
    special = tuple(text for text, is_special in added if is_special)
    return special, tuple(text for text, is_special in added if not is_special and text.strip() and text in template)


def _texts(value: Any) -> Sequence[str]:
    """Every text in a message, with its role and the keys of arguments: they can be forged too."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in inner for text in _texts(part)]


def _marked(value: Any, delimiters: tuple[str, ...], pattern: re.Pattern[str], mark: str) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda match: f"{mark}{delimiters.index(match[0])}{mark}", value)
    if isinstance(value, dict):
        return {
            _marked(key, delimiters, pattern, mark): _marked(part, delimiters, pattern, mark)
            for key, part in value.items()
        }
    return [_marked(part, delimiters, pattern, mark) for part in value] if isinstance(value, list) else value


def _alias(number: int, mark: str) -> str:
    return f"{mark}#{number}{mark}"


@lru_cache(maxsize=4)
def _reader(tokenizer: Any, delimiters: tuple[str, ...], mark: str) -> tuple[Any, dict[int, int]]:
    """A copy of the tokenizer that reads delimiters as text and their aliases as delimiters, and the ids of aliases."""
    from tokenizers import AddedToken, Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UserError("a message contains the text of a special token: only fast tokenizers can escape it")
    copy: Any = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    added = {str(token.content): token for token in tokenizer.added_tokens_decoder.values()}
    copy.add_special_tokens(list(delimiters))
    copy.encode_special_tokens = True
    aliases = [
        AddedToken(_alias(n, mark), lstrip=added[d].lstrip, rstrip=added[d].rstrip, normalized=False, special=False)
        for n, d in enumerate(delimiters)
    ]
    copy.add_tokens(aliases)
    ids = tokenizer.convert_tokens_to_ids(list(delimiters))
    return copy, {copy.token_to_id(alias.content): i for alias, i in zip(aliases, ids, strict=True)}
