"""The schema of plan.json, from the types that it holds: `python -m autoshard.plans.schema` writes plan.schema.json.

Each dataclass is a definition: its properties from the annotations, their descriptions from the lines `name: text` of
its docstring. `sections.schema.json` is written by hand: the file's sections, and what those hold that have no
type: mesh, recompute, and the maps by name of an operator, a parameter or an activation.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

from autoshard.cost.values import Estimate, WrittenMemory
from autoshard.files.codec import Absence, Limit, Parts, hints, parts
from autoshard.layout.strategy import Strategy
from autoshard.plans.derived_sections import (
    CommunicatingStep,
    OptimizerSection,
    ScheduleSection,
    SentCollective,
    SequenceSection,
)
from autoshard.plans.plan import SearchSummary, Stage
from autoshard.plans.plan_json import compact_json
from autoshard.plans.search_result import PathSummary, Pins, Rejection
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.branch_multipliers import BranchMultipliers
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.cluster import Cluster, Device, Domain, Link
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.dropout import Dropout
from autoshard.spec.gated_residual import GatedResidual
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.indexer import Indexer
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, Mamba1, ShortConv
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.multipliers import Multipliers
from autoshard.spec.ngram_embedding import NgramEmbedding
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.product_format import ProductFormat
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from autoshard.spec.traced import TracedGraph, TracedOperator, TracedParameter
from autoshard.spec.training import Precision, TrainingSpec
from autoshard.spec.weighted_residual import WeightedResidual

TYPES = {
    "model": ModelSpec,
    "rope_scaling": RopeScaling,
    "latent_attention": LatentAttention,
    "compressed_attention": CompressedAttention,
    "hyper_connections": HyperConnections,
    "gated_residual": GatedResidual,
    "ngram_embedding": NgramEmbedding,
    "indexer": Indexer,
    "block_indexer": BlockIndexer,
    "router": Router,
    "traced_graph": TracedGraph,
    "traced_operator": TracedOperator,
    "traced_parameter": TracedParameter,
    "dropout": Dropout,
    "lora": Lora,
    "attention_scores": AttentionScores,
    "global_attention": GlobalAttention,
    "clamped_gate": ClampedGate,
    "chunked_attention": ChunkedAttention,
    "multipliers": Multipliers,
    "branch_multipliers": BranchMultipliers,
    "branch_norms": BranchNorms,
    "weighted_residual": WeightedResidual,
    "multi_token_prediction": MultiTokenPrediction,
    "conv": ShortConv,
    "linear_attention": LinearAttention,
    "lightning_attention": LightningAttention,
    "mamba": Mamba,
    "mamba1": Mamba1,
    "training": TrainingSpec,
    "precision": Precision,
    "product_format": ProductFormat,
    "cluster": Cluster,
    "device": Device,
    "link": Link,
    "domain": Domain,
    "pins": Pins,
    "strategy": Strategy,
    "estimate": Estimate,
    "memory": WrittenMemory,
    "search": SearchSummary,
    "rejection": Rejection,
    "path_summary": PathSummary,
    "stage": Stage,
    "schedule": ScheduleSection,
    "sequence": SequenceSection,
    "optimizer": OptimizerSection,
    "communicating_step": CommunicatingStep,
    "sent_collective": SentCollective,
}
"""Name of the definition -> type."""
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def plan_schema() -> dict[str, Any]:
    """The whole schema, as plain JSON values."""
    schema: dict[str, Any] = json.loads(files("autoshard.plans").joinpath("sections.schema.json").read_text("utf-8"))
    schema["$defs"] |= {name: _definition(kind) for name, kind in TYPES.items()}
    precision = schema["$defs"]["precision"]
    schema["properties"]["precision"] |= {
        **precision,
        "description": "The dtype of each kind of state, as in inputs.training.precision.",
        "properties": {name: one for name, one in precision["properties"].items() if name != "name"},
        "required": [name for name in precision["required"] if name != "name"],
    }
    return schema


def _definition(kind: type) -> dict[str, Any]:
    text, described = _docstring(kind)
    fields = hints(kind)
    missing = [] if kind is Pins else [name for name in fields if name not in described]
    assert not missing, f"{kind.__name__} describes no {missing}"
    return {
        "type": "object",
        "description": text,
        "properties": {
            name: {**_property(one), "description": described.get(name, f"As strategy.{name}.")}
            for name, one in fields.items()
        },
        "required": [name for name, one in fields.items() if one.absence is None],
        "additionalProperties": False,
    }


def _docstring(kind: type) -> tuple[str, dict[str, str]]:
    """(its first paragraph, field -> text of the line that begins with `field:`, up to the next such line or what is
    raised)."""
    first, *rest = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    rest = [part for part in rest if not part.startswith("Raises ")]
    names = "|".join(hints(kind))
    described = re.findall(rf"^({names}): (.*?)(?=^(?:{names}): |\Z)", "\n".join(rest), flags=re.MULTILINE | re.DOTALL)
    return " ".join(first.split()), {name: " ".join(text.split()) for name, text in described}


def _property(one: Parts) -> dict[str, Any]:
    value = _value(one)
    if not one.nullable or one.absence is Absence.WRITTEN:
        return value
    if "$ref" in value:
        return {"anyOf": [value, {"type": "null"}]}
    choices = {"enum": [*value["enum"], None]} if "enum" in value else {}
    return {**value, "type": [value["type"], "null"], **choices}


def _value(one: Parts) -> dict[str, Any]:
    if one.form is not None:
        return dict(one.form.schema)
    if one.kind in SCALARS:
        return {"type": SCALARS[one.kind], **_keywords(one.limit)}
    if get_origin(one.kind) is tuple:
        ends = {"minItems": one.limit.items or None, "maxItems": one.limit.most_items}
        items = {word: end for word, end in ends.items() if end is not None}
        return {"type": "array", "items": _property(parts(get_args(one.kind)[0])), **items}
    if isinstance(get_origin(one.kind), type) and issubclass(get_origin(one.kind), Mapping):
        return {"type": "object", "additionalProperties": _property(parts(get_args(one.kind)[1]))}
    return {"$ref": f"#/$defs/{next(name for name, kind in TYPES.items() if kind is one.kind)}"}


def _keywords(limit: Limit) -> dict[str, Any]:
    ends = {
        "minimum": limit.at_least,
        "exclusiveMinimum": limit.above,
        "maximum": limit.at_most,
        "exclusiveMaximum": limit.below,
    }
    keywords: dict[str, Any] = {word: end for word, end in ends.items() if end is not None}
    return {**keywords, "enum": list(limit.choices)} if limit.choices else keywords


if __name__ == "__main__":
    Path(__file__).with_name("plan.schema.json").write_text(compact_json(plan_schema()) + "\n", encoding="utf-8")
