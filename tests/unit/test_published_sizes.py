"""Numbers of parameters that publishers give, in words of their own and rounded by them, against what built-in configs
make. A config with a wrong width, depth or number of experts loads well and plans well; these numbers are from others.

`test_huggingface.py` has the exact counts of all configs.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from autoshard.models import load_model
from autoshard.models.stage import active_count, parameter_count, parameters_by_dims
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction


def embedding(model: ModelSpec) -> int:
    """The table that looks tokens up."""
    return model.vocab_size * model.hidden_size


def tables(model: ModelSpec) -> int:
    """That table and the head's, where they are two."""
    return embedding(model) * (1 if model.tie_word_embeddings else 2)


def without_tables(model: ModelSpec) -> int:
    return parameter_count(model) - tables(model)


def without_own_tables(model: ModelSpec) -> int:
    """All but the tables of tokens that blocks have of their own."""
    return (
        parameter_count(model) - model.vocab_size * (model.hidden_size_per_layer_input or 0) * model.num_hidden_layers
    )


def without_ngrams(model: ModelSpec) -> int:
    """All but the tables of n-grams."""
    return parameter_count(model) - ngrams(model)


def ngrams(model: ModelSpec) -> int:
    """The tables of n-grams."""
    return sum(count for dims, count in parameters_by_dims(model).items() if "ngram_part" in dims)


def met_blocks(model: ModelSpec) -> int:
    """What a token meets without both tables of tokens; of tables of n-grams its rows."""
    return active_count(model) - tables(model)


def with_prediction(model: ModelSpec) -> int:
    """All but the tables, with the module for multi-token prediction."""
    return without_tables(replace(model, multi_token_prediction=MultiTokenPrediction()))


def active(model: ModelSpec) -> int:
    """What one token is multiplied by: no experts that it does not go to, no table that only looks up."""
    router = 0 if model.zero_expert_num else model.num_sparse_layers * model.num_local_experts * model.hidden_size
    of_experts = sum(count for dims, count in parameters_by_dims(model).items() if "expert" in dims) - router
    idle = of_experts * (model.num_candidates - model.num_experts_per_tok) // model.num_candidates
    return parameter_count(model) - idle - (tables(model) - embedding(model))


def met(experts: int) -> Callable[[ModelSpec], int]:
    """The same where a token goes to so many experts with matrices."""

    def count(model: ModelSpec) -> int:
        even = model.num_experts_per_tok * model.num_local_experts // model.num_candidates
        expert = 3 * model.hidden_size * model.intermediate_size
        return active(model) + (experts - even) * expert * model.num_sparse_layers

    return count


def active_blocks(model: ModelSpec) -> int:
    """The same without the head's table."""
    return active(model) - embedding(model)


def with_module(count: Callable[[ModelSpec], int]) -> Callable[[ModelSpec], int]:
    """The same of a model with its prediction module, which is left out here: about a block like the last one."""
    return lambda model: count(model.with_prediction_block)


