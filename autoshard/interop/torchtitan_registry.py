"""Read torchtitan's Python configurations: functions of a config_registry.py that return a Trainer.Config.

The file is parsed, never executed. What counts is what a function sets to a literal or to the name of one: keywords of
the configuration that it returns and of the dataclasses in it, and assignments such as
`config.parallelism.tensor_parallel_degree = 4`, on top of another function of the same file where it starts from one.
What is not set is left as torchtitan's default. What is set and cannot be read is refused where it may matter to the
layout; calls that may set something are told.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import SHOWN_CHARACTERS, near, show
from autoshard.interop.torchtitan import NAMED, NO_EFFECT, SEQUENCE_LENGTH, UNREAD

MOST_STEPS = 20_000
"""Nodes of the syntax tree that are looked at."""
TOKENS, USUAL_TOKENS = "num_tokens_per_microbatch_per_dp_rank", 16_384
"""Today's name of a microbatch, and its default."""
ACTIVATION_CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
DIST_MUON = "DistMuon"
"""The optimizer_name of groups of parameters that Muon updates [components/optimizer/optimizer.py]."""
READ_AS = {
    "model_spec": re.compile(r".+"),
    "training": re.compile(r"\w*Config"),
    "parallelism": re.compile(r"\w*Config"),
    "activation_checkpoint": re.compile(rf"ActivationCheckpoint\w*|{'|'.join(ACTIVATION_CHECKPOINTS)}"),
}
"""Fields of a configuration that are of the layout, and the dataclasses that they may be."""
SET_BY_BASES = (
    ("model", {"converters"}),
    ("training", {"seq_len", "max_context_length"}),
    ("training", {"local_batch_size", TOKENS}),
    ("parallelism", {"tensor_parallel_degree"}),
    ("activation_checkpoint", {"mode"}),
)
"""What functions of torchtitan set of a layout: section, and keys that overrule it."""
BASE = "a function of another file"
Sections = dict[str, dict[str, Any]]
"""As the TOML of a release has them: section -> key -> value."""
UNREADABLE = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)
"""Raised for Python that is no literal."""
Names = Mapping[str, ast.expr]
"""What names stand for."""


@dataclass(frozen=True)
class _File:
    """A registry. functions: those that return a configuration. constants: names that are set outside of functions."""

    where: str
    functions: Mapping[str, ast.FunctionDef]
    constants: Names


def parse_registry(text: str, where: str, name: str | None) -> Sections:
    """The sections of a function's configuration, in the names of torchtitan's TOML.

    text: a Python file. name: of the function; None: the only one. Raises AutoshardError, one line, for a file that is
    no Python, that has no such function, or of which more than one could be meant, and for a layout that is not
    written out.
    """
    file = _file(text, where)
    functions = file.functions
    if name is None:
        if len(functions) != 1:
            listed = ", ".join(functions) or "none"
            raise AutoshardError(
                f"{where} has {len(functions)} functions that return a Trainer.Config: {listed}; "
                f"name one as {where}:FUNCTION"
            )
        (name,) = functions
    if name not in functions:
        close = near(name, list(functions))
        meant = f"did you mean {' or '.join(close)}?" if close else f"it has: {', '.join(functions) or 'none'}"
        raise AutoshardError(f"{where} has no function {show(name)} that returns a Trainer.Config; {meant}")
    try:
        found = _of(file, name, ())
    except RecursionError:
        raise AutoshardError(f"{where}: function {name} has expressions too deep to read") from None
    module = next((module for module, _ in NAMED if name.startswith(f"{module}_")), None)
    if "flavor" in found.get("model", {}) and module is not None:  # functions of a module carry its name
        found["model"].setdefault("name", module)
    if all(found.get(section, {}).keys() & keys for section, keys in SET_BY_BASES):
        found[UNREAD] = {text: kind for text, kind in found.get(UNREAD, {}).items() if kind != BASE}
    if found.get("model", {}).get("converters") == []:
        del found["model"]["converters"]
    return {section: values for section, values in _with_old_names(found).items() if values}


