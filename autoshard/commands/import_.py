"""`autoshard import`: another framework's configuration as a plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import say
from autoshard.commands.parser import Parser, path
from autoshard.commands.plan_options import OPTIONS, PIN_FIELDS, WHAT, request_from
from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.interop.written_layout import WrittenLayout
    from autoshard.layout.plan import Plan
    from autoshard.search.rules import Problem

SUMMARY = "read another framework's configuration into a plan"
USAGE = "autoshard import FILE [options]"
DESCRIPTION = """\
Read a configuration of NxD Training (YAML) or torchtitan (TOML), or Megatron-LM's arguments, into a plan that can be
explained, audited and run. What a plan does not hold is listed on stderr, not dropped.

  autoshard import hf_llama3_70B_config.yaml
  autoshard import train.sh --model llama3-8b --instance trn1.32xlarge --nodes 4

Options say what the file does not, and overrule what it says. The layout must obey the rules and is estimated, not
searched: `autoshard score` prices one that breaks rules."""
OVERRULES = tuple(option for option in WHAT if option.name != "operators")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("layout", type=path, metavar="FILE", help="YAML, TOML or a text with arguments")
    group = parser.add_argument_group("what to train, on what")
    for option in OVERRULES:
        text = option.help.partition(" (default")[0].replace(" (required)", "")
        group.add_argument(option.flag, type=option.parse, metavar=option.metavar, default=None, help=text)
    parser.add_argument(
        "-o", "--out", type=path, metavar="FILE", default="plan.json", help="where the plan goes (default: plan.json)"
    )


def run(values: Mapping[str, Any]) -> int:
    from autoshard.explain.describe import layout_name
    from autoshard.interop.written_layout import read_written_layout
    from autoshard.layout.plan_json import write_plan

    given = {option.name: values[option.name] for option in OVERRULES if values[option.name] is not None}
    written = read_written_layout(values["layout"])
    if not written.complete:
        raise AutoshardError(f"{values['layout']} is a recipe: autoshard plan --config {values['layout']} reads it")
    plan = imported_plan(values["layout"], written, given)
    write_plan(plan, values["out"])
    for name, keys in groupby(written.left_out, key=lambda key: key.partition(".")[0] if "." in key else ""):
        listed = ", ".join(key.removeprefix(f"{name}.") for key in keys)
        sys.stderr.write(f"not in a plan: {f'{name}: ' if name else ''}{listed}\n")
    for note in plan.notes:
        sys.stderr.write(f"note: {note}\n")
    where = f"{plan.model.name} on {plan.cluster.nodes} x {plan.cluster.instance}"
    say(f"wrote {values['out']}: {where}, {layout_name(plan.strategy)}", f"next: autoshard explain {values['out']}")
    return 0


def imported_plan(file: str, written: WrittenLayout, given: Mapping[str, Any]) -> Plan:
    """The plan of a written layout. given: options of `autoshard plan` that overrule the file's.

    Raises AutoshardError where the file does not say enough, or a rule is broken.
    """
    from autoshard.cost.estimate import estimate
    from autoshard.layout.plan import make_plan
    from autoshard.search.score import completed

    options = {name: OPTIONS[name].parse(value) for name, value in written.options.items()} | dict(given)
    if "model" not in options:
        raise AutoshardError(f"{file} does not say which model of those built in it is for; --model does")
    request = request_from(options)
    problem, notes = _problem(file, request, written)
    fields = dict(written.fields)
    per_replica = fields.pop("sequences_per_replica", None)
    pinned = {PIN_FIELDS.get(name, name): value for name, value in request.pins.items()}
    strategy = completed(problem, {**pinned, **fields})
    if per_replica is not None and "global_batch" not in options:
        training = replace(problem.training, global_batch_size=per_replica * strategy.dp)
        problem = problem._replace(training=training)
    problem, backend_notes = _with_backend(problem, request.backend, strategy)
    cost = estimate(problem.model, problem.training, problem.cluster, strategy)
    notes = (f"imported: {written.form}", *notes, *written.notes, *backend_notes)
    if not cost.fits:
        notes += ("by the estimate it does not fit into memory",)
    return make_plan(problem.model, problem.training, problem.cluster, problem.backend, strategy, cost, notes=notes)


def _problem(file: str, request: Any, written: WrittenLayout) -> tuple[Problem, tuple[str, ...]]:
    """The file's own number of blocks stands; a hidden size that is not the model's means another model."""
    from autoshard.commands.planning import inputs_of
    from autoshard.search.rules import Problem

    model, training, cluster, notes = inputs_of(request)
    hidden = written.model_fields.get("hidden_size", model.hidden_size)
    if hidden != model.hidden_size:
        raise AutoshardError(
            f"{file} has hidden_size={hidden}, but {model.name} has {model.hidden_size}: another model"
        )
    layers = written.model_fields.get("num_hidden_layers", model.num_hidden_layers)
    if layers != model.num_hidden_layers:
        notes += (f"{layers} blocks, as the file says, where {model.name} has {model.num_hidden_layers}",)
        model = replace(model, num_hidden_layers=layers)
    return Problem(model, replace(training, **written.training_fields), cluster, ""), notes


def _with_backend(problem: Problem, asked: str, strategy: Any) -> tuple[Problem, tuple[str, ...]]:
    """nxd on Trainium where its rules allow the layout, else torch with a note; or the one that was asked for."""
    from autoshard.search.rules import check_strategy, warnings

    on_trainium = problem.cluster.layout_rules != "none"
    notes: tuple[str, ...] = ()
    backend = asked if asked != "auto" else "nxd" if on_trainium else "torch"
    try:
        check_strategy(problem.model, problem.training, problem.cluster, backend, strategy)
    except AutoshardError as error:
        if asked != "auto" or backend == "torch":
            raise
        backend, notes = "torch", (f"backend torch, because nxd does not allow the layout: {error}",)
        check_strategy(problem.model, problem.training, problem.cluster, backend, strategy)
    problem = problem._replace(backend=backend)
    return problem, (*notes, *warnings(problem, strategy))
