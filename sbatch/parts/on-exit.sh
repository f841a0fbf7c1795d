# Slurm hears of this script's end from its slurmstepd. Where that was killed, the job would stay, with nothing in it.
[ -d "/proc/$PPID" ] || told="$told ALONE"
# What becomes of this job: the end, its turn again in the queue, or a successor where the site forbids that. (After
# SIGTERM Slurm queues it again by itself, or somebody wants it to end.) The last line is for nodes without that Python.
@ON_EXIT@ "$run" "$submission" run "$code" $told && exit "$code"
[ "$code" = 75 ] && [ "${told/TERM/}" = "$told" ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