def _file(text: str, where: str) -> _File:
    try:
        tree = ast.parse(text)
        nodes = sum(1 for _ in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise AutoshardError(f"{where} is no Python that can be read{line}") from None
    if nodes > MOST_STEPS:
        raise AutoshardError(f"{where} has {nodes:,} parts, more than the {MOST_STEPS:,} that are read")
    functions = {
        one.name: one
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and one.returns is not None and ast.unparse(one.returns) == "Trainer.Config"
    }
    constants: dict[str, ast.expr] = {}
    try:
        for one in tree.body:
            match one:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    constants[target] = _followed(value, constants)
                case _:
                    _forget(one, constants)
    except RecursionError:
        raise AutoshardError(f"{where} has expressions too deep to read") from None
    return _File(where, functions, constants)


def _of(file: _File, name: str, seen: tuple[str, ...]) -> Sections:
    """The settings of a function. seen: functions that started from this one."""
    if name in seen:
        raise AutoshardError(f"{file.where}: {' starts from '.join((*seen, name))}, which never ends")
    function = file.functions[name]
    parameters = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    names = {one: value for one, value in file.constants.items() if one not in parameters}
    ends = (one.value for one in function.body if isinstance(one, ast.Return))
    own = next((value.id for value in ends if isinstance(value, ast.Name)), "")
    found: Sections = {}
    for one in function.body:
        at = f"{file.where}: line {one.lineno} of {name}"
        match one:
            case ast.Return(value=ast.Name()):
                return found
            case ast.Return(value=ast.expr() as value):
                return _started(file, value, names, at, (*seen, name))
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
            ):
                if target == own:
                    found = _started(file, value, names, at, (*seen, name))
                    names |= _other_names(value, own, names)
                else:
                    names[target] = _followed(value, names)
            case ast.Assign(targets=[ast.Attribute() as attribute], value=value):
                root, *path = _path(attribute, names)
                section = names.get(root)
                if root == own:
                    _set(found, path, value, names, at)
                elif isinstance(section, ast.Call) and len(path) == 1:
                    others = [keyword for keyword in section.keywords if keyword.arg != path[0]]
                    added = ast.keyword(arg=path[0], value=_followed(value, names))
                    names[root] = ast.Call(func=section.func, args=section.args, keywords=[*others, added])
                else:
                    names.pop(root, None)
            case _:
                _check_sets_nothing(one, own, names, at)
                for text in _calls(one, {own, *(part for part, value in names.items() if _is_part(value))}):
                    found.setdefault(UNREAD, {})[text] = "a call"
                _forget(one, names)
    raise AutoshardError(f"{file.where}: {name} returns nothing that can be read")


def _started(file: _File, value: ast.expr, names: Names, at: str, seen: tuple[str, ...]) -> Sections:
    """The settings that a function starts from, or returns as they are."""
    value = _followed(value, names)
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func)
        if called in file.functions:
            return _of(file, called, seen)
        if called.endswith("Config"):
            found: Sections = {}
            for keyword in _keywords(value, at):
                _set(found, [keyword.arg or ""], keyword.value, names, at)
            return found
        if not value.args and not value.keywords:  # a function of another file
            return {"model": _base_model(called), UNREAD: {_shown(value): BASE}}
    raise _unread(f"{at} takes {_shown(value)}", "a call of Trainer.Config")


def _unread(told: str, instead: str) -> AutoshardError:
    return AutoshardError(f"{told}, which cannot be read; {instead} can be")


def _followed(value: ast.expr, names: Names) -> ast.expr:
    """The expression that a name stands for, and a product as its number; anything else as it is."""
    if isinstance(value, ast.Name):
        return names.get(value.id, value)
    try:
        return ast.Constant(_literal(value, names)) if isinstance(value, ast.BinOp) else value
    except UNREADABLE:
        return value


def _is_part(value: ast.expr) -> bool:
    """Whether it may be a part of a configuration."""
    return isinstance(value, ast.Attribute) or (isinstance(value, ast.Call) and _shown(value.func).endswith("Config"))


def _other_names(value: ast.expr, own: str, names: Names) -> Names:
    """Names that a configuration is made of: what is set there afterwards is set in the configuration."""
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return {
        one.value.id: ast.Attribute(value=ast.Name(id=own), attr=one.arg)
        for one in keywords
        if one.arg is not None and isinstance(one.value, ast.Name) and isinstance(names.get(one.value.id), ast.Call)
    }


