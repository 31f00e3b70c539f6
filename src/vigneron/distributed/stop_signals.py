"""The signals that stop a run."""

import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handled_signals() -> list[signal.Signals]:
    """All but a SIGHUP that is ignored, as under `nohup`. `sh` starts a job with SIGINT ignored: it is handled."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
