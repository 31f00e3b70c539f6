"""The program inside the sandbox: runs a response's code, then one test. Uses the standard library only.

It reads and writes lines of JSON. In: the code; after that has run, the test and a token. Out: `started`, `ready`, a
value for each check that is evaluated outside, and at the end the token, or `failed` with the reason.
"""

import json
import sys
from typing import Any

MAX_REASON = 300


def main(limits: dict[str, int]) -> None:
    import builtins
    import os
    import types

    _confine(limits)
    lines = os.fdopen(os.dup(0), "rb")
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sys.path[:] = [place for place in sys.path if place]
    run, make, leave, dumps, write = exec, compile, os._exit, json.dumps, os.write
    untouched = dict(vars(builtins))

    def send(*message: Any) -> None:
        text = dumps(message).encode() + b"\n"
        while text:
            text = text[write(channel, text) :]

    send("started")
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    stage = "code"
    try:
        run(make(json.loads(lines.readline())["code"], "<answer>", "exec", 0, True), module.__dict__)
        send("ready")
        stage = "test"
        given = json.loads(lines.readline())
        vars(builtins).update(untouched)
        sys.settrace(None)
        sys.setprofile(None)
        module.__dict__["__builtins__"] = builtins
        module.__dict__[given["check"]] = lambda number, value: send("value", number, plain(value))
        run(make(given["test"], "<test>", "exec", 0, True), module.__dict__)
    except BaseException as error:  # whatever the code raises, `SystemExit` too, is a failure
        try:
            text = str(error)[:MAX_REASON]
        except Exception:  # `__str__` of the code's own exception may fail
            text = ""
        send("failed", stage, type(error).__name__, text)
        leave(1)
    send("done", given["token"])
    leave(0)


def plain(value: Any) -> Any:
    """Plain data as lossless JSON; of any other object only the type's name, so that its own `__eq__` has no effect."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", hex(int.__index__(value))]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, list):
        return ["list", [plain(part) for part in list.__iter__(value)]]
    if isinstance(value, tuple):
        return ["tuple", [plain(part) for part in tuple.__iter__(value)]]
    if isinstance(value, set):
        return ["set", [plain(part) for part in set.__iter__(value)]]
    if isinstance(value, frozenset):
        return ["set", [plain(part) for part in frozenset.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", [[plain(key), plain(part)] for key, part in dict.items(value)]]
    return ["object", type(value).__name__[:60]]


def _confine(limits: dict[str, int]) -> None:
    """Set hard resource limits, which the code cannot raise. Lower limits of the machine stay."""
    import resource

    for name, limit in limits.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue
        _, most = resource.getrlimit(which)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(which, (limit, limit))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
