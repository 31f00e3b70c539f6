"""How the tests are run: their order, and what they share."""

import gc
import signal

import pytest
from hypothesis import settings

# A shell that starts us in its background has us and our children ignore Ctrl-C, and `nohup` SIGHUP; what they do is
# tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Property tests draw the same examples in every run; with `--hypothesis-profile thorough`, others and more.
settings.register_profile("vigneron", derandomize=True, deadline=None, database=None, max_examples=30)
settings.register_profile("thorough", deadline=None, database=None, max_examples=1000)
settings.load_profile("vigneron")

# Files that take long come first: a process that has one of them is not the last to finish.
LONGEST = (
    "test_zoo",
    "test_demo",
    "test_fuzz_files",
    "test_ranked_runs",
    "test_critic_runs",
    "test_kills",
    "test_ranked_methods",
    "test_readme",
    "test_guides",
    "test_resume",
    "test_transformers_serve",
    "test_view_browser",
    "test_grape_server",
    "test_preferences_run",
    "test_vllm",
    "test_sandbox",
    "test_sandbox_limits",
    "test_grape_run",
    "test_judge_failures",
    "test_stop_signals",
    "test_compare",
    "test_ray_pool",
    "test_wheel",
    "test_grpo_run",
    "test_export",
    "test_verbs",
    "test_loop",
)


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands tests out to others runs none, and need not import torch."""
    hands_out = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out:
        gc.disable()  # until all is imported and collected: nothing of that is garbage
        config.pluginmanager.import_plugin("support.fixtures")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
