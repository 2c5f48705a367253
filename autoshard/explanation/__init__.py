"""Explains a plan to people: one description of it, rendered as text, Markdown, JSON or a timeline."""
