"""The toy's graph without its train_steps: a run that only generates, infers and evaluates."""

from dataclasses import replace

from hpcrl.recipes.toy import ALGORITHM as TOY
from hpcrl.recipes.toy import CALLS

ALGORITHM = replace(TOY, recipe=lambda experiment: tuple(call for call in CALLS if call.kind != "train_step"))
