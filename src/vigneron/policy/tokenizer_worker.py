"""The process in which a tokenizer is tried within limits. Run as a script; does not import Vigneron.

Arguments: the tokenizer.json, seconds of CPU time, and bytes of memory. Exits with 0 if the tokenizer encodes some
texts, or is refused by the library, which loading it will explain; with 3 if it has exceeded the memory. The system
kills it for the CPU time. Another code is an error of this script, on stderr.
"""

import resource
import sys

TEXTS = ["a", "a" * 2000, " " * 2000, "1" * 2000, "Hello, world! " * 200, "é漢\n\t" * 500, "x" * 4000 + "!"]


def main(file: str, seconds: int, memory: int) -> int:
    from tokenizers import Tokenizer

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written
    try:
        tokenizer = Tokenizer.from_file(file)
        for text in TEXTS:
            tokenizer.encode(text)
    except MemoryError:
        return 3
    except Exception:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
