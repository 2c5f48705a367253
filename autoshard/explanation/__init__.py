"""One description of a plan, many renderers."""
