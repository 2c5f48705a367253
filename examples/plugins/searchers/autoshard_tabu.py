"""Tabu search: goes to the best neighbour that it has not been at, even where that is worse.

    autoshard plan --model llama3-70b --nodes 16 --search tabu --evaluations 500

A searcher is a function of a Space and a random.Random. It calls `space.price(layout)`, which counts, until that raises
BudgetSpent; the best layout that was priced is then the plan. It may also return a layout earlier.
"""

STARTS = 20
"""Random layouts, of which the best is where it begins."""


def tabu(space, rng):
    here = min((space.random(rng) for _ in range(STARTS)), key=lambda one: space.price(one).cost)
    been = {here}
    while True:
        others = [one for one in space.neighbours(here) if one not in been] or [space.random(rng)]
        here = min(others, key=lambda one: space.price(one).cost)
        been.add(here)
