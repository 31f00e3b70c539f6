"""Programs that a sandbox must survive."""

FAULTS = {
    "fork bomb": """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "thread bomb": """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(9,)).start()
""",
    "infinite loop": "while True: pass",
    "sleeps": "import time; time.sleep(1000)",
    "works in many processes": """
import os, time
for _ in range(5):
    if os.fork() == 0:
        break
end = time.process_time() + 0.4
while time.process_time() < end:
    pass
time.sleep(1000)
""",
    "works in processes one after the other": """
import os, time
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        os._exit(0)
    os.wait()
""",
    "ignores signals": """
import signal
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
    signal.signal(one, signal.SIG_IGN)
while True:
    pass
""",
    "10 GB": "x = bytearray(10**10)",
    "much memory in many processes": """
import os, time
for _ in range(8):
    if os.fork() == 0:
        break
x = bytearray(b"x") * (100 * 2**20)
time.sleep(100)
""",
    "memory that no limit counts": """
import ctypes, os
os.memfd_create("x")
""",
    "fills the disk": """
with open("/tmp/full", "wb") as file:
    while True:
        file.write(b"x" * 2**20)
""",
    "fills the disk with many files": """
n = 0
while True:
    n += 1
    with open(f"/tmp/{n}", "wb") as file:
        file.write(b"x" * 2**22)
""",
    "fills shared memory": """
n = 0
while True:
    n += 1
    with open(f"/dev/shm/{n}", "wb") as file:
        file.write(b"x" * 2**22)
""",
    "kills its parent": """
import os, signal
for pid in (os.getppid(), 1):
    os.kill(pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
""",
    "prints gigabytes": "while True: print('x' * 2**20)",
    "sends gigabytes": """
import os
while True:
    for fd in range(3, 10):
        try:
            os.write(fd, b"x" * 2**20)
        except OSError:
            pass
""",
    "leaves a daemon behind": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
raise ValueError
""",
    "leaves zombies behind": """
import os
for _ in range(20):
    if os.fork() == 0:
        os._exit(0)
raise ValueError
""",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "recurses": """
import sys
sys.setrecursionlimit(10**9)
def f():
    f()
f()
""",
    "opens many files": """
import os
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(100000)]
""",
}
TOO_LONG = "it took more than 0.6 s of CPU time"
REASONS = {
    "fork bomb": TOO_LONG,
    "thread bomb": None,
    "infinite loop": TOO_LONG,
    "sleeps": "it did not end within 1.2 s",
    "works in many processes": TOO_LONG,
    "works in processes one after the other": TOO_LONG,
    "ignores signals": TOO_LONG,
    "10 GB": "MemoryError",
    "much memory in many processes": "its processes took more than",
    "memory that no limit counts": "PermissionError",
    "fills the disk": "File too large",
    "fills the disk with many files": "No space left",
    "fills shared memory": "No space left",
    "kills its parent": "its process ended before the test did",
    "prints gigabytes": TOO_LONG,
    "sends gigabytes": "it sent",
    "leaves a daemon behind": "ValueError",
    "leaves zombies behind": "ValueError",
    "crashes": "its process ended before the test did",
    "recurses": None,
    "opens many files": "Too many open files",
}
"""The expected reason of each; None if several are possible."""
