umask 077
[ -f /dev/stdout ] && chmod 600 /dev/stdout  # made by Slurm, with the umask of whoever sent this
run=@RUN@
submission=@SUBMISSION@
python=@PYTHON@

# Slurm tells the steps, the script or both that it is time to go. What the script hears it hands on: srun passes USR1 to
# its task, and the master then finishes the calls in flight. Who is told before there is a process starts none.
master= told=
hear() {
    told="$told $1"
    [ -z "$master" ] || kill -USR1 "$master" 2> /dev/null
}
for name in TERM INT HUP USR1 USR2; do trap "hear $name" "$name"; done
