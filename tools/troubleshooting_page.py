"""docs/troubleshooting.md: what each verdict of `hpcrl inspect RUN why` means, and what to do.

`make docs` writes the page; a test compares it with what the verdicts say now.
"""

from collections.abc import Iterator
from pathlib import Path

from hpcrl.inspect.verdicts import VERDICTS

PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
HEAD = """# Troubleshooting

```sh
hpcrl inspect RUN why
```

says of every attempt that ended early what caused that, even if the run recovered afterwards or is waiting for nodes.
(An attempt is one start of a run's processes; a run has a new attempt after each interruption.) It reads only the run
directory, so it works on a login node or a laptop, without Slurm or torch.

```
attempt 0
cause    user's code (certain): worker-0 in step 0 eval_rew, part 0
         UserCodeError: reward.function score.py:score failed on row '0'
         prompt: '2+4='
         response: '711122'
         KeyError: 'label'
           File "/home/me/score.py", line 5, in score
             return row['label']
                    ~~~^^^^^^^^^
evidence attempts/000/logs/worker-0.jsonl:7  failed
         attempts/000/events.jsonl:22  ending
folded   3 workers whose calls failed with it
next     hpcrl resume RUN
```

- `cause` has the verdict, how sure it is, and the process with which it began. When one process dies, others fail too:
  these later failures are counted under `folded`. *certain*: a process or Slurm recorded the cause. *likely*: it is
  inferred from which process fell silent, or from the words of an error message.
- Below it is what happened, with the lines of your own code. `--traceback` shows all lines, `--json` gives everything
  as JSON.
- Wall clocks of nodes may be wrong, or be set meanwhile: times are the master's. Where two workers raise errors so
  shortly after one another that the clocks do not say which was first, `cause` says that, with the clocks' error in ms.
- `evidence` names files in the run directory, with line numbers; `hpcrl logs RUN --around first-failure` shows what all
  processes did then.
- `next` is the command to type after you have dealt with the cause. There is none if the run continued by itself.
  Settings and numbers in it are examples: take those that the message names.

`hpcrl status`, `hpcrl submit` and `hpcrl inspect RUN` say the same of the newest attempt. `hpcrl inspect RUN` has a
line for each attempt, with what its end has cost. If no attempt ended early, `why` says so. The verdicts, one by one:
"""


def page() -> str:
    return "\n".join([HEAD, *_verdicts()])


def _verdicts() -> Iterator[str]:
    for kind, verdict in VERDICTS.items():
        yield from (f"## {kind}", "", f"{verdict.means} {verdict.do}", "")
        yield from ("```sh", verdict.next.format(run="RUN"), "```", "")


if __name__ == "__main__":
    PAGE.write_text(page().rstrip() + "\n", encoding="utf-8")
    print(PAGE)
