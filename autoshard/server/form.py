"""The page itself: fields for what may be asked, room for the answer."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.models.registry import builtin_models
from autoshard.planner.options import OPTIONS, PINS
from autoshard.planner.request import GLOBAL_BATCH, INSTANCE, SEQUENCE_LENGTH, PlanRequest
from autoshard.reports.html import Html, element
from autoshard.server.state import OTHER
from autoshard.spec.hardware_file import packaged_instances

LABELS = {
    "model": "Model", "instance": "Instance", "nodes": "Nodes", "lnc": "LNC", "sdk": "Neuron SDK",
    "seq_len": "Tokens of a sequence", "global_batch": "Sequences of a step", "precision": "Precision",
    "state_dtypes": "State dtypes", "keep_bf16": "Kept in bf16", "expert_imbalance": "Expert imbalance",
    "dropout": "Dropout", "lora": "LoRA", "optimizer": "Optimizer", "backend": "Backend", "stack": "Stack",
    "fit_probability": "Fit probability", "price_per_node_hour": "USD a node and hour",
}  # fmt: skip
MAIN = ("model", "instance", "nodes", "seq_len", "global_batch", "price_per_node_hour")
MORE = (
    *("precision", "backend", "fit_probability", "lnc", "sdk"),
    *("state_dtypes", "keep_bf16", "expert_imbalance", "dropout", "lora", "optimizer", "stack"),
)
FIRST_MODEL = "llama3-8b"
"""The model of a page that was opened without any: one that fits on a node of the default instance."""
DEFAULTS = {
    "instance": INSTANCE, "nodes": "1", "seq_len": f"{SEQUENCE_LENGTH}", "global_batch": f"{GLOBAL_BATCH}",
    "price_per_node_hour": "its own", "etp": "tp", "dp_replicate": "1", "precision": PlanRequest.precision,
    "backend": "auto", "fit_probability": f"{FIT_PROBABILITY}", "lnc": "the instance's", "sdk": "the newest",
    "state_dtypes": "float32", "keep_bf16": "nothing", "expert_imbalance": "1", "dropout": "nothing",
    "lora": "all weights", "optimizer": PlanRequest.optimizer, "stack": "compared",
}  # fmt: skip
"""What an empty field stands for; that of others is searched, `any`."""


def page() -> str:
    """The page as HTML."""
    head = (
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", "autoshard"),
        Html('<link rel="stylesheet" href="page.css"><link rel="stylesheet" href="serve.css">'),
        Html('<link rel="icon" href="data:,">'),
    )
    second = element(
        "fieldset", element("legend", "A second plan, beside the first"), *_fields(OTHER), id="second", hidden=True
    )
    form = element(
        "form",
        element("fieldset", element("legend", "What to train, on what"), *_fields("")),
        second,
        element("p", _upload(), element("button", "Compare with another", type="button", id="two")),
        id="asked",
    )
    downloads = [
        element("a", name, href=file, download=file, data_download=True)
        for name, file in (("plan.json", "plan.json"), ("report", "report.html"), ("comparison", "compare.html"))
    ]
    commands = element("a", "commands", href="commands.txt", data_download=True)
    main = element(
        "main",
        element("h1", "Plan a training"),
        form,
        element("p", element("span", id="status", role="status"), id="said"),
        element("p", "Download: ", *_joined([*downloads, commands]), id="downloads"),
        element("div", id="answer", aria_live="off"),
    )
    scripts = Html('<script src="pictures.js"></script><script src="serve.js"></script>')
    return f"<!doctype html>\n{element('html', element('head', *head), element('body', main, scripts), lang='en')}\n"


def _joined(links: Sequence[Html]) -> list[Html]:
    return [link if place == 0 else Html(f" {link}") for place, link in enumerate(links)]


def _upload() -> Html:
    field = element("input", type="file", id="upload", accept=".json,application/json")
    return element("label", "Upload a config.json or plan.json ", field, class_="choice")


def _fields(prefix: str) -> list[Html]:
    pins = [_field(prefix, option.name, option.name.replace("_", " "), option.help) for option in PINS]
    others = [_field(prefix, name, LABELS[name], OPTIONS[name].help) for name in MORE]
    return [
        element("div", *(_field(prefix, name, LABELS[name], OPTIONS[name].help) for name in MAIN), class_="fields"),
        element("details", element("summary", "Pins: fix a choice"), element("div", *pins, class_="fields")),
        element("details", element("summary", "More"), element("div", *others, class_="fields")),
    ]


def _field(prefix: str, name: str, label: str, hint: str) -> Html:
    known, default = _known(name), DEFAULTS.get(name, "any")
    if known:
        options = [element("option", one, value=one, selected=one == FIRST_MODEL) for one in known if one != default]
        blank = [] if name == "model" else [element("option", default, value="")]
        field = element("select", [*blank, *options], name=f"{prefix}{name}", title=hint)
    else:
        field = element("input", name=f"{prefix}{name}", placeholder=default, title=hint, size=8)
    slider = []
    if name == "nodes":
        slider = [
            element(
                "input", type="range", min=0, max=10, value=0, data_for=f"{prefix}nodes", aria_label="Nodes, doubling"
            )
        ]
    return element("label", element("span", label), field, *slider)


def _known(name: str) -> tuple[str, ...]:
    if name == "model":
        return builtin_models()
    if name == "instance":
        return packaged_instances()
    if name in ("recompute", "precision"):
        return ()
    return tuple(one for one in getattr(OPTIONS[name].parse, "known", ()) if one != "auto")
