"""An environment for the sums of examples/addition: it says no to a wrong answer."""

import re


def step(messages, row):
    """(message, done, reward): 1 for a right answer, a half for one that is right the second time, and so on."""
    said = [it["content"] for it in messages if it["role"] == "assistant"]
    found, wanted = (re.findall(r"-?\d+", text) for text in (said[-1], row["answer"]))
    if found and found[-1] == wanted[-1]:
        return None, True, 1 / len(said)
    return "no:", False, 0.0
