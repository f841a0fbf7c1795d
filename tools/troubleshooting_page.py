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

says of every attempt that ended and was not done what began its end, also of a run that recovered, or that waits. It
reads the run's directory alone, so it works on a login node or a laptop, without Slurm or torch. `make docs` makes this
page from the verdicts; do not edit it.

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

- The first line has the verdict, how sure it is, and the process that began it. One death makes the others fail too:
  what only followed is counted under `folded`. *certain*: somebody wrote so. *likely*: it follows from who fell silent,
  or from words.
- Below is what happened, with the lines of your own code. `--traceback` shows all lines, `--json` everything as JSON.
- `evidence` names files in the run directory, with line numbers; `hpcrl logs RUN --around first-failure` shows what all
  processes did then.
- `next` is the command to type. There is none where the run went on by itself.

`hpcrl status`, `hpcrl submit` and `hpcrl inspect RUN` say the same of the newest attempt. `hpcrl inspect RUN` has a
line for each attempt, with what its end has cost.
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
