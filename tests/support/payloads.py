"""Texts that take over a page that shows them as markup, a run that has them everywhere, and a watch over pages."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.recipe import check_config
from vigneron.run_store.curves import CurveStore
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.samples import Kind, Sample, SampleStore
from vigneron.run_store.token_values import TokenValues

HARM = "top.owned=1"
EVIL = "http://evil.invalid"
SCRIPT = f"<script>{HARM}</script>"
IMAGE = f"<img src=x onerror={HARM}>"
BODY = "<p>TEXT</p>"


@dataclass(frozen=True)
class Payload:
    """`sink`: a page that shows the text (for TEXT) without escaping it; None where that does no harm."""

    text: str
    sink: str | None = BODY


PAYLOADS = (
    Payload(SCRIPT),
    Payload(f"<ScRiPt >{HARM}</sCrIpT >"),
    Payload(f"<script src=data:text/javascript,{HARM}></script>"),
    Payload(IMAGE),
    Payload(f"<svg onload={HARM}>"),
    Payload(f"<svg><script>{HARM}</script></svg>"),
    Payload(f"<svg><animate onbegin={HARM} attributeName=x dur=1s>"),
    Payload(f"<math><mi>{IMAGE}</mi></math>"),
    Payload(f"<details open ontoggle={HARM}>"),
    Payload(f"<input autofocus onfocus={HARM}>"),
    Payload(f'<iframe srcdoc="{SCRIPT}"></iframe>'),
    Payload(f"<iframe src=javascript:{HARM}></iframe>"),
    Payload(f"<link rel=stylesheet href={EVIL}/a.css>"),
    Payload(f"<style>@import url({EVIL}/b.css);</style>"),
    Payload(f"<meta http-equiv=refresh content=0;url={EVIL}/c>"),
    Payload(f"<base href={EVIL}/><img src=d.png>"),
    Payload(f"</script>{SCRIPT}", '<script type="application/json">{"a": "TEXT"}</script>'),
    Payload(f'"}};{HARM};//', '<script>var data = {"a": "TEXT"}</script>'),
    Payload(f"</textarea>{SCRIPT}", "<textarea>TEXT</textarea>"),
    Payload(f"</title>{SCRIPT}", "<title>TEXT</title>"),
    Payload(f"</style>{SCRIPT}", "<style>TEXT</style>"),
    Payload(f"-->{SCRIPT}", "<!-- TEXT -->"),
    Payload(f'">{IMAGE}', '<input value="TEXT">'),
    Payload(f"'>{IMAGE}", "<input value='TEXT'>"),
    Payload(f'" autofocus onfocus="{HARM}', '<input value="TEXT">'),
    Payload(f"x onerror={HARM}", "<img src=TEXT>"),
    Payload(f"javascript:{HARM}", '<a id="go" href="TEXT">go</a>'),
    Payload(f"java\tscript:{HARM}", '<a id="go" href="TEXT">go</a>'),
    Payload(f"url({EVIL}/e.png)", '<p style="background: TEXT">x</p>'),
    Payload(f"data:text/html,{SCRIPT}", None),
    Payload(f"[x](javascript:{HARM}) ![x]({EVIL}/f.png)", None),
    Payload(f"{{{{constructor.constructor('{HARM}')()}}}} ${{{HARM}}} %{{y}} $x^2$", None),
    Payload(f"&lt;img src=x onerror={HARM}&gt;&#60;b&#62;", None),
    Payload("\u202e\u2066gnp.exe\u2069\u200b\ufeff\u200f", None),
    Payload("<b><svg><math>" * 100, None),
)
TEXTS = tuple(payload.text for payload in PAYLOADS)
ALL = " ¦ ".join(TEXTS)
NAMES = tuple(f"n{number} {text.replace('/', '').replace(chr(9), '')}"[:150] for number, text in enumerate(TEXTS))
"""For the name of a folder, and for a part of a metric's name."""


def raw_config(**keys: Any) -> dict[str, Any]:
    return {
        "recipe": ALL,
        "about": ALL,
        "method": {"name": "grpo"},
        "model": {"name": ALL},
        "data": {"train": ALL},
        "reward": {
            "kind": "rubric",
            "file": ALL,
            "judge": {"kind": "endpoint", "url": "http://127.0.0.1:9/v1", "model": ALL},
        },
        "steps": 2,
        "group_size": 2,
        **keys,
    }


