"""Which solutions to label next: the most convincing wrong ones teach a process model most (PRM800K)."""

from collections.abc import Sequence

WRONG_SHARE = 0.8


def most_convincing_first(
    scores: Sequence[float], right: Sequence[bool | None], *, wrong_share: float = WRONG_SHARE
) -> list[int]:
    """Solutions in the order of labelling: of any number of first ones, `wrong_share` are the wrong answers that the
    current process model scores highest; the others are the highest that remain, right or wrong.

    A solution of which it is unknown whether it is right counts as right. Equal scores keep their order.
    """
    by_score = sorted(range(len(scores)), key=lambda solution: (-scores[solution], solution))
    order: list[int] = []
    taken: set[int] = set()
    wrong = (solution for solution in by_score if right[solution] is False and solution not in taken)
    rest = (solution for solution in by_score if solution not in taken)
    chosen_wrong = 0
    while len(order) < len(scores):
        convincing = next(wrong, None) if chosen_wrong < wrong_share * (len(order) + 1) else None
        chosen_wrong += convincing is not None
        order.append(next(rest) if convincing is None else convincing)
        taken.add(order[-1])
    return order
