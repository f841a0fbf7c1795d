"""How the steps of a policy are cut, and what a script must not do that writes their updates out."""

from collections.abc import Mapping
from dataclasses import replace

from hpcrl.data.batch import Batch
from hpcrl.errors import Problem
from hpcrl.recipes import policy
from hpcrl.recipes.policy import PolicyExperiment


def batch(experiment: PolicyExperiment) -> Batch:
    return replace(policy.batch(experiment), once=_once(experiment))


def group_batch(experiment: PolicyExperiment) -> Batch:
    """Of an algorithm whose advantages are distances between the responses to a prompt."""
    return replace(batch(experiment), comparing=("actor_train",))


def _once(experiment: PolicyExperiment) -> Mapping[str, Problem]:
    """actor_train, where its ratio is over the log-probabilities that the actor has as it begins: a second one would
    begin from others than those of the samples."""
    if policy.old_logprobs(experiment) != "own":
        return {}
    name, _ = policy.section_of(experiment)
    return {
        "actor_train": Problem(
            (f"{name}.minibatches", f"{name}.epochs", f"{name}.old_logprobs"),
            f"with {name}.minibatches · {name}.epochs = 1 a step is one update, with a ratio of 1; in a second one "
            "nothing would bound how far the actor leaves the policy that has drawn the samples.",
            f"Ask for one, and raise {name}.minibatches or {name}.epochs, which are the loop over a step's updates; or "
            f"set {name}.old_logprobs to sampled.",
        )
    }
