"""Scripts with Megatron-LM's arguments, as their authors write them: quotes, arrays, variables, other frameworks'."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.interop.written_layout import WrittenLayout, read_written_layout

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def script(text: str) -> WrittenLayout:
    Path("train.sh").write_text(text)
    return read_written_layout("train.sh")


@pytest.mark.parametrize(
    "text",
    [
        '(\n  "--num-layers 32"\n  "--hidden-size 4096" --swiglu\n  "--recompute-modules=core_attn mlp"\n)',
        'ARGS="--num-layers 32 --hidden-size=4096"\nMORE="\n  --swiglu --recompute-modules core_attn mlp\n"',
        'ARGS+=" --hidden-size=4096 --num-layers=32 --swiglu"\necho "a --num-layers 7"; --recompute-modules core_attn mlp',
    ],
)
def test_quotes_around_several_words(text: str) -> None:
    found = script(f"{text}\n--recompute-granularity selective")
    said = {name: value for name, (_, value) in found.model.said.items()}
    assert said == {"num_hidden_layers": 32, "hidden_size": 4096, "activation": "swiglu"}
    assert found.options["recompute"] == "core_attention+mlp"
    assert found.left_out == ()
