"""A plan in one line, for a chat.

autoshard explain plan.json --format one_line
"""

from autoshard.units import format_seconds


def one_line(description):
    share = description.memory_bytes / description.memory_capacity_bytes
    return f"{description.model}: {description.layout}, {format_seconds(description.step_time_s)} a step, {share:.0%}"
