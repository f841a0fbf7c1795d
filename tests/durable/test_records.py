from typing import get_args

from hpcrl.data.user_code import CodeSetting
from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Event, Numerics, Prefix
from hpcrl.durable.older_lines import Archives, Newest, OlderLines
from hpcrl.durable.records import (
    FORMAT,
    Answer,
    Claim,
    CodeCopy,
    Command,
    CopiedFile,
    RunRecord,
    SettingsRecord,
    Submission,
    SubmittedSettings,
    Verdict,
    changed_inputs,
)

WRITTEN = """
Opened: step ids cursor calls partitions epoch minibatches seed checkpoint export eval_ids eval_partitions chooses \
empty_before scripted begun
Extended: step ids cursor calls partitions round going
Chosen: step ids cursor calls partitions minibatches dropped carried whole
Called: step number call ids inputs parts partitions minibatches version settings arguments at
Once: step number call arguments result settings at
SetAside: step
Done: step call part spill group stats settings scores version
Returned: step call part values settings version
Trained: step call record stats before numerics settings version shown
Blended: step call record stats before numerics settings version shown source
Closed: step metrics turn
Compacted: step spill
Checkpointed: step manifest
Damaged: step manifest what
Exported: step role path
Archived: step samples lost
Pruned: before_step
Accepted: name fingerprint
Stopped: reason
Broken: what group operation number
Forked: parent step settings
Adopted: prefixes files
Prefix: attempt size crc32
Numerics: workers hardware software threads inexact micro_batch_tokens deterministic layout backend neighbours \
attention
FileRef: name size crc32
Manifest: step attempt roles epoch cursor digests older turn earlier
OlderLines: step prefixes lines newest metrics accepted numerics archives checkpoint
Archives: attempt first last
Newest: version numerics
RunRecord: format experiment host inputs created digest
Submission: nonce jobs number time
SettingsRecord: version experiment code created digest
SubmittedSettings: version digest
CodeCopy: settings files digest
CodeSetting: place files
CopiedFile: size digest
Claim: submission host pid pid_started boot_id time
Verdict: attempt state exit_code reason worker call traceback time nature
Command: command submission
Answer: done state attempt time why
"""


def test_the_format_is_of_these_fields() -> None:
    """Where older runs can no longer be resumed, raise FORMAT; in any case write down what is there now."""
    kinds = [
        *get_args(Event),
        Prefix,
        Numerics,
        FileRef,
        Manifest,
        OlderLines,
        Archives,
        Newest,
        RunRecord,
        Submission,
        SettingsRecord,
        SubmittedSettings,
        CodeCopy,
        CodeSetting,
        CopiedFile,
        Claim,
        Verdict,
        Command,
        Answer,
    ]
    lines = [f"{kind.__name__}: {' '.join(kind.__struct_fields__)}" for kind in kinds]
    assert (FORMAT, "\n".join(lines)) == (8, WRITTEN.strip())


def test_changed_added_and_missing_inputs_are_named() -> None:
    assert changed_inputs({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"}) == ["b", "c", "d"]
    assert changed_inputs({"a": "1"}, {"a": "1"}) == []
