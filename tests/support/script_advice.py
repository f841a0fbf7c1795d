"""What scripts are advised to do: a line that is refused, and the line that does what its advice says."""

from collections.abc import Mapping

FOLLOWED_BY = "controller/test_advice.py::test_a_script_that_follows_its_advice_gets_further"
IN_A_LOOP: Mapping[str, tuple[str, str]] = {
    "conversation.py: Ask from the script's thread: calls whose rows it does not read overlap.": (
        "ask = threading.Thread(target=lambda: actor.generate(batch)); ask.start(); ask.join()",
        "actor.generate(batch)",
    ),
    "asked_turn.py: Calls belong into the loop: for step in run.steps(): batch = step.batch().": (
        "pass\n    actor.generate(batch)",
        "actor.generate(batch)",
    ),
    "asked_turn.py: Ask before it, and give its function what it needs as arguments.": (
        "run.once(lambda key: actor.generate(batch).ids)",
        "run.once(lambda key, ids: ids[0], drawn.ids)",
    ),
    "groups.py: Rename one.": ("actor.pair(batch); actor.pair(batch)", "actor.pair(batch)"),
    "asked_turn.py: Rows, futures and statistics live in the turn that made them; keep numbers in run.state.": (
        "kept.append(drawn); kept[0].mean('y')",
        "run.state.setdefault('mean', drawn.mean('y'))",
    ),
    "data_proto.py: A batch has each sample once.": ("batch.concat([batch, batch])", "batch.concat(batch.chunk(2))"),
    "data_proto.py: Give a true or false for each sample, or ids; reorder takes positions.": (
        "batch.filter([0, 1])",
        "batch.filter(batch.ids[:2]); batch.reorder([3, 2, 1, 0])",
    ),
    "data_proto.py: Give one for each.": ("batch.filter([True])", "batch.filter([True, False, False, False])"),
    "data_proto.py: Keep numbers in run.state from turn to turn.": (
        "kept.append(drawn); drawn.union(kept[0])",
        "run.state['mean'] = drawn.mean('y')",
    ),
    "data_proto.py: Keep step.batch() and step.held_out() apart.": (
        "step.number == 2 and batch.concat([batch, step.held_out()])",
        "step.number == 2 and actor.generate(step.held_out())",
    ),
    "data_proto.py: Leave it out of one of them, by pop or select.": (
        "drawn.union(actor.generate(batch))",
        "drawn.pop('y')[1].union(actor.generate(batch)); drawn.select('x').union(actor.generate(batch))",
    ),
    "data_proto.py: Leave one of them out, by pop or select.": (
        "drawn.rename({'x': 'y'})",
        "drawn.select('x').rename({'x': 'y'})",
    ),
    'data_proto.py: Write rename({"old": "new"}).': ("drawn.rename('x')", "drawn.rename({'x': 'w'})"),
    "data_proto.py: Make it first, and put it in by union.": (
        "drawn.fetch('r')",
        "drawn.union(reward.score(drawn)).fetch('r')",
    ),
    "data_proto.py: Put rows into one: batch.union(…).": (
        "reference.score([drawn])",
        "reference.score(batch.union(actor.generate(batch)))",
    ),
    "data_proto.py: Give it a list.": ("drawn.reorder(None)", "drawn.reorder([3, 2, 1, 0])"),
    "data_proto.py: Round it: x // 2, int(x).": ("drawn.chunk(len(drawn) / 2)", "drawn.chunk(len(drawn) // 2)"),
    "user_code.py: Give the function itself, not what it returns.": ("run.once(print(3))", "run.once(print, 3)"),
    "data_proto.py: Select the keys that all of them have.": (
        "batch.concat([drawn[:2], batch[2:]])",
        "batch.concat([drawn[:2].select('x'), batch[2:]])",
    ),
    "data_proto.py: Select the same samples of both, by filter, before they are put together.": (
        "batch.union(drawn[:2])",
        "batch.filter(drawn[:2].ids).union(drawn[:2])",
    ),
    "data_proto.py: Test len(batch) before.": (
        "actor.generate(batch[:0])",
        "len(batch[:0]) and actor.generate(batch[:0])",
    ),
    "data_proto.py: The batch has {}.": ("batch.fetch()", "batch.fetch('x')"),
    "data_proto.py: Use filter to leave samples out.": ("batch.reorder([0, 1])", "batch.filter(batch.ids[:2])"),
    "data_proto.py: Write batch[i : i + 1].": ("batch[1]", "batch[1:2]"),
    "declared.py: Add {} to the recipe, or say which is meant: name=….": (
        "run.compute(same, drawn.union(reward.score(drawn)))",
        "run.compute(same, drawn.union(reward.score(drawn)), name='scale')",
    ),
    "data_proto.py: Make these rows by run.compute(…), which gives a batch.": (
        "critic.inference({'y': [0.0]})",
        "run.compute(same, drawn.union(reward.score(drawn)), name='scale')",
    ),
    "declared.py: Declare it there{}.": ("actor.generate(batch, name='actor_draw')", "actor.generate(batch)"),
    "declared.py: Say which: name={}.": ("critic.many(drawn)", "critic.many(drawn, name='critic_one')"),
    "groups.py: Give it one that has {}.": ("actor.generate()", "actor.generate(batch)"),
    "groups.py: Put it into the batch: batch = batch.union({}).": (
        "reward.score(batch)",
        "batch = batch.union(drawn); reward.score(batch)",
    ),
    "groups.py: Use one of these, or declare another: settings may leave a call out.": (
        "actor.score(drawn)",
        "reward.score(drawn)",
    ),
    "json_values.py: Convert it: x.item() for a number of numpy, x.tolist() for an array, sorted(x) for a set.": (
        "run.state['x'] = [np.bool_(1), np.zeros(2), {2, 1}]",
        "run.state['x'] = [np.bool_(1).item(), np.zeros(2).tolist(), sorted({2, 1})]",
    ),
    "json_values.py: Keep numbers of a step in step.log, and rows in batches.": (
        "run.state['x'] = 'x' * (1 << 20)",
        "step.log(x=1)",
    ),
    "json_values.py: Return what the script needs of it, and keep the rest where it is.": (
        "run.once(lambda key: 'x' * (1 << 16))",
        "run.once(lambda key: len('x' * (1 << 16)))",
    ),
    "json_values.py: Set it to None instead: run.state[{}] = None.": (
        "run.state.pop('begun', None)",
        "run.state['begun'] = None",
    ),
    "json_values.py: Set its keys instead.": ("run.state = 3", "run.state['x'] = 3"),
    "json_values.py: Test for it, or keep it as text.": (
        "run.state['x'] = float('nan')",
        "run.state['x'] = str(float('nan'))",
    ),
    "json_values.py: Pass long values as rows, which a computation gets by its declared inputs; to run.once, "
    "pass a path.": (
        "run.compute(same, drawn.union(reward.score(drawn)), 'x' * (1 << 16), name='scale')",
        "run.compute(same, drawn.union(reward.score(drawn)), name='scale'); run.once(lambda key, file: 1, 'file.json')",
    ),
    "json_values.py: Write it as {}.": ("run.state['x'] = {1: 2}", "run.state['x'] = {'1': 2}"),
    "state.py: Change run.state[{}] itself, in the loop, or assign to it.": (
        "kept.append(run.state.setdefault('n', [])); kept[0].append(step.number)",
        "run.state.setdefault('n', []).append(step.number); run.state['m'] = [*run.state['n'], 0]",
    ),
    "results.py: Its numbers are in .stats.": (
        "scored = drawn.union(reward.score(drawn), reference.score(drawn), critic.many(drawn, name='critic_inf')); "
        "scored.union(actor.update(scored))",
        "scored = drawn.union(reward.score(drawn), reference.score(drawn), critic.many(drawn, name='critic_inf')); "
        "actor.update(scored).stats['loss']",
    ),
    "results.py: Name one of these.": ("actor.generate(batch).stats['l']", "actor.generate(batch).stats['loss']"),
    "run.py: Log numbers.": ("step.log(x='one')", "step.log(x=1)"),
    "run.py: Read it, or draw, in the script, and give what comes of it as an argument.": (
        "run.compute(lambda rows: e.seed, drawn.union(reward.score(drawn)), name='scale')",
        "run.compute(same, drawn.union(reward.score(drawn)), e.seed, name='scale')",
    ),
    "run.py: Name one of these, or declare a call of it: settings may leave a role out.": (
        "run.group('judge')",
        "run.group('reward')",
    ),
    "run.py: Remove the yield.": ("yield step", "kept.append(step)"),
    "run.py: Test step.evaluates before; control.evaluate sets it.": (
        "step.held_out()",
        "step.evaluates and step.held_out()",
    ),
    "view.py: Keep what changes in run.state.": ("e.seed = 2", "run.state['seed'] = 2"),
}
"""Advice, and a line of a loop that gets it, and one that follows it."""

