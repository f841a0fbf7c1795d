export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

code=75
if [ -z "$told" ]; then
    srun --export=ALL --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist="$SLURMD_NODENAME" @NO_GPUS@ \
        --kill-on-bad-exit=0 @CONTAINER@ \
        @COMMAND@ --nodes "$SLURM_JOB_NUM_NODES" "$run" "$submission" master &
    master=$!
    [ -z "$told" ] || kill -USR1 "$master" 2> /dev/null
    srun --export=ALL --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 @CONTAINER@ \
        @COMMAND@ "$run" "$submission" agent &
    agents=$!
    ending_of "$master"
    code=$?
    master=
    # The agents leave when the master says so. One that was killed says nothing: then they are ended.
    [ "$code" -gt 128 ] && kill -TERM "$agents" 2> /dev/null
    ending_of "$agents"
fi
