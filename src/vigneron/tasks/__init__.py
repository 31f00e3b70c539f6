"""PGSRM's tasks: inputs, the child's prompt, the parent's instruction and its recorded answers."""

from vigneron.tasks.task import TASKS, Task, load_task

__all__ = ["TASKS", "Task", "load_task"]
