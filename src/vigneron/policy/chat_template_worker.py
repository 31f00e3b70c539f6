"""The process in which chat templates are rendered, with limits of its own. Run as a script: it imports no Vigneron.

A line of JSON in, a line of JSON out: `template`, `messages` and `values`, then `text` or `error`. What takes too long
ends the process; what takes too much memory is an error.
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
            most = int(file.read().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # nothing is written to any file
    say({"ready": True})
    for line in sys.stdin:
        given = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of CPU, so that a busy machine refuses nothing
        said: dict[str, Any]
        try:
            texts: Any = render_jinja_template([given["messages"]], chat_template=given["template"], **given["values"])
            text = texts[0][0]
            said = {"text": text} if len(text) <= longest else {"error": f"it writes more than {longest} characters"}
        except MemoryError:
            said = {"error": "it takes too much memory"}
        except Exception as error:  # the edge to somebody's template: it can fail in any way
            said = {"error": str(error)[:2000] or type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        say(said)


def say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
