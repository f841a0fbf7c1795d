"""Words of reports, for whoever meets them for the first time."""

GLOSSARY = (
    (
        "step",
        "A batch of prompts, from their responses to the updates of the models. It ends (closes) when all of its calls "
        "have ended; the next step may begin before.",
    ),
    (
        "call",
        "One kind of work in a step, such as generating responses (actor_gen) or training (actor_train). Calls whose "
        "names begin with eval_ evaluate on held-out data.",
    ),
    ("part", "What one group of workers does of a call."),
    ("attempt", "From a start of the run's processes until they end. A run that was resumed has several."),
    ("worker, node", "A process that computes, one for each device; the machine that it is on."),
    ("72@6", "A sample: row 72 of the data in epoch 6, both counted from 0. A number after # is that of the response."),
    (
        "numbers beside a reward",
        "The scores that it is the weighted sum of, under the names of its components, and what else reward functions "
        "returned (reward_…). None of them is the share of responses whose reward reaches reward.right_at.",
    ),
    ("advantage", "How much better a token, or its response, was than expected. Training makes such tokens likelier."),
    ("value, return", "What the critic expected of the rest of a response, and what it is trained to expect."),
    ("log-probability", "Of a token, by the model that chose it: 0 is certain, -1 is 37%, -5 is 0.7%."),
    ("log-ratio", "A token's log-probability by the trained model, less that by the reference."),
    ("KL", "How far the trained model has moved away from the reference."),
    ("dropped, not_scorable", "Shares of responses without a reward: its function failed; it said that there is none."),
    ("counted, skipped", "The share of samples that an update learnt from; updates that were not made."),
    ("logprob_gap", "How far the log-probabilities of training are from those of generation, in the mean of tokens."),
    ("followed from it", "Workers that ended, or whose work failed, only because another had failed before."),
    ("MFU", "The operations that the models needed, as a share of what the devices could have done in that time."),
    ("rendezvous, import, load", "Before the first step: processes find each other, workers start, models are read."),
    (
        "useful, recomputed, idle",
        "Time in which something was computed for the first time; in which nothing was but what had been computed "
        "before, or was lost; in which nothing was computed.",
    ),
    (
        "spill, save, release",
        "Beside the calls: results are written to disk, a checkpoint is written, memory of a device is freed.",
    ),
)
"""Word → what it means."""