def _path(attribute: ast.expr, names: Names) -> list[str]:
    """The parts of `config.training.steps`; the first may be another name of a part of a configuration."""
    root, *path = ast.unparse(attribute).split(".")
    stands_for = names.get(root)
    return [*(ast.unparse(stands_for).split(".") if isinstance(stands_for, ast.Attribute) else [root]), *path]


def _check_sets_nothing(statement: ast.stmt, own: str, names: Names, at: str) -> None:
    """Refuse what sets a part of the layout, or returns, in a way that is not followed."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        told = "returns on a condition" if isinstance(node, ast.Return) else None
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del) and isinstance(node, ast.expr):
            root, *path = _path(node, names)
            if root == own and (not path or path[0].partition("[")[0] in READ_AS):
                told = f"changes {_shown(node)} on a condition or in place"
        if told:
            raise _unread(f"{at} {told}", "a plain statement of the function")


def _calls(statement: ast.stmt, names: set[str]) -> Iterator[str]:
    """Calls for their effect on one of these names."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node.value))
        ):
            yield _shown(node.value)


def _forget(statement: ast.stmt, names: dict[str, ast.expr]) -> None:
    """Take away what a statement sets in a way that is not followed."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del) and isinstance(node, ast.expr):
            names.pop(ast.unparse(node).partition(".")[0].partition("[")[0], None)


def _keywords(call: ast.Call, at: str) -> list[ast.keyword]:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise _unread(f"{at} has {_shown(call)}", "keywords that are written out")
    return call.keywords


def _set(found: Sections, path: list[str], value: ast.expr, names: Names, at: str) -> None:
    """Take over one assignment. path: section, or section and key."""
    section, key = path[0], ".".join(path[1:])
    value = _followed(value, names)
    kind = _kind(value) if isinstance(value, ast.Call) else ""
    if section == "model_spec" and key:
        found.setdefault("model", {})[key] = _shown(value)
    elif key:
        found.setdefault(section, {})[key] = _value(f"{section}.{key}", value, names, at)
    elif section == "activation_checkpoint" and _shown(value) == "None":
        found[section] = {"mode": "none"}
    elif section in READ_AS and not READ_AS[section].fullmatch(kind):
        raise _unread(f"{at} has {section}={_shown(value)}", "torchtitan's own dataclass, written out,")
    elif section == "model_spec" and isinstance(value, ast.Call):
        name = {one: text for one, text in found.get("model", {}).items() if one == "name"}
        found["model"] = name | _model(value, names)
        found["lora"] = _adapters(value, names)
    elif isinstance(value, ast.Call):
        keywords = _keywords(value, at) if section in READ_AS else value.keywords
        given = {one.arg: _value(f"{section}.{one.arg}", one.value, names, at) for one in keywords if one.arg}
        if section == "activation_checkpoint":
            given = {"mode": ACTIVATION_CHECKPOINTS.get(kind, "selective"), **given}
        found[section] = given
    if section == "optimizer" and _has_muon(value, names):
        found.setdefault(section, {})["name"] = DIST_MUON


def _has_muon(value: ast.expr, names: Names) -> bool:
    """Whether an optimizer, or the groups of parameters that it is made of, has Muon in a name."""
    parts = [_followed(one.value, names) for one in value.keywords] if isinstance(value, ast.Call) else []
    return any("muon" in ast.unparse(one).lower() for one in (value, *parts))


def _kind(call: ast.Call) -> str:
    """The last name of what is called: TrainingConfig, or SelectiveAC of SelectiveAC.Config()."""
    return ast.unparse(call.func).removesuffix(".Config").rpartition(".")[2]


def _base_model(called: str) -> dict[str, Any]:
    """The model of a function of torchtitan, such as llama3_8b, by its name."""
    name, _, flavor = called.rpartition(".")[2].partition("_")
    return {"name": name, "flavor": flavor.upper().replace("_", ".")} if flavor[:1].isdigit() else {}


def _adapters(call: ast.Call, names: Names) -> dict[str, Any]:
    """The values that such a registry gives low-rank adapters, `converters=[LoRAConverter.Config(rank=8)]`."""
    calls = (one for one in _converters(call, names) if isinstance(one, ast.Call) and "lora" in _kind(one).lower())
    return {
        one.arg: _value(f"lora.{one.arg}", one.value, names, "") for call in calls for one in call.keywords if one.arg
    }


def _converters(call: ast.Call, names: Names) -> list[ast.expr]:
    given = (_followed(one.value, names) for one in call.keywords if one.arg == "converters")
    converters = next(given, ast.Constant(None))
    return converters.elts if isinstance(converters, ast.List | ast.Tuple) else [converters]


def _model(call: ast.Call, names: Names) -> dict[str, Any]:
    """The flavor, and what converts its layers, of `model_registry("8B", converters=[...])`."""
    given = {one.arg: _followed(one.value, names) for one in call.keywords}
    flavor = _followed(call.args[0], names) if call.args else given.get("flavor")
    names_of = (_kind(one) if isinstance(one, ast.Call) else _shown(one) for one in _converters(call, names))
    found: dict[str, Any] = {"converters": [one for one in names_of if one != "None"]}
    if isinstance(flavor, ast.Constant) and isinstance(flavor.value, str):
        found["flavor"] = flavor.value
    return found


def _value(field: str, value: ast.expr, names: Names, at: str) -> Any:
    """The value that a field is set to; its text where it cannot be read and does not matter to the layout."""
    try:
        return _literal(value, names)
    except UNREADABLE:
        if field.partition(".")[0] in READ_AS and not NO_EFFECT.fullmatch(field):
            raise _unread(f"{at} has {field}={_shown(value)}", "a literal or the name of one") from None
        return _shown(value)


def _literal(value: ast.expr, names: Names) -> Any:
    """A literal, the name of one, or a product of whole numbers. Raises ValueError for anything else."""
    value = names.get(value.id, value) if isinstance(value, ast.Name) else value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        left, right = _literal(value.left, names), _literal(value.right, names)
        if type(left) is type(right) is int and max(abs(left), abs(right)) < 10**12:
            return left * right
    return ast.literal_eval(value)


def _shown(value: ast.AST) -> str:
    """Python as text, short enough for one line of an error."""
    text = ast.unparse(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _with_old_names(found: Sections) -> Sections:
    """The sections in the names of the TOML, which counted sequences where today's names count tokens. What is absent
    and has another default there has today's."""
    training, parallelism = found.setdefault("training", {}), found.setdefault("parallelism", {})
    if found.setdefault("activation_checkpoint", {"mode": "selective"}).get("mode") == "selective":
        found["activation_checkpoint"].setdefault("selective_ac_option", "op")  # in all of its registries
    counts_sequences = training.keys() & {"seq_len", "local_batch_size"}  # as TorchTitan Neuron, of release 0.2.2
    tokens = training.pop(TOKENS, None if counts_sequences else USUAL_TOKENS)
    if "max_context_length" in training:
        training["seq_len"] = training.pop("max_context_length")
    length = training.get("seq_len", SEQUENCE_LENGTH)
    if tokens is not None:
        sequences = _sequences(TOKENS, tokens, length)
        in_pipeline = parallelism.get("pipeline_parallel_degree", 1) != 1
        microbatches = parallelism.get("num_pp_microbatches", 1) if in_pipeline else 1
        training["local_batch_size"] = sequences * (microbatches if isinstance(microbatches, int) else 1)
        parallelism["pipeline_parallel_microbatch_size"] = sequences
    if (tokens := training.pop("num_tokens_per_train_step", -1)) != -1:
        training["global_batch_size"] = _sequences("num_tokens_per_train_step", tokens, length)
    parallelism.pop("num_pp_microbatches", None)
    if "context_parallel_load_balancer" in parallelism:
        balancer = parallelism.pop("context_parallel_load_balancer")
        parallelism["context_parallel_rotate_method"] = "allgather" if balancer is None else "alltoall"
    return found


def _sequences(name: str, tokens: object, length: object) -> int:
    if type(tokens) is not int or type(length) is not int or length < 1 or tokens < length or tokens % length:
        raise AutoshardError(f"training.{name}={show(tokens)} must be whole sequences of {show(length)} tokens")
    return tokens // length
