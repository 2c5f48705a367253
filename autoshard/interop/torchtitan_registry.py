"""Read torchtitan's Python configurations: functions of a config_registry.py that return a Trainer.Config.

The file is parsed, never executed. What counts is what a function sets to a literal: keywords of `Trainer.Config(...)`
and of the dataclasses in it, and assignments such as `config.parallelism.tensor_parallel_degree = 4`, on top of another
function of the same file where it starts from one. Anything else is left as torchtitan's default.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import near, show

MOST_STEPS = 20_000
"""Nodes of the syntax tree that are looked at."""
ACTIVATION_CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "selective"}
Sections = dict[str, dict[str, Any]]
"""As the TOML of a release has them: section -> key -> value."""


def parse_registry(text: str, where: str, name: str | None) -> Sections:
    """The sections of a function's configuration, in the names of torchtitan's TOML.

    text: a Python file. name: of the function; None: the only one. Raises AutoshardError, one line, for a file that is
    no Python, that has no such function, or of which more than one could be meant.
    """
    functions = _functions(text, where)
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
        found = _of(functions, name, where, ())
    except RecursionError:
        raise AutoshardError(f"{where}: function {name} has expressions too deep to read") from None
    if "flavor" in found.get("model", {}):  # functions of a module carry its name
        found["model"].setdefault("name", name.partition("_")[0])
    return _with_old_names(found)


def _functions(text: str, where: str) -> dict[str, ast.FunctionDef]:
    try:
        tree = ast.parse(text)
        nodes = sum(1 for _ in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise AutoshardError(f"{where} is no Python that can be read{line}") from None
    if nodes > MOST_STEPS:
        raise AutoshardError(f"{where} has {nodes:,} parts, more than the {MOST_STEPS:,} that are read")
    return {
        one.name: one
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and one.returns is not None and ast.unparse(one.returns) == "Trainer.Config"
    }


def _of(functions: Mapping[str, ast.FunctionDef], name: str, where: str, seen: tuple[str, ...]) -> Sections:
    """The settings of a function. seen: functions that started from this one."""
    if name in seen:
        raise AutoshardError(f"{where}: {' starts from '.join((*seen, name))}, which never ends")
    found: Sections = {}
    for statement in functions[name].body:
        value = statement.value if isinstance(statement, ast.Assign | ast.Return | ast.AnnAssign) else None
        if isinstance(value, ast.Call):
            called = ast.unparse(value.func)
            if called in functions:
                found = _of(functions, called, where, (*seen, name))
            elif called == "Trainer.Config":
                _keywords(value, found)
            elif not isinstance(statement, ast.Return) and "." not in called:
                found.setdefault("model", {}).update(_model(called, value))
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            path = ast.unparse(statement.targets[0]).split(".")
            if len(path) in (2, 3):
                _set(found, path[1:], statement.value)
    return found


def _model(called: str, call: ast.Call) -> dict[str, Any]:
    """The model as a call says it: `model_registry("8B")` its flavor; a base function `llama3_8b()` both."""
    if called == "model_registry":
        flavor = _literal(call.args[0]) if call.args else None
        return {"flavor": flavor} if isinstance(flavor, str) else {}
    name, _, flavor = called.partition("_")
    return {"name": name, "flavor": flavor.upper().replace("_", ".")} if flavor[:1].isdigit() else {}


def _keywords(call: ast.Call, found: Sections) -> None:
    for keyword in call.keywords:
        if keyword.arg is not None:
            _set(found, [keyword.arg], keyword.value)


def _set(found: Sections, path: list[str], value: ast.expr) -> None:
    """Takes over one assignment. path: section, or section and key."""
    section = path[0]
    if section == "model_spec" and isinstance(value, ast.Call):
        found.setdefault("model", {}).update(_model("model_registry", value))
    elif section == "activation_checkpoint" and len(path) == 1:
        kind = ast.unparse(value).partition(".")[0]
        keywords = {one.arg: _literal(one.value) for one in value.keywords} if isinstance(value, ast.Call) else {}
        mode = ACTIVATION_CHECKPOINTS.get(kind, keywords.get("mode"))
        found[section] = {"mode": "none" if _literal(value) is None and kind == "None" else mode or "selective"}
    elif len(path) == 2:
        found.setdefault(section, {})[path[1]] = _literal(value)
    elif isinstance(value, ast.Call):
        found[section] = {one.arg: _literal(one.value) for one in value.keywords if one.arg is not None}


def _literal(value: ast.expr) -> Any:
    """A literal, or a product of whole numbers; anything else as its text."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        left, right = _literal(value.left), _literal(value.right)
        if type(left) is type(right) is int and max(abs(left), abs(right)) < 10**12:
            return left * right
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.unparse(value)[:200]


def _with_old_names(found: Sections) -> Sections:
    """The sections in the names of the TOML, which counted sequences where today's names count tokens."""
    training, parallelism = found.get("training", {}), found.get("parallelism", {})
    if found.get("activation_checkpoint", {}).get("mode") == "selective":  # by operators, in all of its registries
        found["activation_checkpoint"].setdefault("selective_ac_option", "op")
    length = training.pop("max_context_length", None)
    if length is not None:
        training["seq_len"] = length
    if (tokens := training.pop("num_tokens_per_microbatch_per_dp_rank", None)) is not None:
        sequences = _sequences("num_tokens_per_microbatch_per_dp_rank", tokens, training.get("seq_len", 2048))
        microbatches = parallelism.get("num_pp_microbatches", 1)
        training["local_batch_size"] = sequences * (microbatches if isinstance(microbatches, int) else 1)
        parallelism["pipeline_parallel_microbatch_size"] = sequences
        found["parallelism"] = parallelism
    if (tokens := training.pop("num_tokens_per_train_step", -1)) != -1:
        training["global_batch_size"] = _sequences("num_tokens_per_train_step", tokens, training.get("seq_len", 2048))
    parallelism.pop("num_pp_microbatches", None)
    if "context_parallel_load_balancer" in parallelism:
        balancer = parallelism.pop("context_parallel_load_balancer")
        parallelism["context_parallel_rotate_method"] = "allgather" if balancer is None else "alltoall"
    return found


def _sequences(name: str, tokens: object, length: object) -> int:
    if type(tokens) is not int or type(length) is not int or length < 1 or tokens < length or tokens % length:
        raise AutoshardError(f"training.{name}={show(tokens)} must be whole sequences of {show(length)} tokens")
    return tokens // length
