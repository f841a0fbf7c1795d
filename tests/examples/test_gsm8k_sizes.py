"""What examples/gsm8k/README.md says of each size of Qwen2.5 is what hpcrl estimates; its commands can be planned."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.experiments import load_config, write_inputs, write_model

from hpcrl.cli.main import main
from hpcrl.config.model import TrainedModelConfig
from hpcrl.errors import ExitCode
from hpcrl.families.reader import parameter_count, read_config
from hpcrl.placement.check import placement_problems
from hpcrl.placement.disk import estimate_disk
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import estimate_models, role_memory
from hpcrl.placement.plan import plan_for
from hpcrl.placement.sizes import GIB
from hpcrl.placement.worker_memory import peaks

EXAMPLE = Path(__file__).parents[2] / "examples" / "gsm8k"
LINES = (EXAMPLE / "README.md").read_text().splitlines()
COMMANDS = [line for line in LINES if line.startswith("hpcrl plan ")]
ROWS = [cells for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in LINES) if len(cells) == 7]
SIZES = [cells for cells in ROWS if cells[0].endswith("B")]
LAYOUTS = [cells for cells in ROWS if re.fullmatch(r"d\d[pt]\d", cells[0])]
RECIPES = ("sft", "grpo", "ppo")
FREE = 0.9 * 79
"""GiB of a GPU of 80 GB, less the tenth that the page leaves free."""
SHAPES = {
    "0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "3B": (2048, 11008, 36, 16, 2, 151936, True),
    "7B": (3584, 18944, 28, 28, 4, 152064, False),
}
"""As published: hidden and intermediate size, layers, heads, of keys and values, vocabulary, tied."""
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the published shapes for each size, whose weights take no space."""
    folder = tmp_path_factory.mktemp("models")
    for size, shape in SHAPES.items():
        write_model(folder / f"Qwen2.5-{size}", **dict(zip(FIELDS, shape, strict=True)), max_position_embeddings=32768)
    return folder


def estimated(recipe: str, models: Path, settings: list[str]) -> float:
    """GiB of the worker that needs most, on GPUs."""
    at = [setting.replace("=models/", f"={models}/") for setting in settings]
    experiment: Any = load_config(EXAMPLE / f"{recipe}.yaml", [*at, "cluster.device=cuda"], checks=[placement_problems])
    plan = plan_for(experiment)
    return max(load.bytes for load in peaks(plan, estimate_models(plan, experiment), "cuda")) / GIB


def given(command: str) -> list[str]:
    """The settings of a command, as KEY=VALUE."""
    words = shlex.split(command)[3:]
    return [f"{key.removeprefix('--')}={value}" for key, value in zip(words[::2], words[1::2], strict=True)]


def given_of(command: str, setting: str) -> str:
    """What a command sets it to."""
    words = shlex.split(command)
    return words[words.index(f"--{setting}") + 1] if f"--{setting}" in words else ""


def recipe_of(command: str) -> str:
    return Path(shlex.split(command)[2]).stem


def test_the_page_tells_of_every_size() -> None:
    assert [row[0] for row in SIZES] == list(SHAPES)
    assert [row[0] for row in LAYOUTS] == ["d4p2", "d2p4", "d4t2", "d2t4"]
    planned = [(given_of(command, "actor.path"), given_of(command, "actor.layout")) for command in COMMANDS]
    assert planned == [
        ("models/Qwen2.5-0.5B", ""),
        ("models/Qwen2.5-1.5B", ""),
        ("models/Qwen2.5-3B", ""),
        ("models/Qwen2.5-7B", "d4p2"),
        ("models/Qwen2.5-7B", "d2p4"),
        ("models/Qwen2.5-7B", "d2t4"),
    ]


@pytest.mark.parametrize("row", [*SIZES, *LAYOUTS], ids=lambda row: row[0])
def test_a_worker_takes_what_the_tables_say(row: list[str], models: Path) -> None:
    what, tokens, slots, *figures, fits = row
    size, layout = (what, None) if what in SHAPES else ("7B", what)
    found = {}
    for recipe, figure in zip(RECIPES, figures, strict=True):
        trained = ("actor", "critic") if recipe == "ppo" else ("actor",)
        settings = [
            f"{role}.{key}"
            for role in trained
            for key in (f"path=models/Qwen2.5-{size}", f"micro_batch_tokens={tokens}")
        ]
        if layout is not None:
            every = trained if recipe == "sft" else (*trained, "reference")
            settings += [f"{role}.layout={layout}" for role in every]
        found[recipe] = estimated(recipe, models, [*settings, f"generation.slots={slots}"])
        assert found[recipe] == pytest.approx(float(figure), abs=0.051)
    fitting = [recipe for recipe, gib in found.items() if gib < FREE]
    assert fits == ("all" if fitting == list(RECIPES) else ", ".join(fitting))


def test_the_commands_take_what_the_tables_say(models: Path) -> None:
    table = [float(row[4]) for row in SIZES[:3]] + [
        float(LAYOUTS[row][column]) for row, column in ((0, 4), (1, 5), (3, 5))
    ]
    found = [estimated(recipe_of(command), models, given(command)) for command in COMMANDS]
    assert found == pytest.approx(table, abs=0.051)


def test_7b_beside_its_reference_is_too_much_for_80_gb_over_data_alone_on_any_number_of_nodes(models: Path) -> None:
    size = ["actor.path=models/Qwen2.5-7B", "actor.micro_batch_tokens=2048", "generation.slots=32"]
    found = estimated("grpo", models, [*size, "cluster.nodes=4"])
    assert found > FREE
    assert found == pytest.approx(74.9, abs=0.051)


def test_what_7b_takes_however_many_workers_there_are(models: Path) -> None:
    model, count = read_config(models / "Qwen2.5-7B"), parameter_count(read_config(models / "Qwen2.5-7B"))
    own = role_memory(model, count, TrainedModelConfig(path="-", dtype="bf16"), Layout(dp=8), device="cuda")
    assert (own.parameters + own.gradients) / GIB == pytest.approx(42.6, abs=0.051)
    settings = [f"actor.path={models / 'Qwen2.5-7B'}", "cluster.device=cuda"]
    settings += [f"critic.path={models / 'Qwen2.5-7B'}"]
    disk = estimate_disk(load_config(EXAMPLE / "ppo.yaml", settings, checks=[placement_problems]))
    assert disk.checkpoint["actor"] / GIB == pytest.approx(85.1, abs=0.051)
    assert disk.checkpoint["critic"] / GIB == pytest.approx(79.0, abs=0.051)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(shlex.split(command)[4:]))
def test_the_commands_plan_a_tiny_stand_in(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_inputs(tmp_path)
    write_model(tmp_path / "model", num_hidden_layers=4)
    monkeypatch.chdir(tmp_path)
    words = [str(EXAMPLE.parents[1] / word) if word.endswith(".yaml") else word for word in shlex.split(command)[1:]]
    words = ["model" if word.startswith("models/") else word for word in words]
    small = {
        "data.train": "rows.jsonl",
        "data.evaluate": "rows.jsonl",
        "data.max_prompt_tokens": "40",
        "cluster.device": "cpu",
    }
    small |= {"data.prompt_template": "{prompt}", "data.batch_size": "8", "generation.max_new_tokens": "24"}
    stand_in = [word for key, value in small.items() for word in (f"--{key}", value)]
    assert main([*words, *stand_in]) == ExitCode.DONE, capsys.readouterr().err
