"""What an engine tells the meter that it was given."""

import time

import numpy as np
import pytest
from support.tiny import CONFIG, native, random_rows
from support.tiny_models import tiny_config

from hpcrl.config.generation import GenerationConfig
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Columns, Objective, Sequences, Update
from hpcrl.figures import Figures
from hpcrl.placement.flops import Text, flops_of
from hpcrl.workers.meter import Meter

FLOPS = flops_of(CONFIG)


def measured(engine: ComposedEngine, what) -> Figures:
    meter = engine._meter
    meter.begin()
    begun = time.perf_counter()
    what()
    return meter.taken(0.0, time.perf_counter() - begun)


def sequences() -> Sequences:
    prompts, responses = random_rows(9)
    return Sequences.from_rows(prompts, responses)


def texts(of: Sequences) -> list[Text]:
    return [Text(int(length) - 1) for length in of.lengths]


def test_a_prediction_is_forward_passes_alone():
    engine, given = native(micro_batch_tokens=60, meter=Meter()), sequences()
    figures = measured(engine, lambda: engine.forward(given))
    assert figures.micro_batches > 1 and figures.longest == given.lengths.max()
    assert figures.tokens == given.lengths.sum() - len(given)
    assert figures.flops == pytest.approx(FLOPS.forward(texts(given), int(given.labels.sum())))
    assert (
        0 < figures.seconds.forward < figures.seconds.execute
        and figures.seconds.backward == figures.seconds.optimizer == 0
    )


def test_an_update_is_forward_and_backward_passes_and_the_optimizer():
    engine, given = native(micro_batch_tokens=60, meter=Meter()), sequences()

    def loss(predictions, columns):
        return predictions.log_probs.sum(), {}

    def train(index):
        return engine.train_batch(given, Columns(), Objective(loss), Update(1, index, 2))

    train(0)  # a process's first gradient is made twice
    figures = measured(engine, lambda: train(1))
    labels = int(given.labels.sum())
    assert figures.flops == pytest.approx(FLOPS.forward(texts(given), labels) + FLOPS.backward(texts(given), labels))
    parts = (figures.seconds.forward, figures.seconds.backward, figures.seconds.optimizer)
    assert min(parts) > 0 and 0.5 * figures.seconds.execute < sum(parts) < figures.seconds.execute


@pytest.mark.parametrize("samples", [1, 3])
def test_a_generation_reads_each_prompt_once_and_makes_tokens_in_rounds(samples):
    engine = native(config=tiny_config(tied=True), meter=Meter())
    prompts = [prompt for prompt in random_rows(5)[0] for _ in range(samples)]
    made = []
    config = GenerationConfig(max_new_tokens=7, min_new_tokens=7, slots=8 * samples)
    figures = measured(engine, lambda: made.append(engine.generate(prompts, range(len(prompts)), config)))
    read = [len(prompt) for prompt in prompts[::samples]]
    assert figures.rounds == 7 and figures.micro_batches == 0
    assert figures.tokens == sum(read) + 7 * len(prompts) and figures.longest == max(read) + 7
    rows = [(len(prompt), 7) for prompt in prompts]
    assert figures.flops == pytest.approx(FLOPS.prefill(read) + FLOPS.decode(rows))
    assert (
        0 < figures.seconds.prefill < figures.seconds.execute and 0 < figures.seconds.decode < figures.seconds.execute
    )
    assert [len(tokens) for tokens in made[0].tokens] == [7] * len(prompts)


def test_what_is_measured_changes_no_bit():
    given = sequences()
    ones = [native(meter=meter).forward(given) for meter in (None, Meter())]
    np.testing.assert_array_equal(*ones)
