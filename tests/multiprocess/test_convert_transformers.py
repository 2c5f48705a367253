"""What transformers saves, cut for a plan and put together again with a config of ours: the same logits, bit by bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoshard.conversion.convert import Conversion, convert, open_source
from tests.multiprocess.small_configs import CONFIGS
from tests.multiprocess.transformers_models import published, read_by_transformers
from tests.unit.weight_folders import bytes_of, plan

CHOSEN = (
    "llama, tied",
    "llama, rope scaling",
    "ministral",
    "mixtral",
    "gpt2",
    "gpt neox",
    "qwen2, window",
    "qwen3 moe",
    "gemma2, no windows",
    "gemma3, no windows",
    "gpt oss, no windows",
    "granite hybrid, attention alone",
    "gemma4, experts",
    "glm 5",
    "glm 5.2",
    "stablelm, norms of heads",
    "step",
    "falcon h1",
    "bamba",
    "deepseek v4",
    "glm 5.3",
    "hy4",
    "minimax m3",
    "minimax text",
    "longcat",
    "muse glimmer",
    "muse spark",
    "mistral large 4, shared keys and choices",
    "qwen4 exp",
    "sarvam",
    "jamba",
    "falcon mamba",
)
"""What is special in a config, keys without which transformers builds no model, and names that are not Llama's."""


@pytest.mark.parametrize("name", CHOSEN)
def test_transformers_loads_what_came_back(name: str, tmp_path: Path) -> None:
    reference = published(CONFIGS[name], tmp_path / "hf")
    source = replace(open_source(tmp_path / "hf"), carried=())
    to = plan(source.model, tp=2, dp=2, layers=(source.model.num_hidden_layers,))
    convert(source, tmp_path / "cut", Conversion("plan", to), lambda count: None, lambda count: None)
    convert(open_source(tmp_path / "cut"), tmp_path / "back", Conversion("hf"), lambda count: None, lambda count: None)
    again = read_by_transformers(tmp_path / "back")
    assert type(again) is type(reference)
    ids = torch.randint(source.model.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(ids).logits, reference(ids).logits)


@pytest.mark.parametrize("name", ["hy4", "kimi linear", "longcat"])
def test_what_transformers_saves_by_other_names_is_read_too(name: str, tmp_path: Path) -> None:
    """Its names of tensors are not the published ones, and it saves experts that have no matrices."""
    model: Any = published(CONFIGS[name], tmp_path / "hf")
    model.save_pretrained(tmp_path / "saved")
    convert(
        open_source(tmp_path / "saved"), tmp_path / "back", Conversion("hf"), lambda count: None, lambda count: None
    )
    assert bytes_of(tmp_path / "saved").keys() != bytes_of(tmp_path / "back").keys()
    assert bytes_of(tmp_path / "back") == bytes_of(tmp_path / "hf")
