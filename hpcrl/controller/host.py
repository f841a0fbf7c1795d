"""The host of the worker that runs a run's script: the script on a thread of its own, what it computes on the worker's.

It is in no process group and keeps nothing: it is forked and killed with its attempt, and the script runs again.
"""

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hpcrl.controller.computations import Computations
from hpcrl.controller.run import World, follow
from hpcrl.controller.silence import Silence
from hpcrl.controller.user_code import keep_exits
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import SavedRole
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError, StoppedError
from hpcrl.placement.plan import ModelName, Part
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.script_messages import ScriptSilent
from hpcrl.workers.host import Arrived, HostContext, Outcome, Snapshot, Work


class ScriptHost:
    """Fulfils `hpcrl.workers.host.Host`."""

    software = ""
    attention: Mapping[str, str] = MappingProxyType({})
    speeds: Mapping[str, float] = MappingProxyType({})

    def __init__(self, context: HostContext) -> None:
        assert context.script is not None, "a worker has a line to its master"
        keep_exits()
        self._context = context
        self._line = context.script
        plan = context.plan
        newest = experiment_from(plan.experiment)
        experiments = {version: experiment_from(values) for version, values in plan.earlier.items()}
        algorithm = algorithm_of(newest)
        self._script = algorithm.script
        self._silent_after_s = newest.control.script_timeout_s
        computations = Computations(algorithm.forms(newest))
        identity = RunDirectory(context.run_dir).read_run().digest[:16]
        self._world = World(algorithm, plan, {**experiments, plan.settings: newest}, computations, identity)

    def prepare(self) -> str:
        return ""

    def load(self, peers: Sequence[str], checkpoint: Mapping[str, SavedRole]) -> None:
        threading.Thread(target=self._run, name="script", daemon=True).start()

    def _run(self) -> None:
        """Until it returns or raises; told to go, it just stops asking."""
        assert self._script is not None, "only an algorithm with a script has this host"
        silence = Silence(self._silent_after_s, self._tell_silence, self._tell_silence)
        silence.watch()
        try:
            follow(self._script, self._line, self._world, silence)
        except StoppedError:
            pass
        except BaseException as error:
            self._line.failed("the script", error)
        finally:
            silence.rests()
            silence.close()

    def _tell_silence(self, step: int, seconds: float, stack: str = "") -> None:
        self._line.told(ScriptSilent(step, round(seconds, 1), stack))

    def execute(self, work: Work) -> Outcome:
        """What the script computes, by the function that it gave when it asked."""
        rows = {key: work.batch.rows(key) for key in work.batch.keys}
        return Outcome(self._world.computations.run(work.step, work.call, work.batch.ids, rows))

    def share(self, part: Part, batch: SequenceSample) -> SequenceSample:
        raise InternalError(f"ranks {list(part.ranks)} are one part: a script has one worker.")

    def move(self, replica: ModelName, version: int) -> Arrived:
        raise InternalError(f"{replica} has no parameters: the script's worker holds it.")

    def let_go(self, replica: ModelName) -> None:
        raise InternalError(f"{replica} has no parameters: the script's worker holds it.")

    def snapshot(self, role: str) -> Snapshot:
        raise InternalError(f"{role} has no state: the script's worker holds it.")

    def close(self) -> None:
        """The thread ends with the process."""
