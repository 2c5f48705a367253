"""The table of model families: which folder has the graph and the weights of each model_type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType

from autoshard.plugins.table import Table


@dataclass(frozen=True)
class Family:
    """The modules of a family, each imported when it is first asked for: a plan needs one graph and no weights.

    folder: the name of the family's folder. is_published: whether there are Hugging Face configs and checkpoints of
    it, and the folder has a `config.py` and a `weights.py`. package: where the folder is; of a plug-in its own. Without
    a folder the package is one module with all that graph and config have, and no weights. activations: of a plug-in,
    the values of hidden_act that the graph stands for. experts: of a plug-in whose MLP is a mixture, "routed", and
    "shared" where it may have a shared expert too.
    """

    folder: str
    is_published: bool = True
    package: str = "autoshard.models"
    activations: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()

    @cached_property
    def graph(self) -> ModuleType:
        """Module with `embedding(b, model)`, `block(b, model, x, layer, kernel)` and `head(b, model, x)`."""
        return self._module("graph")

    @cached_property
    def config(self) -> ModuleType:
        """Module with `read(config, model_type)` to a ModelSpec, `write(model)` back, ARCHITECTURES (model_type -> the
        class of transformers), and where they differ from others' DROPOUT, UNSUPPORTED and QUANTIZATIONS."""
        assert self.is_published, self.folder
        return self._module("config")

    @cached_property
    def weights(self) -> ModuleType | None:
        """Module with `block(model, layer)` and `ends(model)`, which list parts of the Hugging Face checkpoint, and
        where there are such `fused_block`, of checkpoints with all experts of a block in one tensor, and LEFT_OUT,
        prefixes of tensors that are not read; None if no such checkpoint is known."""
        return self._module("weights") if self.is_published and self.folder else None

    @property
    def config_files(self) -> list[Path]:
        """The published configs in the folder, sorted: models that are known by the name of the file."""
        if not self.folder:
            return []
        (place, *_) = import_module(self.package).__path__
        return sorted((Path(place) / self.folder / "configs").glob("*.json"))

    def _module(self, name: str) -> ModuleType:
        return import_module(f"{self.package}.{self.folder}.{name}" if self.folder else self.package)


LLAMA, QWEN_MOE, DEEPSEEK = Family("llama"), Family("qwen"), Family("deepseek")
GEMMA, OLMO, QWEN_NEXT = Family("gemma"), Family("olmo2"), Family("qwen3_next")
ERNIE, GLM_MOE = Family("ernie4_5"), Family("glm4_moe")
_BUILT_IN = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": Family("mixtral"),
    "gpt2": Family("gpt2"),
    "gpt_neox": Family("gpt_neox"),
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "qwen2_moe": QWEN_MOE,
    "qwen3_moe": QWEN_MOE,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "glm4_moe": GLM_MOE,
    "gpt_oss": Family("gpt_oss"),
    "llama4_text": Family("llama4"),
    "dbrx": Family("dbrx"),
    "smollm3": LLAMA,
    "phi3": Family("phi3"),
    "olmo2": OLMO,
    "granite": LLAMA,
    "qwen3_next": QWEN_NEXT,
    "granitemoehybrid": Family("granite_hybrid"),
    "seed_oss": Family("seed_oss"),
    "glm4": Family("glm4"),
    "ernie4_5": ERNIE,
    "ernie4_5_moe": ERNIE,
    "glm4_moe_lite": DEEPSEEK,
    "olmoe": Family("olmoe"),
    "nemotron": Family("nemotron"),
    "dots1": GLM_MOE,
    "exaone4": OLMO,
    "olmo3": OLMO,
    "qwen3_5_text": QWEN_NEXT,
    "qwen3_5_moe_text": QWEN_NEXT,
    "minimax_m2": Family("minimax_m2"),
    "arcee": Family("arcee"),
    "traced": Family("traced", is_published=False),
}
FAMILIES = Table[Family]("models", lambda value: isinstance(value, Family), "a Family", _BUILT_IN)
"""By model_type, those of plug-ins too."""
