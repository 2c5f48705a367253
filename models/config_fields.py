"""Look-ups in a config.json, and the keys that most families read and write alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import LARGEST, check_choice, check_integer, check_positive, is_count, is_finite, show
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ATTENTION_TYPES, FULL_ATTENTION, MOST_REPEATED, SLIDING_ATTENTION
from autoshard.spec.rope import DYNAMIC, LONGROPE, PROPORTIONAL, ROPE_TYPES, RopeScaling

MROPE = "mrope"
"""The rope_type of Qwen2-VL: positions of images in three directions, of which text has one."""
OLD_LONGROPE = ("su", "yarn")
"""What first configs of Phi-3 call longrope."""
ORIGINAL = "original_max_position_embeddings"
_NO_ROPE: Mapping[str, Any] = {}
_NOTHING: tuple[Any, ...] = (None, 0, 1, [], {})
"""What a key says of something that is not there, or scales nothing; True and False are 1 and 0."""


class _Remembering(dict[str, Any]):
    """A config that remembers which keys were looked up with `get`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


class Config:
    """Look-ups in one config. null counts as absent; a key that is absent and has no default is an error."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._config = _Remembering(config)

    def unread(self) -> frozenset[str]:
        """Keys that nobody has looked up, and whose value is neither null nor nothing, such as 0 or 1.0."""
        return frozenset(
            key for key, value in self._config.items() if key not in self._config.read and value not in _NOTHING
        )

    def fill(self, defaults: Mapping[str, Any]) -> None:
        """Give every absent key its default; null stays."""
        for key, value in defaults.items():
            self._config.setdefault(key, value)

    def gives(self, key: str) -> bool:
        return self._config.get(key) is not None

    def value(self, key: str, default: object = None) -> Any:
        """The value of a key, unchecked: for keys that ModelSpec checks under the same name."""
        value = self._config.get(key)
        if value is not None:
            return value
        if default is None:
            raise AutoshardError(f"{key} is missing from the config of {self.name}")
        return default

    def integer(self, key: str, default: int | None = None, at_most: int = LARGEST, at_least: int = 1) -> int:
        value = self.value(key, default)
        check_integer(self.name, key, value, at_least=at_least, at_most=at_most)
        return int(value)

    def is_null(self, key: str) -> bool:
        """Whether the key is there, with null, where that says another thing than no key."""
        self._config.read.add(key)
        return key in self._config and self._config[key] is None

    def nullable_integer(self, key: str, default: int | None) -> int | None:
        """An integer where null means none, and only an absent key the default."""
        if self.is_null(key) or (default is None and not self.gives(key)):
            return None
        return self.integer(key, default)

    def switch(self, key: str, default: bool) -> Any:
        """True or False, unchecked, where null means False and only an absent key the default."""
        return False if self.is_null(key) else self.value(key, default)

    def words(self, key: str, count: int, known: tuple[str, ...]) -> tuple[str, ...]:
        """A list of `count` words, one for each block."""
        value = self.value(key)
        if not isinstance(value, list) or len(value) != count:
            raise AutoshardError(f"{key}={show(value)} of {self.name} must be a list of {count} words, one a block")
        for word in value:
            check_choice(self.name, key, word, known)
        return tuple(value)

    def inner(self, key: str) -> Config:
        """The object under a key, as a config of its own; without the key an empty one."""
        value = self.value(key, {})
        if not isinstance(value, Mapping):
            raise AutoshardError(f"{key}={show(value)} of {self.name} must be an object")
        return Config(value, self.name)

    def places(self, key: str, count: int, first: int = 0) -> frozenset[int]:
        """A list of blocks of `count`, of which the config calls the first one `first`; here that is 0."""
        places, last = self.value(key), first + count - 1
        blocks = f"of {self.name} must be a list of blocks, {first} to {last}"
        if not isinstance(places, list):
            raise AutoshardError(f"{key}={show(places)} {blocks}")
        if wrong := [one for one in places if type(one) is not int or not first <= one <= last]:
            raise AutoshardError(f"{key} {blocks}; it has {show(wrong[0])}")
        return frozenset(place - first for place in places)

    def of_blocks(self) -> Mapping[int, Any]:
        """per_layer_config, an entry for each of some blocks, by the block's number; without the key it is empty.
        transformers fills these numbers up with zeros to one length, as in '05'."""
        key = "per_layer_config"
        entries = self.value(key, {})
        if not isinstance(entries, Mapping) or not all(map(is_count, entries)):
            raise AutoshardError(f"{key}={show(entries)} of {self.name} must be an object whose keys are blocks")
        found = {int(block): entry for block, entry in entries.items()}
        if len(found) < len(entries):
            raise AutoshardError(f"{key}={show(entries)} of {self.name} names a block twice")
        return found

    def only(self, key: str, known: object) -> None:
        """Raises AutoshardError for another value of a key than the only one that the family's graph stands for, which
        is also what the key means where it is absent."""
        if (value := self.value(key, known)) != known:
            raise AutoshardError(f"{key}={show(value)} of {self.name} is not supported; {known} is")

    def window(self, default: int | None) -> Any:
        """The sliding_window: null means none, and only an absent key the default."""
        return self._config.get("sliding_window", default)

    def optional(self, key: str, default: float | None) -> float | None:
        """A number above 0, or null, which means none; only an absent key the default."""
        if self.is_null(key):
            return None
        return None if default is None and not self.gives(key) else self.positive(key, default or 1.0)

    def positive(self, key: str, default: float) -> float:
        value = self.value(key, default)
        check_positive(self.name, key, value)
        return float(value)

    def rope(self, default: Mapping[str, Any] = _NO_ROPE) -> Mapping[str, Any]:
        """The mapping rope_scaling, or where it is absent or empty rope_parameters, as transformers 5 writes it; the
        default if there is neither. An original_max_position_embeddings beside it goes before the one in it."""
        found = default
        for key in ("rope_parameters", "rope_scaling"):
            rope = self._config.get(key)
            if rope is not None and not (key == "rope_scaling" and rope == {}):
                if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
                    raise AutoshardError(f"{key}={show(rope)} of {self.name} must be null or one object for all layers")
                found = rope
        original = self._config.get(ORIGINAL)
        return found if original is None else {**found, ORIGINAL: original}


def head_dim(config: Config, default: int | None = None) -> int:
    """The head_dim that the config gives, else the family's default, else the hidden size shared out over the heads,
    which is also what null says."""
    if default is None or config.is_null("head_dim"):
        default = None if config.gives("head_dim") else shared_out(config, "hidden_size", "num_attention_heads")
    return config.integer("head_dim", default)


def shared_out(config: Config, size_key: str, heads_key: str) -> int:
    """The hidden size shared out over the heads: the head_dim of families without the key, which may say the same."""
    width = divided(config, size_key, heads_key)
    if config.value("head_dim", width) != width:
        even = f"{size_key} / {heads_key}={width} is"
        raise AutoshardError(f"head_dim={show(config.value('head_dim'))} of {config.name} is not supported; {even}")
    return width


def divided(config: Config, size_key: str, heads_key: str) -> int:
    """The hidden size over the heads, which must divide it."""
    size, heads = config.integer(size_key), config.integer(heads_key, at_most=MOST_REPEATED)
    if size % heads:
        fitting = ", ".join([str(count) for count in range(1, 2 * heads) if size % count == 0][-4:])
        raise AutoshardError(
            f"{heads_key}={heads} must divide {size_key}={size} of {config.name}; near it fit: {fitting}"
        )
    return size // heads


def rope(config: Config, default_theta: float, partial_is_known: bool = False) -> tuple[float, RopeScaling | None]:
    """(rope_theta, how it is stretched); both have moved between versions of transformers."""
    return rope_base(config, default_theta, partial_is_known), stretched(config, config.rope())


def rope_base(config: Config, default_theta: float, partial_is_known: bool = False) -> float:
    """The rope_theta of a config whose rotary positions turn all of each head, or, if partial_is_known, part of it."""
    rope = config.rope()
    theta = rope.get("rope_theta")
    if theta is None:
        theta = config.value("rope_theta", default_theta)
    check_positive(config.name, "rope_theta", theta)
    partial = rope.get("partial_rotary_factor")
    if partial is None:
        partial = config.value("partial_rotary_factor", 1.0)
    if partial != 1 and not partial_is_known:
        raise AutoshardError(f"partial_rotary_factor={show(partial)} of {config.name} is not supported; 1.0 is")
    return float(theta)


def stretched(config: Config, rope: Mapping[str, Any], known: tuple[str, ...] = ROPE_TYPES) -> RopeScaling | None:
    """How rotary frequencies are stretched, by the mapping that says it; None where they are not. known: the rope_types
    that the family has besides default."""
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type in ("default", MROPE):
        return None
    if known == (LONGROPE,) and rope_type in OLD_LONGROPE:
        rope_type = LONGROPE
    if rope_type not in known:
        supported = ", ".join(("default", *known))
        raise AutoshardError(f"rope_type={show(rope_type)} of {config.name} is not supported; supported: {supported}")
    if rope_type == "linear":
        return RopeScaling("linear", as_float(rope.get("factor")))
    if rope_type == "yarn":
        return _yarn(config, rope)
    if rope_type == DYNAMIC:
        positions = config.integer("max_position_embeddings")
        return RopeScaling(DYNAMIC, as_float(rope.get("factor")), original_max_position_embeddings=positions)
    if rope_type == LONGROPE:
        return _longrope(config, rope)
    if rope_type == PROPORTIONAL:
        factor, part = (as_float(rope.get(key, 1.0)) for key in ("factor", "partial_rotary_factor"))
        return RopeScaling(PROPORTIONAL, factor, partial_rotary_factor=part)
    return RopeScaling(
        rope_type,
        factor=as_float(rope.get("factor")),
        low_freq_factor=as_float(rope.get("low_freq_factor")),
        high_freq_factor=as_float(rope.get("high_freq_factor")),
        original_max_position_embeddings=rope.get("original_max_position_embeddings"),
    )


def _longrope(config: Config, rope: Mapping[str, Any]) -> RopeScaling:
    """LongRoPE, with the model's positions for those of the pre-training where these are not said, and their ratio for
    the factor."""
    positions = config.integer("max_position_embeddings")
    original, factor = rope.get(ORIGINAL), rope.get("factor")
    original = positions if original is None else original
    check_integer("rope_scaling", ORIGINAL, original)

    def factors(name: str) -> tuple[float, ...]:
        numbers = rope.get(name)
        if not isinstance(numbers, list):
            raise AutoshardError(f"{name}={show(numbers)} of {config.name} must be a list of numbers")
        return tuple(map(as_float, numbers))

    return RopeScaling(
        LONGROPE,
        factor=as_float(positions / original if factor is None else factor),
        original_max_position_embeddings=original,
        attention_factor=as_float(rope.get("attention_factor")),
        short_factor=factors("short_factor"),
        long_factor=factors("long_factor"),
    )


def _yarn(config: Config, rope: Mapping[str, Any]) -> RopeScaling:
    """YaRN, with what transformers takes for keys that are absent: the model's positions for those of the pre-training,
    and their ratio for the factor."""
    original, positions = rope.get("original_max_position_embeddings"), config.integer("max_position_embeddings")
    original = positions if original is None else original
    factor = rope.get("factor")
    if factor is None:
        check_integer("rope_scaling", "original_max_position_embeddings", original)
        factor = positions / original
    return RopeScaling(
        "yarn",
        factor=as_float(factor),
        original_max_position_embeddings=original,
        beta_fast=as_float(rope.get("beta_fast") or 32.0),
        beta_slow=as_float(rope.get("beta_slow") or 1.0),
        truncate=False if rope.get("truncate", True) is None else rope.get("truncate"),  # null says no
        attention_factor=as_float(rope.get("attention_factor")),
        mscale=as_float(rope.get("mscale")),
        mscale_all_dim=as_float(rope.get("mscale_all_dim")),
    )


def ropes_of_kinds(
    config: Config,
    default: float,
    default_local: float | None = None,
    usual: Mapping[str, Any] = _NO_ROPE,
    known: tuple[str, ...] = ROPE_TYPES,
) -> tuple[float, RopeScaling | None, float]:
    """(rope_theta, how it is stretched, base of blocks with a window, which is never stretched).

    transformers 5 writes an object for each of ATTENTION_TYPES, and rope_scaling goes before that of FULL_ATTENTION.
    default, default_local: the bases without their keys; without the second one blocks with a window have the others'.
    usual: the object of FULL_ATTENTION where the config has none. known: as of `stretched`.
    """
    ropes = config.value("rope_parameters", {})
    if not isinstance(ropes, Mapping) or not all(isinstance(one, Mapping) for one in ropes.values()):
        raise AutoshardError(
            f"rope_parameters={show(ropes)} of {config.name} must be an object with an object for each of: "
            f"{', '.join(ATTENTION_TYPES)}"
        )
    scaling = config.value("rope_scaling", {})
    if not isinstance(scaling, Mapping):
        raise AutoshardError(f"rope_scaling={show(scaling)} of {config.name} must be null or an object")
    wide, narrow = {**ropes.get(FULL_ATTENTION, usual), **scaling}, ropes.get(SLIDING_ATTENTION, {})
    if narrow.get("rope_type", "default") != "default":
        raise AutoshardError(
            f"rope_type={show(narrow['rope_type'])} of {SLIDING_ATTENTION} of {config.name} is not supported; "
            "default is"
        )
    theta = wide.get("rope_theta", config.value("rope_theta", default))
    local = narrow.get("rope_theta", config.value("rope_local_base_freq", default_local or theta))
    for field, value in (("rope_theta", theta), ("rope_local_base_freq", local)):
        check_positive(config.name, field, value)
    return float(theta), stretched(config, wide, known), float(local)


def partial_rope(
    config: Config, default_theta: float, default_part: float, known: tuple[str, ...] = ROPE_TYPES
) -> dict[str, Any]:
    """The fields of rotary positions that may turn a part of each head alone; transformers 5 writes that part beside
    rope_theta, and null turns all of it. default_theta, default_part: their values without their keys. known: as of
    `stretched`."""
    theta = rope_base(config, default_theta, partial_is_known=True)
    scaling = stretched(config, config.rope(), known)
    part = config.rope().get("partial_rotary_factor")
    usual = 1.0 if config.is_null("partial_rotary_factor") else default_part
    part = config.value("partial_rotary_factor", usual) if part is None else part
    check_positive(config.name, "partial_rotary_factor", part)
    return {"rope_theta": theta, "rope_scaling": scaling, "partial_rotary_factor": float(part)}


def as_float(value: Any) -> Any:
    """The value as a float, since configs write 8 and 8.0 for the same factor; RopeScaling refuses what is no
    number.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and is_finite(value) else value


