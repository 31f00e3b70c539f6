"""Turns of gpt-oss, in OpenAI's harmony format: several messages in channels, the last of which may be a call.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
    <|constrain|>json<|message|>{…}<|call|>

The prompt ends in `<|start|>assistant`. The recipient may also stand before the channel, as the template writes it.
"""

import re

from vigneron.environments.call_syntax import (
    BadCall,
    Call,
    ParsedTurn,
    Reader,
    checked_name,
    checked_object,
    quoted,
)

END = re.compile(r"<\|(?:end|call|return)\|>")
CHANNELS = ("analysis", "commentary", "final")


def harmony(raw: str) -> ParsedTurn:
    if "<|message|>" not in raw:
        if "<|channel|>" in raw or "to=functions." in raw:
            raise BadCall("a message without <|message|>")
        return ParsedTurn(raw)
    reader = Reader(raw)
    texts: dict[str, list[str]] = {channel: [] for channel in CHANNELS}
    while True:
        channel, recipient = _header(reader.until("<|message|>", "a message's header"))
        if recipient is not None:
            return _with_call(reader, recipient, texts)
        end = END.search(raw, reader.at)  # none: the turn's end token was removed
        texts[channel].append(raw[reader.at : end.start() if end else len(raw)])
        reader.at = end.end() if end else len(raw)
        if reader.at_end():
            return ParsedTurn("\n\n".join([*texts["commentary"], *texts["final"]]), thinking=_thinking(texts))
        reader.expect("<|start|>assistant", "a message")


def _header(header: str) -> tuple[str, str | None]:
    """The channel and the recipient of a message."""
    before, mark, after = header.partition("<|channel|>")
    if not mark:
        raise BadCall(f"a message without a channel: {quoted(header)}")
    words = [*before.split(), *after.replace("<|constrain|>", " ").split()]
    named = [word for word in words if not word.startswith("to=")]
    recipients = [word.removeprefix("to=") for word in words if word.startswith("to=")]
    if before.strip() and not before.strip().startswith("to="):
        raise BadCall(f"a message without a channel: {quoted(header)}")
    if not named or named[0] not in CHANNELS:
        raise BadCall(f"the channel should be one of {', '.join(CHANNELS)}, not {quoted(after)}")
    if len(recipients) > 1 or named[1:] not in ([], ["json"]) or (named[1:] and not recipients):
        raise BadCall(f"a message's header cannot be read: {quoted(header)}")
    if recipients and named[0] == "final":
        raise BadCall("a call should be in the channel commentary, not final")
    return named[0], recipients[0] if recipients else None


def _with_call(reader: Reader, recipient: str, texts: dict[str, list[str]]) -> ParsedTurn:
    name = checked_name(recipient.removeprefix("functions."))
    if not recipient.startswith("functions."):
        raise BadCall(f"a call should be to=functions.NAME, not to={quoted(recipient)}")
    arguments = checked_object(reader.json(f"the arguments of '{name}'"), name)
    reader.skip_space()
    reader.take("<|call|>")
    reader.only_space_left("the call, which ends a turn")
    # The template takes one text beside a call, and writes it as reasoning.
    thinking = "\n\n".join([*texts["analysis"], *texts["commentary"], *texts["final"]])
    return ParsedTurn("", (Call(name, arguments),), thinking or None)


def _thinking(texts: dict[str, list[str]]) -> str | None:
    return "\n\n".join(texts["analysis"]) or None
