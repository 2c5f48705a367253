"""Instances that nobody sells: each is a JSON file in this folder, known by the file's name."""

from pathlib import Path

FOLDER = Path(__file__).parent