def sizes(model: ModelSpec) -> dict[str, Any]:
    """The keys of a model's sizes, as all families but GPT-2 write them."""
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": model.hidden_act,
    }


def rope_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys of a model's rotary positions."""
    scaling = model.rope_scaling
    return {"rope_theta": model.rope_theta, "rope_scaling": None if scaling is None else _scaling(scaling)}


def rope_parameters(model: ModelSpec) -> dict[str, Any]:
    """The same as transformers 5 writes it, for configs that are stretched where they do not say."""
    keys = rope_keys(model)
    return {
        "rope_parameters": {
            "rope_type": "default",
            **(keys["rope_scaling"] or {}),
            "rope_theta": keys["rope_theta"],
        }
    }


def rope_parameters_of_kinds(model: ModelSpec) -> dict[str, Any]:
    """The key that `ropes_of_kinds` reads, as transformers 5 writes it."""
    keys = rope_keys(model)
    scaling = keys["rope_scaling"] or {"rope_type": "default"}
    if scaling["rope_type"] == PROPORTIONAL and scaling["factor"] == 1:
        del scaling["factor"]
    local = keys["rope_theta"] if model.rope_local_base_freq is None else model.rope_local_base_freq
    return {
        "rope_parameters": {
            FULL_ATTENTION: {**scaling, "rope_theta": keys["rope_theta"]},
            SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": local},
        }
    }


def one_kind(model: ModelSpec) -> tuple[str, ...]:
    """The layer_types of a model with one attention in all blocks, where its config needs the key."""
    return (FULL_ATTENTION if model.sliding_window is None else SLIDING_ATTENTION,) * model.num_hidden_layers


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    values = {
        "rope_type": scaling.rope_type,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "truncate": scaling.truncate,
        "attention_factor": scaling.attention_factor,
        "mscale": scaling.mscale,
        "mscale_all_dim": scaling.mscale_all_dim,
        "partial_rotary_factor": scaling.partial_rotary_factor,
        "short_factor": [*scaling.short_factor] or None,
        "long_factor": [*scaling.long_factor] or None,
    }
    return {name: value for name, value in values.items() if value is not None}
