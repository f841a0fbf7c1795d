"""A reward in a file of one's own: a point for the right sum, a tenth for an answer that is a number at all.

The row has whatever its line of data.train has. Other numbers beside `score` are reported as rew_inf/reward_NAME.
"""

import re


def sums(prompt, response, row):
    right = row["answer"].rpartition("#### ")[2]
    said = re.findall(r"#### (-?\d+)", response)
    if not said:
        return {"score": 0.0, "number": 0.0}
    return {"score": 1.0 if said[-1] == right else 0.1, "number": 1.0}
