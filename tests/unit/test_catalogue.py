"""The lists of what can be named: models with the sizes that are published, instances with those of their files."""

import json

import pytest

import autoshard
from autoshard.cli import main


def names(text: str) -> list[str]:
    return [one.name for one in autoshard.list_models(text).rows]


def test_every_built_in_model_is_listed_once() -> None:
    assert tuple(names("")) == autoshard.builtin_models()


@pytest.mark.parametrize(
    ("name", "published_b"),
    [
        *(("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.1), ("llama3-8b", 8.0), ("qwen3-235b-a22b", 22.2)),
        *(("nemotron-3-super-120b-a12b", 12.7), ("nemotron-3-ultra-550b-a55b", 56), ("kimi-k2", 32.6)),
    ],
)
def test_parameters_of_a_token_are_those_that_are_published(name: str, published_b: float) -> None:
    """Published: in the models' cards and reports."""
    (row,) = autoshard.list_models(name).rows
    assert row.num_active_parameters == pytest.approx(1e9 * published_b, rel=0.01)


def test_a_token_meets_all_parameters_of_a_dense_model() -> None:
    (row,) = autoshard.list_models("llama3-70b").rows
    assert row.num_active_parameters == row.num_parameters == 70_553_706_496


def test_all_words_are_asked_for_in_any_of_the_names() -> None:
    assert names("mixtral 8x7b") == ["mixtral-8x7b"]
    assert names("META-LLAMA 405b") == ["llama3.1-405b"]  # of its repository
    assert "deepseek-v3.2" in names("latent indexer")  # of what it is built of


def test_a_model_is_described_in_words() -> None:
    said = {one.name: one.built_of for one in autoshard.list_models().rows}
    assert said["llama3-8b"] == "32 x full_attention"
    assert said["gemma4-e2b"] == (
        "28 x sliding_attention, 7 x full_attention; 20 with keys and values of another one; an input of its own in "
        "each block"
    )
    assert said["gemma3-27b"] == "52 x sliding_attention, 10 x full_attention"
    assert said["deepseek-v3"] == "61 x latent attention; 8 of 256 experts and a shared one in 58 blocks"
    assert said["nemotron-h-8b"] == "24 x mamba, 24 x MLP or experts alone, 4 x full_attention"


def test_an_instance_has_the_numbers_of_its_file() -> None:
    (row,) = autoshard.list_instances("trn2u").rows
    cluster = autoshard.cluster("trn2u.48xlarge")
    assert (row.devices_per_node, row.lnc, row.nodes_per_domain) == (64, 2, 4)
    assert row.memory_bytes == cluster.device.memory_bytes
    assert row.network_bytes_per_s == 16 * cluster.inter_node.bandwidth_bytes_per_s


def test_every_instance_is_listed_and_found_by_its_other_names() -> None:
    assert tuple(one.name for one in autoshard.list_instances().rows) == autoshard.instances()
    assert [one.name for one in autoshard.list_instances("p5en").rows] == ["h200-141gb"]


def test_the_commands_print_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["models", "mixtral", "8x7b"]) == 0
    assert capsys.readouterr().out == (
        "  model         parameters  of a token  positions  blocks\n"
        "  mixtral-8x7b      46.7 B      12.9 B     32,768  32 x full_attention; 2 of 8 experts\n"
        "  --model takes these names, the Hugging Face repositories of these models, a Hugging Face\n"
        "  config.json or a folder with one, and my_file.py:MyModel.\n"
    )
    assert main(["instances", "gb200"]) == 0
    assert capsys.readouterr().out == (
        "  instance     devices  memory  bf16 TFLOP/s   network\n"
        "  gb200-186gb        4  199 GB         2,500  116 GB/s  also p6e-gb200.36xlarge; domains of 18 nodes\n"
        "  Memory and TFLOP/s are of one device; the network is of a node, as achieved. --hardware takes a\n"
        "  hardware file of your own.\n"
    )


def test_a_narrow_terminal_has_no_empty_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for command in ("models", "instances"):
        assert main([command]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(lines)
        assert all(len(line) <= 60 for line in lines)


def test_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["instances", "trn1.32xlarge", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == autoshard.list_instances("trn1.32xlarge").to_list()[0] | {"aliases": []}
    assert row["price_per_node_hour_usd"] == 21.50


def test_words_that_nothing_has_are_told_with_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "lamma3-70b"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: no model has 'lamma3-70b' in its names; did you mean llama3-70b or llama3.1-70b or "
        "llama2-70b?\n"
    )
    with pytest.raises(
        autoshard.AutoshardError, match=r"^5 are no words to look for; give a text, such as 'qwen3 experts'$"
    ):
        autoshard.list_models(5)  # type: ignore[arg-type]
