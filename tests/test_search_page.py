"""docs/search.md: its commands, in order, for models of 7 billion parameters."""

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest
import yaml
from support.experiments import write_config
from support.seven_billion import write_seven_billion

from hpcrl.cli.arguments import separate
from hpcrl.cli.main import main
from hpcrl.cli.settings import read_experiment
from hpcrl.config.changes import with_nodes
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.ops import search_problem
from hpcrl.placement.data_sheets import rates_of_gpu
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.search_told import RangeTold, SearchTold

PAGE = (Path(__file__).parent.parent / "docs" / "search.md").read_text(encoding="utf-8")
SEARCH, PLAN, SUBMIT, *_ = (shlex.split(line)[1:] for line in re.findall(r"^hpcrl .*$", PAGE, re.MULTILINE))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_seven_billion(tmp_path, batch_size=128)


def test_the_commands_of_the_page_find_a_plan_that_is_faster_and_fits(folder, capsys):
    assert main([*SEARCH, "--proposals", "2000"]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert (
        "best.yaml has plan 1" in shown.err
        and "If responses were 30% shorter" in shown.out
        and "workers of 73.6 GiB" in shown.out
    )
    written = yaml.safe_load((folder / "best.yaml").read_text())
    assert written["actor"]["layout"] and written["cluster"] == {"nodes": 2, "workers_per_node": 8, "device": "cuda"}
    assert not {"allocation", "search"} & written.keys()
    assert PLAN[1] == SUBMIT[1] == "best.yaml"
    typed = ["best.yaml", "--search.device=H100", "--data.batch_size=64"]
    assert main(["plan", "best.yaml", "--device", "H100", typed[2]]) == ExitCode.DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert "A step is expected to take" in shown and f"`hpcrl simulate {' '.join(typed)}`" in shown
    assert main(["simulate", *typed, "--steps", "2"]) == ExitCode.DONE
    capsys.readouterr()
    assert main([*SEARCH[:-2], "--json", "--proposals", "2000"]) == ExitCode.DONE
    answer = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    main(["search", "best.yaml", "--device", "H100", "--proposals", "10", "--json"])
    again = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    own = next(it for it in again.others if it.name == "the settings")
    assert own.step_s == pytest.approx(answer.plans[0].step_s)
    assert answer.plans[0].fits and answer.workers == 16 and not answer.is_optimal
    simulated = [it.simulated_s for it in answer.plans]
    assert None not in simulated and simulated == sorted(simulated)
    assert all(it.simulated_s == pytest.approx(it.step_s, rel=0.1) for it in answer.plans)
    fitting = [it.step_s for it in answer.others if it.fits]
    assert fitting and answer.plans[0].step_s < min(fitting)
    homes = {it.call: it for it in answer.plans[0].calls}
    assert homes["actor_train"].layout == written["actor"]["layout"].replace("t1", "").replace("p1", "")


CPU, CUDA = ("--cluster.device", "cpu"), ("--cluster.device", "cuda")
H100 = (*CUDA, "--device", "H100")
TWO = ("--nodes", "2", *H100)
MEASURED, LENGTHS = (*TWO[:-2], "--profile", "h100.json"), (*TWO, "--lengths", "lengths.jsonl")
REFUSED = (
    (CUDA, "Which GPUs the workers have is not known here.", TWO),
    ((*CUDA, "--device", "H99"), "H99 is no GPU whose data sheet hpcrl knows", TWO),
    ((*CUDA, "--device", "T4"), "actor.dtype = bf16, but of bf16 nothing is known of T4", TWO),
    ((*CPU, "--device", "H100"), "search.device = H100 is a GPU, but cluster.device = cpu.", TWO),
    ((*CPU, "--profile", "gone.json"), "gone.json cannot be read", MEASURED),
    ((*CPU, "--profile", "rows.jsonl"), "is no profile: it is JSON of something else", MEASURED),
    ((*CPU, "--profile", "h100.json"), "h100.json is of H100, but cluster.device = cpu", TWO),
    ((*TWO, "--lengths", "gone"), "gone does not exist.", LENGTHS),
    ((*TWO, "--proposals", "0"), "search.proposals = 0 must be at least 1", TWO),
    (H100, "No plan fits these 2 workers", TWO),
)
"""Words, what is said of them, and what the advice leads to."""


@pytest.mark.parametrize("right", (TWO, MEASURED, LENGTHS), ids=("data sheet", "profile", "lengths"))
def test_what_it_cannot_search_with_is_refused_and_the_advice_leads_on(folder, capsys, right):
    (folder / "h100.json").write_bytes(rates_of_gpu("H100").to_json())
    (folder / "lengths.jsonl").write_text('{"prompt": 20, "response": 100}')
    search = ["search", "ppo.yaml", "--cluster.workers_per_node", "2", "--search.seed", "2", "--out", "best.yaml"]
    for words, said, leads in REFUSED:
        if leads == right:
            assert main([*search, *words]) == ExitCode.CONFIGURATION, words
            assert said in capsys.readouterr().err, words
            assert not (folder / "best.yaml").exists()
    assert main([*search, *right, "--proposals", "4000"]) == ExitCode.DONE
    assert (folder / "best.yaml").exists()


def test_where_nothing_fits_the_fullest_worker_and_its_room_are_told(folder, capsys):
    words = ["search", "ppo.yaml", "--cluster.workers_per_node", "2", *H100, "--proposals", "400", "--out", "best.yaml"]
    assert main(words) == ExitCode.CONFIGURATION
    said = " ".join(capsys.readouterr().err.split())
    found = re.search(r"2 workers of 73\.60 GiB: .* needs ([\d.]+) GiB on its fullest worker, in \w+\. Add nodes", said)
    assert found is not None and float(found[1]) > 73.6


def test_a_batch_that_does_not_fill_all_workers_is_searched_for(folder, capsys):
    words = [*SEARCH[:-2], "--data.batch_size", "4", "--reward.mesh", "0", "--proposals", "400", "--json"]
    assert main(words) == ExitCode.DONE
    answer = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    assert answer.workers == 16 and "the settings" not in {it.name for it in answer.others}
    layouts = [parse_layout(call.layout) for plan in answer.plans for call in plan.calls if call.call != "rew_inf"]
    assert max(layout.dp for layout in layouts) <= 4


def test_a_range_says_how_each_number_is_searched_in_full(folder, capsys):
    words = ["ppo.yaml", "--cluster.workers_per_node", "4", *H100, "--proposals", "40", "--nodes", "2-3"]
    assert main(["search", *words]) == ExitCode.DONE
    (aid,) = re.findall(r"Each in full: hpcrl (.* --nodes 3) ", " ".join(capsys.readouterr().out.split()))
    typed = shlex.split(aid)
    assert typed[:2] == ["search", "ppo.yaml"] and typed[-2:] == ["--nodes", "3"]
    assert "--search.device=H100" in typed and not any("2-3" in word for word in typed)
    assert main(typed) == ExitCode.DONE


@pytest.mark.slow
def test_of_a_range_of_nodes_a_plan_is_kept_for_each_number(folder, capsys):
    words = ["search", "ppo.yaml", "--cluster.workers_per_node", "2", *H100, "--proposals", "400"]
    assert main([*words, "--nodes", "1-2", "--out", "best.yaml"]) == ExitCode.CONFIGURATION
    assert "on 1 node: No plan fits these 2 workers" in capsys.readouterr().err and not Path("best.yaml").exists()
    assert main([*words, "--nodes", "2-3", "--out", "best.yaml"]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert "2-3 nodes of 73.6 GiB a worker" in shown.out and "best.yaml has plan 1" in shown.err
    written = yaml.safe_load((folder / "best.yaml").read_text())
    assert written["cluster"]["nodes"] == "2-3" and list(written["on_nodes"]) == ["2", "3"]
    assert "layout" not in written["actor"] and written["actor"]["path"]
    asked = _settings([*words[2:-4], "--search.device", "H100", "--search.proposals", "400", "--nodes", "2-3"])
    settled = read_experiment("ppo.yaml", [*asked, "allocation=search"])
    assert settled.allocation == "manual" and settled.on_nodes == written["on_nodes"]
    capsys.readouterr()
    assert main([*words, "--nodes", "2-3", "--json"]) == ExitCode.DONE
    numbers = msgspec.json.decode(capsys.readouterr().out, type=RangeTold).numbers
    assert [(it.nodes, it.found.workers) for it in numbers] == [(2, 4), (3, 6)]
    for it in numbers:
        experiment = with_nodes(read_experiment("best.yaml", []), it.nodes)
        home = next(call for call in it.found.plans[0].calls if call.call == "actor_train")
        assert parse_layout(experiment.actor.layout).short == home.layout
    assert main(["search", "best.yaml", "--nodes", "3", *H100, "--proposals", "10"]) == ExitCode.DONE


def test_lengths_may_come_of_a_file(folder, capsys):
    lines = [json.dumps({"prompt": 20, "response": length}) for length in (100, 200, 300)]
    (folder / "lengths.jsonl").write_text("\n".join(lines))
    main([*SEARCH[:-2], "--proposals", "100", "--lengths", "lengths.jsonl", "--json"])
    answer = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    assert answer.notices[0].startswith("Texts: prompts of 20 ± 0 tokens, responses of 200 ± 82; as in /")


def test_allocation_search_gives_the_same_at_submit(folder, capsys):
    words = ["ppo.yaml", "--nodes", "2", "--cluster.workers_per_node", "2", "--cluster.device", "cuda"]
    asked = ["--search.device", "H100", "--search.proposals", "3000"]
    assert main(["search", *words, *asked, "--json"]) == ExitCode.DONE
    answer = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    home = next(it for it in answer.plans[0].calls if it.call == "actor_train")
    settled = read_experiment("ppo.yaml", [*_settings(words[1:] + asked), "allocation=search"])
    said = capsys.readouterr().err
    assert "hpcrl: searching for an allocation" in said and "allocation = search gives actor.layout" in said
    assert settled.allocation == "manual" and settled.cluster.device == "cuda"
    assert parse_layout(settled.actor.layout).short == home.layout
    assert settled.actor.micro_batch_tokens == home.micro_batch_tokens


def test_a_graph_that_is_too_large_is_refused_and_the_heuristic_takes_it(folder, monkeypatch):
    monkeypatch.setitem(search_problem.LIMITS, "calls", 3)
    words = _settings(["--nodes", "2", "--cluster.workers_per_node", "2", "--cluster.device", "cuda"])
    with pytest.raises(ConfigurationError, match="No search for this graph: there are 7 calls; 1 to 3") as refused:
        read_experiment("ppo.yaml", [*words, "search.device=H100", "allocation=search"])
    assert refused.value.advice == ("Set allocation to heuristic.",)
    assert read_experiment("ppo.yaml", [*words, "allocation=heuristic"]).actor.layout


def _settings(words):
    return separate(words, ())[1]


def test_a_reference_that_is_the_actor_counts_where_the_actor_is(folder, capsys):
    values = yaml.safe_load((folder / "ppo.yaml").read_text())
    values["actor"]["lora"], values["reference"] = {"rank": 4}, {"of": "actor", "dtype": "bf16"}
    write_config(folder / "lora.yaml", values)
    words = ["--nodes", "1", "--cluster.workers_per_node", "2", *H100, "--proposals", "200", "--json"]
    main(["search", "lora.yaml", *words])
    answer = msgspec.json.decode(capsys.readouterr().out, type=SearchTold)
    assert not [notice for notice in answer.notices if notice.startswith("ref_inf")]