PUBLISHED: tuple[tuple[str, Callable[[ModelSpec], int], str, str], ...] = (
    ("deepseek-v2-lite", parameter_count, "16e9", "README of deepseek-ai/DeepSeek-V2"),
    ("deepseek-v2-lite", active, "2.4e9", "README of deepseek-ai/DeepSeek-V2"),
    ("deepseek-v2", parameter_count, "236e9", "README of deepseek-ai/DeepSeek-V2"),
    ("deepseek-v2", active, "21e9", "README of deepseek-ai/DeepSeek-V2"),
    ("deepseek-v3", parameter_count, "671e9", "README of deepseek-ai/DeepSeek-V3"),
    ("deepseek-v3", active, "37e9", "README of deepseek-ai/DeepSeek-V3"),
    ("deepseek-v3.2", parameter_count, "671e9", "that of DeepSeek-V3, which it was trained on from"),
    ("deepseek-v3.2", active, "37e9", "that of DeepSeek-V3, which it was trained on from"),
    ("deepseek-v4-flash", parameter_count, "284e9", "abstract of arXiv 2606.19348"),
    ("deepseek-v4-flash", active, "13e9", "abstract of arXiv 2606.19348"),
    ("deepseek-v4-pro", parameter_count, "1.6e12", "abstract of arXiv 2606.19348"),
    ("deepseek-v4-pro", active, "49e9", "abstract of arXiv 2606.19348"),
    ("glm-5.3-flash", with_module(parameter_count), "3.2e11", "transformers' page on it, with what sees besides"),
    ("glm-5.3-flash", with_module(active), "18e9", "transformers' page on it, with what sees besides"),
    ("hy4-preview", parameter_count, "770e9", "README of Tencent-Hunyuan/Hy4-preview"),
    ("hy4-preview", active, "49e9", "README of Tencent-Hunyuan/Hy4-preview"),
    ("longcat-flash", parameter_count, "560e9", "abstract of arXiv 2509.01322"),
    ("longcat-flash", active, "27e9", "abstract of arXiv 2509.01322, on average"),
    ("longcat-flash", met(12), "31.3e9", "abstract of arXiv 2509.01322, at most"),
    ("longcat-flash", met(0), "18.6e9", "abstract of arXiv 2509.01322, at least"),
    ("minimax-m3", parameter_count, "4.3e11", "news of its weights, which say 428 B with what sees"),
    ("minimax-m3", active_blocks, "23e9", "news of its weights"),
    ("vaultgemma-1b", parameter_count, "1038741120", "the sum that Hugging Face shows, recalled"),
    ("muse-glimmer-30b", parameter_count, "3e10", "its name, with what sees"),
    ("muse-spark-open", without_tables, "816e9", "its name, and NeMo AutoModel's page on it"),
    ("muse-spark-open", active_blocks, "42e9", "its name, and NeMo AutoModel's page on it"),
    ("kimi-k2", parameter_count, "1e12", "README of MoonshotAI/Kimi-K2"),
    ("kimi-k2", active, "32e9", "README of MoonshotAI/Kimi-K2"),
    ("dbrx", parameter_count, "132e9", "README of databricks/dbrx"),
    ("dbrx", active, "36e9", "README of databricks/dbrx"),
    ("gpt-oss-20b", parameter_count, "21e9", "README of openai/gpt-oss"),
    ("gpt-oss-20b", active, "3.6e9", "README of openai/gpt-oss"),
    ("gpt-oss-120b", parameter_count, "117e9", "README of openai/gpt-oss"),
    ("gpt-oss-120b", active, "5.1e9", "README of openai/gpt-oss"),
    ("glm-4.5", with_prediction, "355e9", "README of zai-org/GLM-4.5"),
    ("glm-4.5", active, "32e9", "README of zai-org/GLM-4.5"),
    ("glm-4.5-air", parameter_count, "106e9", "README of zai-org/GLM-4.5"),
    ("glm-4.5-air", active, "12e9", "README of zai-org/GLM-4.5"),
    ("glm-4.7-flash", parameter_count, "30e9", "README of zai-org/GLM-4.5"),
    ("glm-4.7-flash", active, "3e9", "README of zai-org/GLM-4.5"),
    ("a.x-k1", parameter_count, "519e9", "model card (recalled)"),
    ("a.x-k1", active_count, "33e9", "model card (recalled); with both tables"),
    ("glm-5", parameter_count, "744e9", "README of zai-org/GLM-5"),
    ("glm-5", active, "40e9", "README of zai-org/GLM-5"),
    ("glm-4-32b-0414", parameter_count, "32.57e9", "llama.cpp's count, in ikawrakow/ik_llama.cpp#344"),
    ("seed-oss-36b", parameter_count, "36e9", "README of ByteDance-Seed/seed-oss"),
    ("dots.llm1", parameter_count, "142e9", "README of rednote-hilab/dots.llm1"),
    ("dots.llm1", active, "14e9", "README of rednote-hilab/dots.llm1"),
    ("exaone-4.0-32b", parameter_count, "32.0e9", "README of LG-AI-EXAONE/EXAONE-4.0"),
    ("exaone-4.0-32b", without_tables, "30.95e9", "model card"),
    ("exaone-4.0-1.2b", without_tables, "1.07e9", "model card"),
    ("ernie-4.5-21b-a3b", parameter_count, "21e9", "its name"),
    ("ernie-4.5-21b-a3b", active, "3e9", "its name"),
    ("nanochat-d20", parameter_count, "560988160", "nanochat's log of a run"),
    ("olmo-1b", parameter_count, "1.18e9", "model card's count of the checkpoint"),
    ("olmo-7b", parameter_count, "6.89e9", "model card's count of the checkpoint"),
    ("olmoe-1b-7b", parameter_count, "6.9e9", "model card, its first version"),
    ("olmoe-1b-7b", active, "1.2e9", "model card, its first version"),
    ("nemotron4-340b", without_tables, "331.6e9", "report, arXiv 2406.11704"),
    ("nemotron4-340b", tables, "9.4e9", "report, arXiv 2406.11704"),
    ("solar-open-100b", parameter_count, "102e9", "report"),
    ("solar-open-100b", active, "12e9", "model card"),
    ("k-exaone-236b-a23b", parameter_count, "236e9", "its name"),
    ("k-exaone-236b-a23b", active, "23e9", "its name"),
    ("hy3-295b-a21b", parameter_count, "295e9", "model card"),
    ("hy3-295b-a21b", active, "21e9", "model card"),
    ("mistral-small-4-119b-a6.5b", parameter_count, "119e9", "model card"),
    ("mistral-small-4-119b-a6.5b", active, "6e9", "Mistral's announcement of it"),
    ("ministral-8b", parameter_count, "8019808256", "model card"),
    ("mistral-large-4-1t-a52b", parameter_count, "1e12", "its name"),
    ("mistral-large-4-1t-a52b", active, "52e9", "its name"),
    ("youtu-llm-2b", parameter_count, "1961560064", "model card's count of the checkpoint"),
    ("minicpm3-4b", parameter_count, "4.07e9", "the sum that Hugging Face shows, recalled"),
    ("cwm-32b", parameter_count, "32e9", "model card"),
    ("hunyuan-0.5b", parameter_count, "0.54e9", "half of its file's 1.08 GB"),
    ("hunyuan-1.8b", parameter_count, "1.8e9", "its name"),
    ("hunyuan-4b", parameter_count, "4.22e9", "half of its files' 4.97 and 3.47 GB"),
    ("hunyuan-7b", parameter_count, "8e9", "model card's count of the checkpoint"),
    ("hunyuan-a13b", parameter_count, "80e9", "README of Tencent-Hunyuan/Hunyuan-A13B"),
    ("hunyuan-a13b", active, "13e9", "README of Tencent-Hunyuan/Hunyuan-A13B"),
    ("apertus-8b", parameter_count, "8e9", "its name"),
    ("apertus-70b", parameter_count, "70e9", "its name"),
    ("gemma4-31b", parameter_count, "30.7e9", "model card"),
    ("gemma4-26b-a4b", parameter_count, "25.2e9", "model card"),
    ("gemma4-26b-a4b", active, "3.8e9", "model card"),
    ("gemma4-e2b", without_own_tables, "2.3e9", "another project's table of it: effective ones"),
    ("trinity-nano", parameter_count, "6e9", "model card"),
    ("trinity-mini", parameter_count, "26e9", "model card"),
    ("trinity-mini", active, "3e9", "model card"),
    ("trinity-large", parameter_count, "398e9", "model card"),
    ("trinity-large", active, "13e9", "model card"),
    ("command-r7b", parameter_count, "8e9", "model card's count of the checkpoint"),
    ("command-a", parameter_count, "111e9", "model card"),
    ("aya-23-8b", parameter_count, "8e9", "its name"),
    ("command-r", parameter_count, "35e9", "model card, recalled"),
    ("command-r-08-2024", parameter_count, "32e9", "model card, recalled"),
    ("command-r-plus", parameter_count, "104e9", "model card"),
    ("ministral-3-3b", parameter_count, "3.4e9", "model card"),
    ("ministral-3-8b", parameter_count, "8.4e9", "model card"),
    ("ministral-3-14b", parameter_count, "13.5e9", "model card"),
    ("nemotron-3-nano-30b-a3b", parameter_count, "31.6e9", "NVIDIA's announcement of it"),
    ("nemotron-3-nano-30b-a3b", active, "3.2e9", "NVIDIA's announcement of it"),
    ("nemotron-3-super-120b-a12b", parameter_count, "120e9", "Megatron Bridge's page of it"),
    ("nemotron-3-super-120b-a12b", active, "12e9", "Megatron Bridge's page of it"),
    ("nemotron-3-ultra-550b-a55b", parameter_count, "550e9", "Megatron Bridge's page of it"),
    ("nemotron-3-ultra-550b-a55b", active, "55e9", "Megatron Bridge's page of it"),
    ("nemotron-h-8b", parameter_count, "8e9", "its name"),
    ("nemotron-h-56b", parameter_count, "56e9", "its name"),
    ("nemotron-nano-9b-v2", parameter_count, "9e9", "its name"),
    ("mimo-v2-flash", parameter_count, "309e9", "model card, recalled"),
    ("mimo-v2-flash", active, "15e9", "model card, recalled"),
    ("olmo-hybrid-7b", parameter_count, "7e9", "its name"),
    ("minimax-text-01", parameter_count, "456e9", "abstract of its report"),
    ("minimax-text-01", active_blocks, "45.9e9", "abstract of its report"),
    ("minimax-m2", parameter_count, "23e10", "README of MiniMax-AI/MiniMax-M2"),
    ("minimax-m2", active, "10e9", "README of MiniMax-AI/MiniMax-M2"),
    ("qwen3-next-80b-a3b", without_tables, "79e9", "model card"),
    ("qwen3-next-80b-a3b", active, "3e9", "model card"),
    ("qwen3.5-35b-a3b", parameter_count, "35e9", "model card"),
    ("qwen3.5-35b-a3b", active, "3e9", "model card"),
    ("granite-3.1-1b-a400m", parameter_count, "1.3e9", "model card, recalled"),
    ("granite-3.1-1b-a400m", active_blocks, "0.4e9", "its name"),
    ("granite-3.1-3b-a800m", parameter_count, "3.3e9", "model card, recalled"),
    ("granite-3.1-3b-a800m", active_blocks, "0.8e9", "its name"),
    ("lfm2-350m", parameter_count, "354e6", "model card, recalled"),
    ("lfm2-700m", parameter_count, "742e6", "model card, recalled"),
    ("lfm2-1.2b", parameter_count, "1.17e9", "model card, recalled"),
    ("lfm2-8b-a1b", parameter_count, "8.3e9", "model card, recalled"),
    ("lfm2-8b-a1b", active, "1.5e9", "model card, recalled"),
    ("lfm3-1.7b", parameter_count, "1.7e9", "its name"),
    ("starcoder2-3b", parameter_count, "3.03e9", "model card, recalled"),
    ("starcoder2-7b", parameter_count, "7.17e9", "model card, recalled"),
    ("starcoder2-15b", parameter_count, "16.0e9", "model card, recalled"),
    ("jais2-8b", parameter_count, "8e9", "its name"),
    ("laguna-xs.2", parameter_count, "33e9", "its page"),
    ("laguna-xs.2", active, "3e9", "its page"),
    ("step-3.7-flash", parameter_count, "196e9", "vLLM's page on it, of its text model"),
    ("step-3.7-flash", active, "11e9", "the same"),
    ("phi-1.5", parameter_count, "1.4e9", "the sum that Hugging Face shows, recalled; its model card says 1.3"),
    ("phi-2", parameter_count, "2.7e9", "model card, recalled"),
    ("helium-1-preview-2b", parameter_count, "2e9", "its name"),
    ("bamba-9b", parameter_count, "9.78e9", "transformers' documentation of it"),
    ("falcon-h1-0.5b", parameter_count, "521411104", "its report, recalled"),
    ("falcon-h1-1.5b-deep", parameter_count, "1.55e9", "the sum that Hugging Face shows, recalled"),
    ("falcon-h1-7b", parameter_count, "7.59e9", "the sum that Hugging Face shows, recalled"),
    ("falcon-h1-34b", parameter_count, "33642516224", "its report, recalled"),
    ("mellum2-12b-a2.5b", parameter_count, "12e9", "its name"),
    ("hyperclovax-seed-think-14b", parameter_count, "14.7e9", "model card, recalled"),
    ("internlm3-8b", parameter_count, "8e9", "its name"),
    ("iquest-coder-v1-40b", parameter_count, "40e9", "its name"),
    ("ling-3.0-flash", parameter_count, "124e9", "model card"),
    ("ling-3.0-flash", active, "5.1e9", "model card"),
    ("kimi-linear-48b-a3b", parameter_count, "49e9", "the sum that Hugging Face shows, recalled; its name says 48"),
    ("kimi-linear-48b-a3b", active, "3e9", "model card, recalled"),
    ("flexolmo-7x7b", parameter_count, "33e9", "another project's account of it"),
    ("kolibri-1", parameter_count, "78103074560", "a page on a quantised form of it"),
    ("kolibri-1", active, "3.46e9", "the same"),
    ("stablelm-3b-4e1t", parameter_count, "2795443200", "model card"),
    ("stablelm-2-1.6b", parameter_count, "1.644e9", "model card, whose last digits are not the checkpoint's"),
    ("stablelm-2-12b", parameter_count, "12.143e9", "the same"),
    ("granite-swash-3b-a600m", parameter_count, "3.02e9", "a table of KV caches in another project"),
    ("granite-swash-3b-a600m", active, "0.598e9", "the same"),
    ("granite-4.0-h-small", parameter_count, "32e9", "model card"),
    ("granite-4.0-h-small", active, "9e9", "model card"),
    ("qwen3.8-flash-next", without_ngrams, "125e9", "a list of deployments in another project"),
    ("qwen3.8-flash-next", ngrams, "51e9", "the same"),
    ("qwen3.8-flash-next", met_blocks, "6e9", "the same"),
    ("sarvam-30b", parameter_count, "32.1e9", "another project's count; its name says 30"),
    ("sarvam-30b", met_blocks, "2.4e9", "its page"),
    ("sarvam-105b", parameter_count, "106e9", "a page on it; its name says 105"),
    ("sarvam-105b", met_blocks, "10.3e9", "model card"),
    ("jamba-1.5-mini", parameter_count, "52e9", "model card"),
    ("jamba-1.5-mini", active, "12e9", "model card"),
    ("jamba-1.5-large", parameter_count, "398e9", "model card"),
    ("jamba-1.5-large", active, "94e9", "model card"),
    ("jamba-reasoning-3b", parameter_count, "3e9", "its name"),
    ("falcon-mamba-7b", parameter_count, "7.27e9", "its report, recalled"),
    ("mamba-2.8b", parameter_count, "2.8e9", "its name"),
)
"""Model, what is counted, the number with the digits that were published, who says so."""


@pytest.mark.parametrize(("name", "count", "published", "source"), PUBLISHED)
def test_a_built_in_model_is_as_large_as_its_publisher_says(
    name: str, count: Callable[[ModelSpec], int], published: str, source: str
) -> None:
    """Within one unit of the last digit, since some publishers round and others cut."""
    number = Decimal(published)
    unit = Decimal(1).scaleb(int(number.as_tuple().exponent))
    assert abs(count(load_model(name)) - number) <= unit, source
