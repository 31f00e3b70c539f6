"""The process that renders chat templates within limits. Run as a script; does not import Vigneron.

Reads lines of JSON with `template`, `values`, `date` and `renders`, a list of [messages, add_generation_prompt];
answers each with a line of JSON: a list with a `text` or an `error` for each of them. A template that takes too long
ends the process; one that takes too much memory is an error.
"""

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any


def main(seconds: float, memory: int, longest: int) -> None:
    from transformers.utils import chat_template_utils

    render, clock = chat_template_utils.render_jinja_template, Clock()
    vars(chat_template_utils)["datetime"] = clock  # what `strftime_now` reads
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written
    respond([{"text": "ready"}])

    def rendered(given: dict[str, Any], messages: Any, generate: bool) -> dict[str, str]:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time, so that a busy machine makes no difference
        try:
            texts: Any = render(
                [messages], chat_template=given["template"], add_generation_prompt=generate, **given["values"]
            )
            text = texts[0][0]
            return {"text": text} if len(text) <= longest else {"error": f"it writes more than {longest} characters"}
        except MemoryError:
            return {"error": "it takes too much memory"}
        except Exception as error:  # an external template can fail in any way
            return {"error": str(error)[:2000] or type(error).__name__}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    for line in sys.stdin:
        given = json.loads(line)
        clock.date = given["date"]
        respond([rendered(given, messages, generate) for messages, generate in given["renders"]])


class Clock:
    """In place of `datetime` in transformers: a given date, or today's."""

    date: str | None = None

    def now(self) -> datetime:
        return datetime.now() if self.date is None else datetime.fromisoformat(self.date)


def respond(response: list[dict[str, str]]) -> None:
    sys.stdout.write(json.dumps(response) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
