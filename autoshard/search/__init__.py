"""Finds the fastest layout that fits: candidates, rules, ranking. The cost model is asked, never known."""

from autoshard.search.result import Candidate, Pins, Rejection, SearchResult
from autoshard.search.rules import check_strategy
from autoshard.search.search import search

__all__ = ["Candidate", "Pins", "Rejection", "SearchResult", "check_strategy", "search"]