def hostile_run(folder: Path, **keys: Any) -> Path:
    """A run whose texts are payloads. Samples and items have the number of theirs."""
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    config = check_config(raw_config(**keys), "hostile")
    assert isinstance(config, Config)
    run.write_config(config)
    (folder / "status.json").write_text(json.dumps({"state": "failed", "error": f"error: {ALL}"}))
    for text in TEXTS:
        keep_notice(run, Notice(1, f"notice: {text}", "warning"))
    records = [_record(step) for step in range(3)]
    for record in records:
        run.append("metrics.jsonl", record)
    curves = CurveStore(folder)
    curves.add(records)
    curves.close()
    samples = SampleStore(folder)
    kinds: dict[Kind, tuple[int, ...]] = {"train": (1, 2), "eval": (0, 2)}
    samples.add(
        [
            _sample(kind, step, number, text)
            for kind, steps in kinds.items()
            for step in steps
            for number, text in enumerate((*TEXTS, ALL))
        ]
    )
    of = {name: [0.5] * len(TEXTS) for name in ("logprob", "advantage")}
    samples.add_tokens(2, "train", {0: TokenValues([f"token: {text}" for text in TEXTS], [True] * len(TEXTS), of)})
    samples.close()
    return folder


def _record(step: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {"step": step, "reward": step / 2, "eval/reward": step / 2, "entropy": 1.0}
    for text, name in zip(TEXTS, NAMES, strict=True):
        metrics[f"loss/{text}"] = 0.5
        metrics[f"curriculum/level/{name}"] = 0.5
        metrics[f"reward/{name}/reward"] = 0.5
        metrics[f"eval/canary/{name}"] = 0.1
        metrics[f"reward/{NAMES[0]}/{name}/score"] = 0.5
        metrics[f"reward/{NAMES[0]}/{name}/confidence"] = 0.5
    return metrics


def hostile_talk(text: str, said: str = "completion") -> list[dict[str, Any]]:
    """A conversation with the text in every place that is shown."""
    call = {"type": "function", "function": {"name": f"call: {text}", "arguments": f"argument: {text}"}}
    turn = {"role": "assistant", "content": f"{said}: {text}", "reward": 0.5, "log": {f"log: {text}": f"value: {text}"}}
    turn |= {"thinking": f"thinking: {text}", "tool_error": f"fault: {text}", "tool_calls": [call]}
    return [turn, {"role": f"role: {text}", "name": f"tool: {text}", "content": f"result: {text}"}]


TALK = ("thinking", "fault", "call", "argument", "role", "tool", "result")
"""What is shown of it, beside what was said; `NOTES` where nothing is to be decided."""
NOTES = ("log", "cut", "broken")


def _sample(kind: Kind, step: int, number: int, text: str) -> Sample:
    named = NAMES[number] if number < len(NAMES) else "all"
    item = {"score": 0.5, "confidence": 0.5, "description": f"description: {text}"}
    items = {
        named: {**item, "critique": f"critique: {text}", "reasoning": f"reasoning: {text}"},
        f"{named}, failed": {"score": None, "why": f"why: {text}"},
    }
    return Sample(
        step=step,
        kind=kind,
        sample=number,
        prompt=f"prompt: {text}",
        completion=f"completion: {text}",
        answer=f"answer: {text}",
        reward=number / 10,
        advantage=0.0,
        correct=True,
        truncated=False,
        extras={
            "rubric": {"category": named, "version": f"version: {text}", "items": items},
            "principle": f"principle: {text}",
            "drawn_under": f"drawn: {text}",
            "origin": "fresh",
            f"column: {text}": f"value: {text}",
            "conversation": hostile_talk(text),
            "cut": f"cut: {text}",
            "environment_error": f"broken: {text}",
        },
    )


WATCH = """
globalThis.violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective, event.blockedURI));
"""
STRANGE = """() => [
  ...[...document.querySelectorAll("*")].filter((one) => one.getAttributeNames().some((name) => name.startsWith("on"))),
  ...document.querySelectorAll("body script, body link, body style:not(svg style), img, math, form, base"),
  ...document.querySelectorAll("iframe, object, embed"),
  ...document.querySelectorAll("meta[http-equiv=refresh], [srcdoc]"),
  ...[...document.querySelectorAll("a[href]")].filter((one) => one.origin !== location.origin),
  ...[...document.querySelectorAll("[style]")].filter((one) => /evil/.test(one.getAttribute("style"))),
].map((one) => one.outerHTML.slice(0, 200))"""


def watched(context: Any, origin: str) -> list[str]:
    """Requests to anywhere but an origin are recorded here, and stopped."""
    foreign: list[str] = []

    def route(route: Any) -> None:
        if route.request.url.startswith(origin):
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    context.route("**/*", route)
    context.add_init_script(WATCH)
    return foreign


def check_harmless(page: Any) -> None:
    """No script of a payload ran, nothing was blocked, and no element or attribute was made of a text."""
    assert page.evaluate("globalThis.owned") is None
    assert page.evaluate("violations") == []
    assert page.evaluate(STRANGE) == []
