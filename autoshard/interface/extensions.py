"""The list of what other packages add to autoshard."""

from __future__ import annotations

from autoshard.plugins.listing import Listed, listed


def installed_plugins() -> tuple[Listed, ...]:
    """The installed plug-ins, each loaded: group, name, package, target ('module:name'), and the problem with it, a
    sentence, or None.

    >>> import autoshard
    >>> all(plugin.problem is None for plugin in autoshard.installed_plugins())
    True
    """
    from autoshard.bench.predictors import PREDICTORS
    from autoshard.explanation.renderers import RENDERERS, STANDARD
    from autoshard.models.families import FAMILIES, check_modules
    from autoshard.planner.cost_models import COST_MODELS
    from autoshard.planner.searchers import SEARCHERS
    from autoshard.plans.search_result import EXACT, OURS
    from autoshard.schedules import SCHEDULES
    from autoshard.spec.hardware_file import HARDWARE, check_files

    tables = {one.group: one for one in (FAMILIES, HARDWARE, SCHEDULES, SEARCHERS, COST_MODELS, RENDERERS, PREDICTORS)}
    taken = {
        "searchers": (EXACT,),
        "cost_models": (OURS,),
        "renderers": STANDARD,
    }
    return listed(tables, taken, {"hardware": check_files, "models": check_modules})
