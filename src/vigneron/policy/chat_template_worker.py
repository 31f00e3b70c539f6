"""The process that renders chat templates within limits. Run as a script; does not import Vigneron.

Reads lines of JSON with `template`, `messages` and `values`; answers each with a line of JSON with `text` or `error`.
A template that takes too long ends the process; one that takes too much memory is an error.
"""

import json
import os
import resource
import signal
import sys
from typing import Any


def main(seconds: float, memory: int, longest: int) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written
    respond({"ready": True})
    for line in sys.stdin:
        given = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time, so that a busy machine makes no difference
        response: dict[str, Any]
        try:
            texts: Any = render_jinja_template([given["messages"]], chat_template=given["template"], **given["values"])
            text = texts[0][0]
            too_long = {"error": f"it writes more than {longest} characters"}
            response = {"text": text} if len(text) <= longest else too_long
        except MemoryError:
            response = {"error": "it takes too much memory"}
        except Exception as error:  # an external template can fail in any way
            response = {"error": str(error)[:2000] or type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        respond(response)


def respond(response: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(response) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
