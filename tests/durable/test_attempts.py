from pathlib import Path

import msgspec
from support.events import begin, checkpointed, done, opened, trained
from support.miniature import make_run

from hpcrl.durable.attempts import (
    attempts_without_progress,
    broken_operations,
    newest_nodes,
    nodes_of,
    progress_of,
)
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Broken, Closed, Damaged, Stopped


def test_progress_is_a_finished_call_step_or_checkpoint(root: Path) -> None:
    run = make_run(root / "run")
    assert attempts_without_progress(run, "s") == 0
    begin(run).append([opened(1)])
    run.claim_attempt("s")
    assert attempts_without_progress(run, "s") == 2
    begin(run).append([Stopped("no node came")])
    assert attempts_without_progress(run, "s") == 2
    for progress in (done(1, "gen", 0), trained(1, "actor_train"), Closed(1, {}), checkpointed(1)):
        begin(run).append([progress])
        assert attempts_without_progress(run, "s") == 0
        begin(run)
        assert attempts_without_progress(run, "s") == 1


def test_an_attempt_after_which_the_run_had_another_number_of_nodes_is_not_fruitless(root: Path) -> None:
    run = make_run(root / "run")
    for nodes in (4, 3, 3, 2):
        begin(run).append([opened(1)])
        workers = [{"node": node, "rank": node} for node in range(nodes)]
        run.files.publish(run.plan(run.numbers()[-1]), msgspec.json.encode({"workers": workers}), "plan")
    assert nodes_of(run, 0) == (0, 1, 2, 3) and newest_nodes(run) == (0, 1)
    # The first was followed by three nodes, the third by two; the other two have just failed.
    assert attempts_without_progress(run, "s") == 2


def test_a_new_submission_has_made_no_fruitless_attempt(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    run.claim_attempt("another")
    assert attempts_without_progress(run, "another") == 1
    assert attempts_without_progress(run, "third") == 0


def test_how_far_a_run_is_changes_with_everything_that_is_finished_and_with_nothing_else(root: Path) -> None:
    run = make_run(root / "run")
    journal = begin(run)
    said = [progress_of(run)]
    for progress in (done(1, "gen", 0), done(1, "gen", 1), trained(1, "actor_train"), Closed(1, {}), checkpointed(1)):
        journal.append([opened(1)])
        assert progress_of(run) == said[-1]
        journal.append([progress])
        said.append(progress_of(run))
    begin(run, read_history(run)).append([opened(2)])
    assert progress_of(run) == said[-1]
    begin(run, read_history(run)).append([done(2, "gen", 0)])
    assert len({*said, progress_of(run)}) == 7


def test_an_attempt_that_found_a_checkpoint_damaged_is_not_one_in_vain(root: Path) -> None:
    run = make_run(root / "run")
    begin(run).append([opened(1)])
    begin(run).append([Damaged(1, FileRef("checkpoints/step-00000001.a000/MANIFEST.json", 1, 1), "other bits")])
    begin(run).append([opened(1)])
    assert attempts_without_progress(run, "s") == 2


def test_what_broke_is_known_until_something_was_trained_after_it_and_to_its_own_submission_alone(root: Path) -> None:
    run = make_run(root / "run")
    broken = [Broken("step 1 actor_train, part 0", (0, 1), "all-to-all", number) for number in range(4)]
    begin(run).append([trained(1, "critic_train"), broken[0]])
    assert broken_operations(run, "s") == {broken[0]}
    begin(run).append([done(1, "inf", 0)])
    begin(run).append([broken[1]])
    assert broken_operations(run, "s") == {broken[0], broken[1]}
    begin(run).append([trained(1, "actor_train"), broken[2]])
    assert broken_operations(run, "s") == {broken[2]}
    run.claim_attempt("another")
    assert broken_operations(run, "another") == frozenset()