OF_METHODS: Mapping[str, tuple[str, str]] = {
    "groups.py: Give all else by position: {}.{}(batch, 1.0).": (
        "actor.double(drawn, by=2.0)",
        "actor.double(drawn, 2.0)",
    ),
    "groups.py: Leave it to the settings: generation.* and generation.evaluation.* say how responses are drawn.": (
        "actor.generate(batch, do_sample=False)",
        "actor.generate(batch)",
    ),
    "groups.py: Leave them out.": ("actor.generate(batch, 2)", "actor.generate(batch)"),
    "groups.py: Give it one that has {}.": ("actor.double()", "actor.double(drawn, 2.0)"),
    "ways.py: Give a list of {}.": ("actor.item(1, blocking=False)", "actor.item([1, 2], blocking=False)"),
    "ways.py: It has to give a batch for each of them; batch[:0] is one without samples.": (
        "actor.by_ends(drawn[:1])",
        "actor.by_ends(drawn)",
    ),
}
"""The same of registered methods."""
METHODS_FOLLOWED_BY = "controller/test_methods.py::test_a_method_that_is_asked_for_as_its_advice_says_gets_further"

IN_PREPARE: Mapping[str, tuple[str, str]] = {
    "ahead.py: Draw from run.rng(name), which is a generator of its own.": (
        "np.random.random()",
        "run.rng('noise').random()",
    ),
    "ahead.py: Make prepare a def without a yield, which returns what it has made.": (
        "made = (it for it in [step.number])",
        "made = step.number",
    ),
    "ahead.py: Return what the loop needs: it is step.prepared there.": ("run.state['n'] = 1", "made = 1"),
    "asked_turn.py: Change roles in the loop: what is prepared ahead reads them as an older step left them.": (
        "actor, critic = run.groups('actor', 'critic'); critic.update(step.batch())",
        "(actor,) = run.groups('actor'); made = step.batch().union(actor.generate(step.batch()))",
    ),
    "asked_turn.py: Take all groups by the run that prepare is given: actor, reward = run.groups(…).": (
        "made = taken[0].generate(step.batch())",
        "(actor,) = run.groups('actor'); made = actor.generate(step.batch())",
    ),
    "asked_turn.py: Take all groups in the first lines of prepare: others wait for those that it may still ask.": (
        "actor = run.group('actor'); made = actor.generate(step.batch()); run.group('reward')",
        "actor, reward = run.groups('actor', 'reward'); made = actor.generate(step.batch())",
    ),
}
"""The same of a line in a function that prepares a step."""
OF_A_LAG: Mapping[str, tuple[str, str]] = {
    "run.py: Keep the lag that the run was begun with.": ("prepare=prepare, lag=2", "prepare=prepare, lag=1"),
    "steps.py: Loop once, and decide by step.number or run.state what a step does.": (
        "prepare=prepare), run.steps(prepare=prepare",
        "prepare=prepare",
    ),
    "run.py: Write run.steps(prepare=FUNCTION, lag=1).": ("lag=1", "prepare=prepare, lag=1"),
}
"""The same of what `run.steps` is given, in a run that goes on after a checkpoint with the states of two steps."""
FOLLOWED_AHEAD = "controller/test_ahead.py::test_who_prepares_as_advised_gets_further"
