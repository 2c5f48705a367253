"""Read plain JSON objects strictly: every expected key must be there, and no other. Errors name the place."""

from typing import Any

from autoshard.errors import AutoshardError


class Reader:
    """One JSON object whose keys are taken one by one; `finish` refuses keys that are left over.

    data: the parsed object. path: what an error calls it, such as "plan.json: inputs.cluster".
    Raises AutoshardError where `data` is no object.
    """

    def __init__(self, data: object, path: str) -> None:
        if not isinstance(data, dict):
            raise AutoshardError(f"{path} must be an object with named fields, not {_shown(data)}")
        self.path = path
        self._known: list[str] = []
        self._left: dict[str, Any] = dict(data)

    @property
    def names(self) -> tuple[str, ...]:
        """The keys not taken yet, in the order of the file."""
        return tuple(self._left)

    def any(self, name: str) -> Any:
        """The value under `name`, whatever it is. Raises AutoshardError where the key is missing."""
        self._known.append(name)
        if name not in self._left:
            raise AutoshardError(f"{self.path} lacks {name}")
        return self._left.pop(name)

    def text(self, name: str) -> str:
        """The non-empty string under `name`. Raises AutoshardError for anything else."""
        value = self.any(name)
        if not isinstance(value, str) or not value:
            raise AutoshardError(f"{self.path}.{name} is {_shown(value)}; it must be a text")
        return value

    def child(self, name: str) -> "Reader":
        """A reader of the object under `name`. Raises AutoshardError for anything but an object."""
        return Reader(self.any(name), f"{self.path}.{name}")

    def finish(self) -> None:
        """Raise AutoshardError if keys are left that nobody took: an unknown key is more often a slip than a wish."""
        if self._left:
            unknown = ", ".join(_shown(name) for name in list(self._left)[:5])
            raise AutoshardError(
                f"{self.path} has a field that is not known: {unknown}; known: {', '.join(self._known)}"
            )


def _shown(value: object) -> str:
    """The kind of a value in words, such as "a list"; a short text itself."""
    if isinstance(value, str) and len(value) <= 60:
        return ascii(value)
    names = {
        type(None): "null",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
    }
    return names.get(type(value), "an object")
