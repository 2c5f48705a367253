"""The models and instances that can be named: tables of their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from autoshard.errors import AutoshardError
from autoshard.explanation.page import Line, listed, table, wrapped
from autoshard.files.fields import near, show
from autoshard.models import registry
from autoshard.models.registry import load_model, repositories
from autoshard.models.stage import active_count, parameter_count
from autoshard.spec.cluster import load_cluster
from autoshard.spec.hardware_file import aliases, packaged_instances, plugin_files
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, HYBRID, NONE
from autoshard.units import TFLOPS, counted, format_bytes, format_count

T = TypeVar("T", "KnownModel", "KnownInstance")


class KnownModel(NamedTuple):
    """A built-in model.

    model_type: Hugging Face's name of its family. num_active_parameters: those that a token meets, fewer than
    num_parameters where there are experts. built_of: its blocks in words. repositories: of Hugging Face, other names
    of it.
    """

    name: str
    model_type: str
    num_parameters: int
    num_active_parameters: int
    num_hidden_layers: int
    hidden_size: int
    max_position_embeddings: int
    built_of: str
    repositories: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The texts by which it is found."""
        return self.name, self.model_type, self.built_of, *self.repositories


class KnownInstance(NamedTuple):
    """An instance type with a packaged hardware file, as one node of it is at its own LNC.

    memory_bytes, bfloat16_flops_per_s: of one device. network_bytes_per_s: of all adapters of a node, as achieved.
    nodes_per_domain: nodes that links faster than the network join. aliases: other names of it.
    """

    name: str
    devices_per_node: int
    lnc: int
    memory_bytes: float
    bfloat16_flops_per_s: float
    network_bytes_per_s: float
    nodes_per_domain: int
    price_per_node_hour_usd: float | None
    aliases: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The texts by which it is found."""
        return self.name, *self.aliases


def known_models(text: str = "") -> tuple[KnownModel, ...]:
    """The models by name, those of plug-ins that load last. text: words that a model has all of, in its name, family,
    blocks or repositories. Raises AutoshardError where no model has."""
    return _with_words("model", [*_that_load(_model, registry.known_models())], text)


def known_instances(text: str = "") -> tuple[KnownInstance, ...]:
    """The instances by name, those of plug-ins that load last. text: words that an instance has all of, in its names.
    Raises AutoshardError where none has."""
    names = (*packaged_instances(), *plugin_files()[0])
    return _with_words("instance", [*_that_load(_instance, names)], text)


def models_page(models: Sequence[KnownModel], width: int) -> list[Line]:
    """The models as a table, and what else may be planned."""
    header = ("model", "parameters", "of a token", "positions", "blocks")
    rows = [
        (
            one.name,
            format_count(one.num_parameters),
            format_count(one.num_active_parameters),
            f"{one.max_position_embeddings:,}",
            one.built_of,
        )
        for one in models
    ]
    beside = (
        "--model takes these names, the Hugging Face repositories of these models, a Hugging Face config.json or a "
        "folder with one, and my_file.py:MyModel."
    )
    return [*table(header, rows, width, right=range(1, 4)), *wrapped(beside, width, "  ")]


def instances_page(instances: Sequence[KnownInstance], width: int) -> list[Line]:
    """The instances as a table, and what else may be planned for."""
    header = ("instance", "devices", "memory", "bf16 TFLOP/s", "network", "")
    rows = [
        (
            one.name,
            f"{one.devices_per_node}" + (f", lnc {one.lnc}" if one.lnc > 1 else ""),
            format_bytes(one.memory_bytes),
            f"{one.bfloat16_flops_per_s / TFLOPS:,.4g}",
            f"{format_bytes(one.network_bytes_per_s)}/s",
            "; ".join(_and_also(one)),
        )
        for one in instances
    ]
    beside = (
        "Memory and TFLOP/s are of one device; the network is of a node, as achieved. --hardware takes a hardware file "
        "of your own."
    )
    return [*table(header, rows, width, right=range(1, 5)), *wrapped(beside, width, "  ")]


def _and_also(one: KnownInstance) -> Iterator[str]:
    if one.aliases:
        yield f"also {listed(one.aliases)}"
    if one.nodes_per_domain > 1:
        yield f"domains of {one.nodes_per_domain} nodes"
    if one.price_per_node_hour_usd is not None:
        yield f"{one.price_per_node_hour_usd:.2f} USD a node and hour"


def _that_load(row_of: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
    """The rows of these names; `autoshard plugins` says of what is left out why."""
    for name in names:
        with suppress(AutoshardError):
            yield row_of(name)


def _model(name: str) -> KnownModel:
    model = load_model(name)
    return KnownModel(
        name=model.name,
        model_type=model.model_type,
        num_parameters=parameter_count(model),
        num_active_parameters=active_count(model),
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        max_position_embeddings=model.max_position_embeddings,
        built_of="; ".join(_built_of(model)),
        repositories=repositories(model.name),
    )


def _built_of(model: ModelSpec) -> list[str]:
    """How many blocks mix tokens by what and have keys of others, the experts, and what predicts more tokens."""
    whole = FULL_ATTENTION if model.indexer is None else f"{FULL_ATTENTION} with an indexer"
    latent = "latent attention" if model.indexer is None else "latent attention with an indexer"
    names = {
        FULL_ATTENTION: whole if model.latent_attention is None else latent,
        NONE: "MLP or experts alone",
        HYBRID: "full_attention beside mamba",
    }
    mixers = Counter(model.mixer_of(layer) for layer in range(model.num_hidden_layers))
    twice = " twice" if model.family.has_two_attentions else ""
    words = [", ".join(f"{count} x {names.get(word, word)}{twice}" for word, count in mixers.items())]
    if model.takes_keys:
        taking = sum(map(model.shares_keys, range(model.num_hidden_layers)))
        words.append(f"{taking} with keys and values of another one")
    if model.hidden_size_per_layer_input is not None:
        words.append("an input of its own in each block")
    if model.ngram_embedding is not None:
        tables = sum(model.ngram_table_of(layer) is not None for layer in range(model.num_hidden_layers))
        words.append(f"embeddings of n-grams in {counted(tables, 'block')}")
    if model.is_moe:
        some = model.num_sparse_layers < model.num_hidden_layers
        shared = " and a shared one" if model.shared_expert_intermediate_size else ""
        where = f" in {model.num_sparse_layers} blocks" if some else ""
        zero = f" and {model.zero_expert_num} without matrices" if model.zero_expert_num else ""
        words.append(f"{model.num_experts_per_tok} of {model.num_local_experts} experts{zero}{shared}{where}")
    if model.num_streams > 1:
        words.append(f"a residual of {model.num_streams} streams")
    if model.multi_token_prediction is not None:
        words.append("multi-token prediction")
    return words


def _instance(name: str) -> KnownInstance:
    cluster = load_cluster(name, 1)
    device, domain = cluster.device, cluster.domain
    return KnownInstance(
        name=name,
        devices_per_node=cluster.devices_per_node,
        lnc=cluster.lnc,
        memory_bytes=device.memory_bytes,
        bfloat16_flops_per_s=device.peak_flops_per_s("bfloat16"),
        network_bytes_per_s=cluster.adapters_per_node * cluster.inter_node.bandwidth_bytes_per_s,
        nodes_per_domain=1 if domain is None else domain.nodes,
        price_per_node_hour_usd=cluster.price_per_node_hour_usd,
        aliases=aliases(name) if name in packaged_instances() else (),
    )


def _with_words(what: str, known: Sequence[T], text: str) -> tuple[T, ...]:
    """The models or instances whose words include all of the text. Raises AutoshardError where none does."""
    if not isinstance(text, str):
        raise AutoshardError(f"{show(text)} are no words to look for; give a text, such as 'qwen3 experts'")
    words = text.lower().split()
    found = tuple(one for one in known if all(word in " ".join(one.words).lower() for word in words))
    if not found:
        close = near(text, [one.name for one in known])
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise AutoshardError(f"no {what} has {show(text)} in its names{meant}")
    return found
