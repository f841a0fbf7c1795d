#!/usr/bin/env bash
# A real Slurm cluster on one Debian 12 machine, for tests: two CPU nodes, four nodes with two pretended GPUs each.
#
#   cluster.sh up      install what is missing, write the configuration, start what does not run, resume the nodes; repeat as you like
#   cluster.sh down    cancel the jobs, stop the daemons, kill what is left of the jobs; job ids and accounting are kept
#   cluster.sh wipe    down, and remove everything below the root
#   cluster.sh status  a line per daemon, the nodes, the jobs; exit status 0 if all of it works
#   cluster.sh root    print the root. Commands reach the cluster with SLURM_CONF=ROOT/etc/slurm.conf in their environment
#
# Exit status 77: this machine cannot have it; the last line says why. No systemd; munged, mariadbd, slurmdbd, slurmctld and a slurmd per
# node run as root with everything they write below the root. Clusters with different roots live side by side.
#   HPCRL_TEST_CLUSTER=/tmp/hpcrl-slurm-USER   the root
#   HPCRL_TEST_CLUSTER_PORT, _PREFIX           first of 20 TCP ports on the loopback, and what node names begin with; both follow from the root
#   HPCRL_TEST_CLUSTER_ACCOUNTING=1            0: no database, so sacct fails
#   HPCRL_TEST_CLUSTER_FAST=1                  0: time limits and grace times are polled every 30 s as in Slurm itself, not every second; needs cc
#   HPCRL_TEST_CLUSTER_CGROUP=                 1: jobs in cgroups (memory limits, nothing escapes), 0: tracked by parent pids; default: if possible
set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=${HPCRL_TEST_CLUSTER:-/tmp/hpcrl-slurm-$(id -un)}
case $ROOT in /*/?*) ;; *) echo "HPCRL_TEST_CLUSTER must be an absolute path at least two levels deep, not '$ROOT'" >&2; exit 1 ;; esac
NUMBER=$(printf %s "$ROOT" | cksum | cut -d' ' -f1)
PORT=${HPCRL_TEST_CLUSTER_PORT:-$((17000 + NUMBER % 500 * 20))}
PREFIX=${HPCRL_TEST_CLUSTER_PREFIX-t$((NUMBER % 500))-}
ACCOUNTING=${HPCRL_TEST_CLUSTER_ACCOUNTING:-1}
FAST=${HPCRL_TEST_CLUSTER_FAST:-1}
CGROUP=${HPCRL_TEST_CLUSTER_CGROUP:-}
NODES=("$PREFIX"{cpu1,cpu2,gpu1,gpu2,gpu3,gpu4})
CONTROLLER_PORT=$PORT ACCOUNTING_PORT=$((PORT + 1)) DATABASE_PORT=$((PORT + 2))
PACKAGES=(slurmctld slurmd slurm-client munge)
((ACCOUNTING)) && PACKAGES+=(slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core)
export SLURM_CONF=$ROOT/etc/slurm.conf PATH=$PATH:/usr/sbin:/sbin
# What the daemons get: nothing of the caller's environment may reach a job.
CLEAN=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "SLURM_CONF=$SLURM_CONF")

die() { echo "cluster.sh: $*" >&2; exit 1; }
cannot() { echo "no Slurm test cluster here: $*" >&2; exit 77; }
# Zombies count as gone: pid 1 of a container may be slow to reap them.
gone() { [ ! -d "/proc/$1" ] || grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"; }
# running NAME: the process of run/NAME.pid lives, and is not another one that got its number.
running() {
    local pid
    pid=$(cat "$ROOT/run/$1.pid" 2> /dev/null) && [ -n "$pid" ] && ! gone "$pid" || return 1
    [[ $(tr '\0' ' ' 2> /dev/null < "/proc/$pid/cmdline")" " == *"${1/slurmd./slurmd -N } "* ]] || [[ $(cat "/proc/$pid/comm") == "$1" ]]
}
listening() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
# await SECONDS NAME COMMAND: until the command succeeds.
await() {
    local tries=$(($1 * 20)) name=$2
    shift 2
    until "$@" &> /dev/null; do
        ((tries--)) || die "$name is not up in time, see $ROOT/log"
        sleep 0.05
    done
}

# ---- before the start

check_machine() {
    [ "$(uname)" = Linux ] || cannot "it needs Linux"
    [ "$(id -u)" = 0 ] || cannot "it needs root"
    [[ $(slurmctld -V 2> /dev/null) == *" 22.05."* ]] && return
    [ "$(. /etc/os-release && echo "$ID$VERSION_ID")" = debian12 ] || cannot "it is made for the Slurm 22.05 of Debian 12"
}

install_packages() {
    local missing=() package log=$ROOT/log/apt.log
    for package in "${PACKAGES[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    echo "cluster.sh: installing ${missing[*]}"
    # RUNLEVEL=1: the packages do not start services of their own.
    local install=(env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive timeout 120 apt-get -qy -o DPkg::Lock::Timeout=60
        --no-install-recommends install "${missing[@]}")
    "${install[@]}" &> "$log" && return
    { timeout 60 apt-get -q update && "${install[@]}"; } &>> "$log" || cannot "apt-get cannot install ${missing[*]}, see $log"
}

choose_tracking() {
    local probe=/sys/fs/cgroup/freezer/hpcrl-probe-$$
    if [ -z "$CGROUP" ]; then
        CGROUP=0
        [ -w /sys/fs/cgroup/memory/cgroup.procs ] && mkdir "$probe" 2> /dev/null && rmdir "$probe" && CGROUP=1
    fi
    if ((CGROUP)); then PROCTRACK=cgroup TASK_PLUGIN=cgroup; else PROCTRACK=linuxproc TASK_PLUGIN=none; fi
}

# render FOLDER FILE: the template with the values that its names between @ have here.
render() {
    local text name
    text=$(cat "$HERE/etc/$2")
    for name in ROOT HOST PREFIX CONTROLLER_PORT ACCOUNTING_PORT DATABASE_PORT CPU_PORTS GPU_PORTS PROCTRACK TASK_PLUGIN FIRST_JOB_ID POLL_S \
        ACCOUNTING_LINES; do
        text=${text//@$name@/"${!name}"}
    done
    (umask 077 && printf '%s\n' "$text" > "$1/$2")
}

# The configuration in folder $1; nothing in it changes while the settings stay.
write_configuration() {
    local HOST CPU_PORTS GPU_PORTS PROCTRACK TASK_PLUGIN FIRST_JOB_ID POLL_S=30 ACCOUNTING_LINES file
    HOST=$(hostname -s)
    CPU_PORTS="[$((PORT + 11))-$((PORT + 12))]" GPU_PORTS="[$((PORT + 13))-$((PORT + 16))]"
    choose_tracking
    ((FAST)) && command -v cc > /dev/null && POLL_S=1
    # A wiped cluster does not give out the same job ids again.
    [ -s "$ROOT/state/first_job_id" ] || echo $((RANDOM % 30000 * 1000 + 1001)) > "$ROOT/state/first_job_id"
    FIRST_JOB_ID=$(cat "$ROOT/state/first_job_id")
    ACCOUNTING_LINES="AccountingStorageType=accounting_storage/none"
    # The password is the socket of munged: sacct and sacctmgr do not look at AuthInfo.
    ((ACCOUNTING)) && ACCOUNTING_LINES="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$ACCOUNTING_PORT
AccountingStoragePass=$ROOT/run/munge.socket
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=10"
    mkdir -p "$1"
    for file in slurm.conf slurmdbd.conf gres.conf mariadb.cnf mariadb.sql; do render "$1" "$file"; done
    chmod 644 "$1/slurm.conf" "$1/gres.conf"
    echo "CgroupPlugin=cgroup/v1" > "$1/cgroup.conf"
    ((CGROUP)) && echo "ConstrainRAMSpace=yes" >> "$1/cgroup.conf"
}

prepare() {
    # munged wants parents that only their owner writes to.
    (umask 022 && mkdir -p "$ROOT"/{log,run,state,spool,dev,lib}) || die "cannot write to $ROOT"
    [ -O "$ROOT" ] || die "$ROOT belongs to someone else; set HPCRL_TEST_CLUSTER"
    install_packages
    # A GPU's file must be a device with a number at its end; no cgroup constrains devices, so this takes /dev/null from nobody.
    ln -sfn /dev/null "$ROOT/dev/nvidia0" && ln -sfn /dev/null "$ROOT/dev/nvidia1"
    [ -s "$ROOT/state/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom > "$ROOT/state/munge.key")
    write_configuration "$ROOT/etc.new"
    if [ -d "$ROOT/etc" ] && ! diff -rq "$ROOT/etc" "$ROOT/etc.new" > /dev/null; then
        echo "cluster.sh: other settings than before, starting anew"
        down
    fi
    rm -rf "$ROOT/etc" && mv "$ROOT/etc.new" "$ROOT/etc"
}

# ---- the daemons, in the order of their start

# start NAME COMMAND: unless it runs.
start() {
    local name=$1
    shift
    "${CLEAN[@]}" "$@" < /dev/null &>> "$ROOT/log/$name.out" || die "$name does not start, see $ROOT/log"
}

start_munge() {
    running munged && return
    rm -f "$ROOT"/run/munge.socket*
    start munged munged --num-threads=10 --key-file="$ROOT/state/munge.key" --socket="$ROOT/run/munge.socket" \
        --pid-file="$ROOT/run/munged.pid" --log-file="$ROOT/log/munged.log" --seed-file="$ROOT/state/munged.seed"
    await 5 munged munge -S "$ROOT/run/munge.socket" -n
}

start_accounting() {
    if ! running mariadbd; then
        [ -d "$ROOT/database/mysql" ] || start database mariadb-install-db --defaults-file="$ROOT/etc/mariadb.cnf" \
            --auth-root-authentication-method=normal --skip-test-db
        "${CLEAN[@]}" setsid mariadbd --defaults-file="$ROOT/etc/mariadb.cnf" < /dev/null &>> "$ROOT/log/mariadbd.out" &
        await 30 mariadbd listening "$DATABASE_PORT"
    fi
    running slurmdbd && return
    start slurmdbd slurmdbd
    await 30 slurmdbd listening "$ACCOUNTING_PORT"
}

start_controller() {
    running slurmctld && return
    local preload=()
    if grep -q 'every 1 s' "$SLURM_CONF"; then
        cc -O1 -shared -fPIC -o "$ROOT/lib/fast.so" "$HERE/fast.c" || die "cannot compile fast.c; HPCRL_TEST_CLUSTER_FAST=0 goes without"
        preload=("LD_PRELOAD=$ROOT/lib/fast.so")
    fi
    listening "$CONTROLLER_PORT" && die "port $CONTROLLER_PORT is taken; set HPCRL_TEST_CLUSTER_PORT"
    start slurmctld env "${preload[@]}" slurmctld
    await 20 slurmctld scontrol ping
}

start_nodes() {
    local node
    for node in "${NODES[@]}"; do
        running "slurmd.$node" && continue
        mkdir -p "$ROOT/spool/$node"
        start "slurmd.$node" slurmd -N "$node"
    done
    # What a test has left down or drained.
    for node in $(sinfo -hN -o '%N %T' | awk '$2 ~ /^(down|drain|fail)/ {print $1}' | sort -u); do
        scontrol update NodeName="$node" State=RESUME 2> /dev/null
    done
    await 40 "a node" nodes_ready
}

nodes_ready() {
    [ "$(sinfo -hN -o '%N %T' | sort -u | grep -cE ' (idle|mixed|allocated|completing)$')" = "${#NODES[@]}" ]
}

up() {
    prepare
    start_munge
    ((ACCOUNTING)) && start_accounting
    start_controller
    start_nodes
    echo "cluster.sh: up after $SECONDS s. export SLURM_CONF=$SLURM_CONF"
}

# ---- the end

# Processes of this cluster's jobs: by their environment, and by their cgroup if they have changed that.
job_processes() {
    local file
    for file in $(grep -lszxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ); do
        if grep -qszE '^SLURM_JOB_?ID=' "$file" || [[ $(cat "${file%environ}comm" 2> /dev/null) == slurmstepd* ]]; then
            file=${file#/proc/} && echo "${file%/environ}"
        fi
    done
    for file in "${NODES[@]/#//sys/fs/cgroup/freezer/slurm_}"; do
        find "$file" -path '*/job_*' -name cgroup.procs -exec cat {} + 2> /dev/null
    done
}

