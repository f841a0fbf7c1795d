from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.master.verification import Verification, shards_by_rank
from hpcrl.wire.messages import ShardsVerified


def manifest(step: int, **shards: int) -> Manifest:
    roles = {role: tuple(FileRef(f"{role}.r{i}", 1, 0) for i in range(number)) for role, number in shards.items()}
    return Manifest(step, 0, roles, 0, step, {})


def read(verification: Verification, step: int, *ranks: int, damage: str = "") -> str:
    verification.begun(step, ranks)
    return "".join(verification.told(ShardsVerified(step, rank, damage)) for rank in ranks)


def test_each_rank_reads_back_what_it_wrote_and_ranks_of_today_share_what_others_did() -> None:
    homes = {"actor": (4, 5), "critic": (2,)}
    dealt = shards_by_rank(manifest(1, actor=2, critic=1), homes)
    assert {rank: [ref.name for ref in refs] for rank, refs in dealt.items()} == {
        4: ["actor.r0"],
        5: ["actor.r1"],
        2: ["critic.r0"],
    }
    dealt = shards_by_rank(manifest(1, actor=5, gone=3), homes)
    assert {rank: [ref.name for ref in refs] for rank, refs in dealt.items()} == {
        4: ["actor.r0", "actor.r2", "actor.r4", "gone.r1"],
        5: ["actor.r1", "actor.r3", "gone.r2"],
        2: ["gone.r0"],
    }


def test_what_is_kept_counts_once_all_of_it_was_read_back_by_everybody() -> None:
    verification = Verification([manifest(2), manifest(4)], loaded=[4], keep=2)
    verification.add(manifest(6))
    assert [due.step for due in verification.due()] == [6], "that of step 4 was loaded"
    verification.begun(6, [0, 1])
    assert not verification.due() and not verification.idle
    assert verification.told(ShardsVerified(6, 0)) == "" and not verification.verified()
    assert verification.told(ShardsVerified(6, 1)) == "" and verification.idle
    assert [each.step for each in verification.verified()] == [4, 6]


def test_one_that_is_damaged_is_dropped_and_an_older_one_is_read_in_its_place() -> None:
    verification = Verification([manifest(2)], loaded=[], keep=2)
    for step in (4, 6):
        verification.add(manifest(step))
    assert [due.step for due in verification.due()] == [4, 6]
    assert read(verification, 4, 0, 1, damage="other bits") == "other bits; other bits"
    assert [due.step for due in verification.due()] == [2, 6] and not verification.has(4)
    assert read(verification, 2, 0) == read(verification, 6, 0) == ""
    assert [each.step for each in verification.verified()] == [2, 6]


def test_a_checkpoint_without_shards_is_whole_at_once() -> None:
    verification = Verification([manifest(1)], loaded=[1], keep=2)
    verification.add(manifest(2))
    verification.begun(2, [])
    assert verification.idle and [each.step for each in verification.verified()] == [1, 2]