# stop SECONDS NAME...: SIGTERM to all, SIGKILL to those that stay.
stop() {
    local seconds=$1 name pid end
    shift
    for name in "$@"; do running "$name" && kill "$(cat "$ROOT/run/$name.pid")"; done
    end=$((SECONDS + seconds))
    for name in "$@"; do
        while running "$name" && ((SECONDS < end)); do sleep 0.05; done
        running "$name" && kill -KILL "$(cat "$ROOT/run/$name.pid")"
        rm -f "$ROOT/run/$name.pid"
    done
}

down() {
    local pid tries daemons
    if running slurmctld; then
        timeout 10 scancel --state=PENDING --user=root
        timeout 10 scancel --full --signal=KILL --user=root 2> /dev/null
        timeout 10 scancel --user=root
        for ((tries = 100; tries; tries--)); do
            [ -z "$(timeout 5 squeue -h)" ] && break
            sleep 0.1
        done
    fi
    stop 15 slurmctld # before the slurmds, while they still answer it: a second, not six
    daemons=("$ROOT"/run/slurmd.*.pid)
    daemons=("${daemons[@]##*/}")
    stop 10 "${daemons[@]%.pid}"
    for pid in $(job_processes); do [ "$pid" = $$ ] || kill -KILL "$pid" 2> /dev/null; done
    for pid in "${NODES[@]}"; do find /sys/fs/cgroup/*/"slurm_$pid" -depth -type d -exec rmdir {} + 2> /dev/null; done
    stop 15 slurmdbd
    stop 20 mariadbd
    stop 10 munged
    echo "cluster.sh: down"
}

wipe() {
    down
    rm -rf "${ROOT:?}"/{etc,log,run,state,spool,dev,lib,database}
    rmdir "$ROOT" 2> /dev/null
}

status() {
    local name bad=0 daemons=(munged slurmctld "${NODES[@]/#/slurmd.}")
    ((ACCOUNTING)) && daemons+=(mariadbd slurmdbd)
    for name in "${daemons[@]}"; do
        if running "$name"; then echo "$name runs ($(cat "$ROOT/run/$name.pid"))"; else echo "$name does not run" && bad=1; fi
    done
    ((bad)) && return 1
    sinfo -N -o '%12N %12T %4c %8m %14G %P'
    squeue
    nodes_ready
}

[ "${1:-}" = up ] && check_machine
case "${1:-}" in
    # One at a time; the daemons do not inherit the lock.
    up | down | wipe) (flock 9 && "$1" 9>&-) 9> "$ROOT.lock" ;;
    status) status ;;
    root) echo "$ROOT" ;;
    *) sed -n '2,/^set -u/{/^#/p}' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
